"""Which rank a hang is put down to, by the facts of all ranks."""

from __future__ import annotations

import pytest

from launcher.diagnosis.hang_facts import Entered, RankFacts, RankPlace, is_unusual, ranks_of, ranks_text
from launcher.diagnosis.hang_verdict import HangVerdict, judge

GLOO = ("wait (/lib/torch/distributed/distributed_c10d.py:9)", "train (/job/train.py:30)")
LOCKED = ("load_batch (/job/train.py:12)", "train (/job/train.py:29)")
LOADER = ("select (/usr/lib/python3.11/selectors.py:4)", "next (/x/torch/utils/data/dataloader.py:7)", *LOCKED)
TEARDOWN = ("destroy_process_group (/x/torch/distributed/distributed_c10d.py:2)", "train (/job/train.py:40)")


def rank(
    rank: int,
    *frames: str,
    state: str = "S",
    boundary: int | None = None,
    entered: tuple[Entered, ...] = (),
    wait: str = "",
    runs_threads: bool | None = None,
    is_unusual: bool = False,
    pid: int = 0,
) -> RankFacts:
    return RankFacts(
        rank=rank,
        node=f"node{rank // 2}",
        state=state,
        boundary=boundary,
        frames=frames,
        entered=entered,
        wait=wait,
        runs_threads=runs_threads,
        is_unusual=is_unusual,
        pid=pid,
    )


def entered(
    seq: int, op: str = "all_reduce", group: str = "0", ranks: str = "0-3", what: str = "[[4]]", is_over: bool = False
) -> Entered:
    return Entered(group=group, desc="dp", ranks=ranks, seq=seq, op=op, what=what, is_over=is_over)


def waiting(number: int, *collectives: Entered, is_unusual: bool = False) -> RankFacts:
    return rank(number, *GLOO, entered=collectives, is_unusual=is_unusual)


def named(verdict: HangVerdict) -> list[int]:
    return [each.rank for each in verdict.guilty]


@pytest.mark.parametrize(
    ("stacks", "found", "why"),
    [
        ([rank(0, *GLOO), rank(1, *GLOO), rank(2, state="T"), rank(3, *GLOO)], 2, "stopped by a signal"),
        ([rank(0, *GLOO), rank(1, state="D")], 1, "waits for a file system or device"),
        ([rank(0, *GLOO), rank(1)], 1, "does not answer"),
        ([rank(0, *LOCKED), rank(1, *GLOO)], 0, "not in the collective that others wait in: it is in its own code, in"),
        ([rank(0, *LOCKED, boundary=9), rank(1, *GLOO, boundary=8)], 0, "not in the collective"),
        ([rank(0, *GLOO, boundary=9), rank(1, *GLOO, boundary=8)], 1, "behind the others by its steps"),
        ([rank(0, "a (/x:1)"), rank(1, "a (/x:1)"), rank(2, "b (/x:2)")], 2, "elsewhere than most"),
        ([rank(0, *LOCKED), rank(1, *LOCKED), rank(2, *GLOO)], 0, "so is rank 1"),
        ([rank(0, state=""), rank(1, *LOCKED)], 1, "the only one that still runs"),
        ([rank(0, state="Z"), rank(1, *GLOO), rank(2, *GLOO)], 0, "has ended before the others"),
        ([rank(0, *LOCKED)], 0, "load_batch"),
    ],
)
def test_the_rank_that_others_wait_for_is_named_by_stacks_alone(stacks: list[RankFacts], found: int, why: str) -> None:
    verdict = judge(reversed(stacks))
    assert named(verdict)[0] == found
    assert f"rank {found} on node{found // 2}: " in verdict.text and why in verdict.text


@pytest.mark.parametrize(
    ("absent", "place"),
    [
        (rank(2, *LOCKED, entered=(entered(6),)), RankPlace.USER_CODE),
        (rank(2, *LOCKED, entered=(entered(6),), wait="futex_do_wait"), RankPlace.LOCK),
        (rank(2, *LOCKED, entered=(entered(6),), wait="request_wait_answer"), RankPlace.DISK),
        (rank(2, *LOCKED, entered=(entered(6),), wait="rpc_wait_bit_killable"), RankPlace.DISK),
        (rank(2, *LOADER, entered=(entered(6),)), RankPlace.LOADER),
        (rank(2, *TEARDOWN, entered=(entered(6),)), RankPlace.TEARDOWN),
        (rank(2, state="", entered=()), RankPlace.GONE),
        (rank(2, *LOCKED, runs_threads=False), RankPlace.GIL),
        (rank(2, *GLOO, runs_threads=False, state="T"), RankPlace.STOPPED),
    ],
)
def test_the_rank_that_is_missing_in_a_collective_is_named_with_its_place(absent: RankFacts, place: RankPlace) -> None:
    verdict = judge([waiting(0, entered(7)), waiting(1, entered(7)), absent, waiting(3, entered(7))])
    assert named(verdict) == [2] and str(place) in verdict.text


def test_the_sentence_names_the_collective_and_who_waits_in_it() -> None:
    absent = rank(2, *LOCKED, entered=(entered(6),))
    verdict = judge([waiting(0, entered(6), entered(7)), waiting(1, entered(7)), absent, waiting(3, entered(7))])
    assert verdict.text == (
        "rank 2 on node1: has not entered all_reduce 7 of process group 0 (dp), in which ranks 0-1,3 wait: "
        "it is in its own code, in load_batch (/job/train.py:12)"
    )
    assert verdict.proof == entered(7)


