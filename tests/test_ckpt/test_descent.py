"""Which steps a save continues: the worker's decision, and what a line of descent says of others."""

from __future__ import annotations

import logging

import pytest

from ckpt.errors import CorruptError
from ckpt.format.line import FIRST, NOBODY, Line, Owner, newest_line
from ckpt.format.shard_record import SaveId
from ckpt.worker.descent import Descent, Known

OWNER = Owner(name="job", script="/train.py", user="u")
LINE = FIRST.fork(None, number=3, began_s=0.0, seed="first", owner=NOBODY)


def save_id(step: int, line: Line = LINE) -> SaveId:
    return SaveId(step=step, attempt=0, run_id="run", line=line)


def descent(
    newest: SaveId | None = None, *, is_head: bool = True, skipped: bool = False, seed: str = "run 1"
) -> Descent:
    number = 1 + (newest.line.number if newest else 0)
    known = Known(save=newest, is_head=is_head, skipped=skipped, next_number=number, began_s=7.0)
    return Descent(known, seed, OWNER, speaks=True)


def line_of(of: Descent, step: int) -> Line:
    line = of.advance(step)
    assert line is not None
    return line


# the worker's decision


def test_a_save_after_a_load_of_the_newest_step_continues_its_line(caplog: pytest.LogCaptureFixture) -> None:
    of = descent(save_id(10))
    of.took(save_id(10), is_load=True)
    assert [line_of(of, step) for step in (11, 12)] == [LINE, LINE]
    assert not caplog.records


def test_the_first_save_of_a_namespace_begins_a_line_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    line = line_of(descent(), 1)
    assert (line.number, line.began_s, line.ancestors) == (1, 7.0, ())
    assert (line.name, line.script, line.user) == ("job", "/train.py", "u")
    assert not caplog.records


def test_a_save_after_a_load_of_an_older_step_begins_a_line_there_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    of = descent(save_id(10))
    of.took(save_id(4), is_load=True)
    with caplog.at_level(logging.WARNING):
        line = line_of(of, 5)
    assert line.number == 4 and line.ancestors == ((LINE.id, 4),) and line > LINE
    assert "begins line" in caplog.text and "continues step 4, and the newest step is 10" in caplog.text
    assert line_of(of, 6) == line, "one warning, one line"
    assert len(caplog.records) == 1


def test_a_script_that_loads_nothing_begins_anew_beside_the_steps_that_are_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    line = line_of(descent(save_id(10)), 11)
    assert line.ancestors == () and not line.has(LINE.id, 1)
    assert "continues no step, and the newest step is 10" in caplog.text


def test_what_a_script_only_reads_counts_if_it_never_loads() -> None:
    of = descent(save_id(10))
    of.took(save_id(10), is_load=False)
    assert line_of(of, 11) == LINE
    both = descent(save_id(10))
    both.took(save_id(4), is_load=True)
    both.took(save_id(10), is_load=False)  # to compare
    assert line_of(both, 5).ancestors == ((LINE.id, 4),)


def test_a_line_with_newer_steps_that_cannot_be_restored_now_is_not_continued() -> None:
    """They may come to light later, and would then be mixed with those of this attempt."""
    of = descent(save_id(10), is_head=False, skipped=True)
    of.took(save_id(10), is_load=True)
    line = line_of(of, 11)
    assert line.ancestors == ((LINE.id, 10),)


def test_steps_passed_over_before_a_start_at_0_are_named(caplog: pytest.LogCaptureFixture) -> None:
    line_of(descent(skipped=True), 1)
    assert "continues no step, and no step could be restored" in caplog.text


def test_a_step_that_is_not_larger_than_the_one_before_has_no_line_unless_one_below_it_was_loaded() -> None:
    of = descent(save_id(10))
    of.took(save_id(10), is_load=True)
    assert line_of(of, 20) == LINE
    assert of.advance(20) is None and of.advance(15) is None
    assert of.last_step == 20 and line_of(of, 21) == LINE
    of.took(save_id(21), is_load=True)
    assert of.advance(20) is None, "step 21 is not what a save of step 20 continues"


def test_a_script_may_go_back_again_and_again_in_one_attempt() -> None:
    of = descent(save_id(10))
    of.took(save_id(10), is_load=True)
    line_of(of, 20)
    of.committed(save_id(20))
    of.took(save_id(10), is_load=True)
    second = line_of(of, 15)
    assert second.ancestors == ((LINE.id, 10),) and second.number == 4
    of.committed(save_id(15, second))
    of.took(save_id(15, second), is_load=True)
    third = line_of(of, 15)  # the same step again
    assert third.ancestors == ((second.id, 15), (LINE.id, 10)) and third > second
    assert len({LINE.id, second.id, third.id}) == 3