def test_who_waits_for_a_rank_that_waits_is_not_at_fault() -> None:
    """Ranks 2 and 3 wait for 0, which waits for 1 in another group."""
    left = entered(4, group="1", ranks="0-1")
    facts = [waiting(0, entered(6), left), rank(1, *LOADER, entered=(entered(6),))]
    facts += [waiting(2, entered(6), entered(7)), waiting(3, entered(6), entered(7))]
    verdict = judge(facts)
    assert named(verdict) == [1] and verdict.proof in (left, entered(7))


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (entered(7, op="barrier", what="[]"), "entered barrier as number 7 of process group 0; the others entered all"),
        (entered(7, what="[[5]]"), "entered all_reduce of [[5]] as number 7"),
    ],
)
def test_a_rank_with_another_operation_or_size_is_named(odd: Entered, why: str) -> None:
    verdict = judge([waiting(0, entered(7)), waiting(1, odd), waiting(2, entered(7)), waiting(3, entered(7))])
    assert named(verdict) == [1] and why in verdict.text


def test_operations_whose_ranks_may_pass_other_sizes_are_no_disagreement() -> None:
    facts = [waiting(0, entered(7, op="gather", what="[[4]] -> [[4], [4]]", ranks="0-1"))]
    facts += [waiting(1, entered(7, op="gather", what="[[4]] -> []", ranks="0-1"))]
    assert named(judge(facts)) == []


def test_of_ranks_that_wait_for_each_other_the_fewest_are_named() -> None:
    first, second = entered(3, group="1"), entered(3, group="2")
    facts = [waiting(0, first), waiting(1, first), waiting(2, first), waiting(3, second)]
    verdict = judge(facts)
    assert named(verdict) == [3]
    assert verdict.text == (
        "rank 3 on node1: waits in all_reduce 3 of process group 2 (dp) for ranks 0-2, and has not entered "
        "all_reduce 3 of process group 1 (dp), in which rank 0 waits, in train (/job/train.py:30)"
    )


def test_of_as_many_the_rank_is_named_that_did_something_new() -> None:
    first, second = entered(3, group="1", ranks="0-1"), entered(3, group="2", ranks="0-1")
    assert named(judge([waiting(0, first), waiting(1, second, is_unusual=True)])) == [1]
    undecided = judge([waiting(0, first), waiting(1, second)])
    assert undecided.guilty == () and undecided.text.startswith("a deadlock of process groups: rank 0 waits in")


def test_a_rank_that_entered_a_collective_too_many_is_named() -> None:
    own = [rank(number, *LOCKED, entered=(entered(6),)) for number in (0, 1, 2)]
    verdict = judge([*own, waiting(3, entered(6), entered(7, op="barrier"), is_unusual=True)])
    assert named(verdict) == [3] and "which no other rank has entered" in verdict.text


def test_a_collective_that_is_complete_is_not_waited_for() -> None:
    over = entered(7, is_over=True)
    facts = [waiting(0, over), waiting(1, over), rank(2, *LOCKED, entered=(entered(6),)), waiting(3, over)]
    assert judge(facts).proof is None and named(judge(facts)) == [2]


def test_groups_of_one_name_with_other_ranks_are_other_groups() -> None:
    facts = [waiting(0, entered(5, ranks="0-1")), rank(1, *LOADER, entered=(entered(4, ranks="0-1"),))]
    facts += [waiting(2, entered(9, ranks="2-3")), waiting(3, entered(9, ranks="2-3"))]
    assert named(judge(facts)) == [1]


def test_nobody_is_named_where_all_look_alike() -> None:
    verdict = judge([rank(0, *GLOO), rank(1, *GLOO)])
    assert (verdict.guilty, verdict.text) == ((), "no single rank stands out")
    assert "no stacks came from n3" in judge([rank(0, *GLOO), rank(1, *GLOO)], ["n3"]).text


def test_the_frame_shown_is_the_scripts_own() -> None:
    frames = ("acquire (/usr/lib/python3.11/threading.py:3)", "f (/v/site-packages/x/y.py:2)", "g (/job/a.py:1)")
    assert rank(0, *frames).where == "g (/job/a.py:1)"


def test_what_follows_another_collective_than_before_is_unusual() -> None:
    assert is_unusual(["a", "b", "a", "b", "a", "c"])
    assert not is_unusual(["a", "b", "a", "b", "a", "b"])
    assert not is_unusual(["a", "b", "c"]), "the first time is not unusual"
    assert not is_unusual([]) and not is_unusual(["a"])


def test_ranks_are_written_short() -> None:
    assert ranks_text([0, 1, 2, 7, 9, 8]) == "0-2,7-9" and ranks_text([]) == ""
    assert ranks_of("0-2,7") == (0, 1, 2, 7) and ranks_of("") == ()


def test_what_measures_the_steps_does_not_hide_the_collective_that_a_rank_waits_in() -> None:
    frames = [
        "timed (/opt/launcher/runner/step_hooks.py:48)",
        "all_reduce (/opt/torch/distributed/distributed_c10d.py:9)",
    ]
    report = {"rank": 0, "state": "S", "boundary": None, "frames": [*frames, "<module> (train.py:12)"], "wait": ""}
    facts = RankFacts.from_report("n0", report | {"runs_threads": True, "entered": [], "is_unusual": False, "pid": 7})
    assert (facts.place, facts.where) == (RankPlace.COLLECTIVE, "<module> (train.py:12)")