def test_what_was_loaded_before_a_save_says_nothing_of_the_next_one() -> None:
    of = descent(save_id(10))
    of.took(save_id(10), is_load=True)
    line_of(of, 20)
    assert of.advance(15) is None


def test_a_second_checkpointer_continues_what_the_first_has_committed_if_it_loads_it() -> None:
    first = descent(save_id(10))
    first.took(save_id(10), is_load=True)
    committed = save_id(20, line_of(first, 20))
    second = descent(committed)
    second.took(committed, is_load=True)
    assert line_of(second, 21) == LINE
    third = descent(committed)
    assert line_of(third, 21).ancestors == (), "it has loaded nothing"


def test_all_ranks_compute_the_same_line_and_other_attempts_another_one() -> None:
    lines = set()
    for seed in ("run 1", "run 1", "run 2"):
        of = descent(save_id(10), seed=seed)
        of.took(save_id(4), is_load=True)
        lines.add(line_of(of, 5))
    assert len(lines) == len({line.id for line in lines}) == 2


def test_ranks_that_disagree_go_on_in_the_line_that_was_committed() -> None:
    """The leader takes the older line: it continues the newest step."""
    of = descent(save_id(10))
    of.took(save_id(4), is_load=True)
    other = line_of(of, 11)
    assert min(LINE, other) == LINE
    of.committed(save_id(11, LINE))
    assert line_of(of, 12) == LINE


# what a line says


def test_a_line_knows_its_ancestors_through_two_forks() -> None:
    second = LINE.fork(20, number=4, began_s=0.0, seed="second", owner=NOBODY)
    third = second.fork(30, number=5, began_s=0.0, seed="third", owner=NOBODY)
    assert third.ancestors == ((second.id, 30), (LINE.id, 20))
    back = second.fork(10, number=6, began_s=0.0, seed="back", owner=NOBODY)  # below the first fork
    assert back.ancestors == ((second.id, 10), (LINE.id, 10))
    assert [third.has(LINE.id, step) for step in (20, 21)] == [True, False]
    assert [third.has(second.id, step) for step in (30, 31)] == [True, False]
    assert third.has(third.id, 99) and not second.has(third.id, 1) and not third.has(back.id, 1)
    assert [save_id(40, third).continues(save_id(step)) for step in (20, 21)] == [True, False]
    assert not save_id(40, third).continues(save_id(40, third)) and save_id(41, third).continues(save_id(40, third))


def test_a_line_of_many_forks_keeps_the_nearest_ancestors() -> None:
    line = LINE
    for step in range(100):
        line = line.fork(step, number=4 + step, began_s=0.0, seed=str(step), owner=NOBODY)
    assert Line.from_json(line.to_json()) == line
    assert line.ancestors[0][1] == 99 and len(line.ancestors) == 64


def test_the_newest_line_has_the_greatest_number_then_the_latest_beginning() -> None:
    early = LINE.fork(1, number=4, began_s=1.0, seed="a", owner=NOBODY)
    late = LINE.fork(1, number=4, began_s=2.0, seed="b", owner=NOBODY)
    assert newest_line([save_id(90), save_id(5, late), save_id(6, early)]) == late
    assert newest_line([save_id(90)], [early]) == early
    assert newest_line([]) == FIRST


@pytest.mark.parametrize("line", [FIRST, LINE, LINE.fork(7, number=9, began_s=1.5e9, seed="x", owner=OWNER)], ids=str)
def test_a_line_reads_back_as_it_was_written(line: Line) -> None:
    """That of Holdfast 0.2.0 too: a worker that continues it names it to its agent."""
    assert Line.from_json(line.to_json()) == line
    assert SaveId.from_json(save_id(3, line).to_json()) == save_id(3, line)


@pytest.mark.parametrize(
    "wrong",
    [
        {"number": -1}, {"number": 1.5}, {"number": True}, {"number": 1 << 62}, {"id": ""}, {"id": "xyz"}, {"id": 7},
        {"id": "../../../"}, {"began": 1e300}, {"began": "x"}, {"began": None}, {"ancestors": None},
        {"ancestors": [["0000000a"]]}, {"ancestors": [["0000000a", -1]]}, {"ancestors": [["x", 1]]},
        {"ancestors": [["0000000a", 1]] * 65}, {"name": None}, {"user": 7},
    ],
    ids=str,
)  # fmt: skip
def test_a_malformed_line_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(CorruptError, match="line: "):
        Line.from_json(LINE.to_json() | wrong)


def test_texts_of_a_line_are_short_and_printable() -> None:
    line = Line.from_json(LINE.to_json() | {"script": "a\x1b[31m\n" + "x" * 5000, "name": "job", "user": "u"})
    assert line.script.startswith("a?[31m?x") and len(line.script) == 400
    assert line.whose.startswith("job job of script a?") and line.whose.endswith(", user u")
    assert LINE.whose == ""
