"""Which steps may go, which is the newest, who takes over: small decisions, each of which would cost a step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tier_kit import WORLD, save_id, shard

from ckpt import newest_steps
from ckpt.errors import CorruptError
from ckpt.format.lasting import Best, Lasting, merged_metrics
from ckpt.format.line import FIRST, NOBODY, Line
from ckpt.format.manifest import Manifest, new_manifest, parse_manifest
from ckpt.format.shard_record import seal_json
from ckpt.tiers.catalog import CatalogEntry
from ckpt.tiers.claim import Claim
from ckpt.tiers.posix import SharedTier
from ckpt.tiers.retention import superfluous, why_lasting
from ckpt.tiers.tier import node_places


def manifest(step: int, attempt: int = 0, line: Line = FIRST, run: str = "run") -> Manifest:
    save = save_id(step, attempt, run, line)
    return new_manifest(save, WORLD, 0.0, node_places("node-00000.data", [shard(save, r)[0] for r in range(WORLD)]))


def entry(
    step: int, *, committed: bool = True, attempt: int = 0, run: str = "ours", line: Line = FIRST, foreign: bool = False
) -> CatalogEntry:
    tag = f"{run}-{line.id}" if line.id else run
    return CatalogEntry(
        name=f"{step}.{attempt}.{tag}", step=step, attempt=attempt, tag=tag,
        manifest=manifest(step, attempt, line, run) if committed else None, reason=None, damaged=False, foreign=foreign,
    )  # fmt: skip


def fork(line: Line, step: int | None, number: int) -> Line:
    return line.fork(step, number=number, began_s=0.0, seed=str(number), owner=NOBODY)


def ids(line: Line, *steps: int, run: str = "ours") -> set[str]:
    return {f"{step}.0.{run}-{line.id}" for step in steps}


def gone(*entries: CatalogEntry, keep: int = 1, complete: set[int] | None = None) -> set[str]:
    saves = None if complete is None else {save_id(step, run_id="ours") for step in complete}
    return {found.name for found in superfluous(entries, keep, saves)}


def test_what_is_not_complete_on_all_nodes_pushes_nothing_out() -> None:
    assert gone(entry(30), entry(20), complete={20}) == set()
    assert gone(entry(30), entry(20), complete={30, 20}) == {"20.0.ours"}
    assert gone(entry(30), entry(20), entry(10), complete={30, 10}) == {"20.0.ours", "10.0.ours"}


def test_at_least_the_newest_committed_step_stays() -> None:
    assert gone(entry(20), entry(10), keep=0) == {"10.0.ours"}


def test_a_half_written_step_goes_with_a_newer_one_of_its_own_run_alone() -> None:
    steps = [entry(30), entry(25, committed=False), entry(24, committed=False, run="theirs"), entry(20)]
    assert gone(*steps, keep=2) == {"25.0.ours"}


def test_a_half_written_repetition_of_the_newest_step_stays() -> None:
    """A later attempt may be writing it."""
    assert gone(entry(20, attempt=1, committed=False), entry(20)) == set()


FIRST_LINE = fork(FIRST, None, 1)
BACK = fork(FIRST_LINE, 20, 2)  # begun after a load of step 20


def test_a_script_that_goes_back_removes_nothing_of_the_line_that_it_leaves() -> None:
    before = [entry(step, line=FIRST_LINE) for step in (50, 40, 30, 20, 10)]
    after = [entry(step, line=BACK) for step in (45, 35, 25)]
    assert gone(*before, keep=2) == ids(FIRST_LINE, 30, 20, 10)
    assert gone(*before, *after[2:], keep=2) == ids(FIRST_LINE, 30, 10), "steps 25 and 20 are of the newest descent"
    assert gone(*before, *after, keep=2) == ids(FIRST_LINE, 30, 20, 10) | ids(BACK, 25)
    assert gone(*before, *after, keep=3) == ids(FIRST_LINE, 20, 10)


def test_a_line_that_another_one_continues_from_its_last_step_has_none_that_stay_by_themselves() -> None:
    on = fork(FIRST_LINE, 30, 2)
    steps = [entry(50, line=on), entry(40, line=on), entry(30, line=FIRST_LINE), entry(20, line=FIRST_LINE)]
    assert gone(*steps, keep=2) == ids(FIRST_LINE, 30, 20)


def test_of_the_lines_that_a_run_which_never_loads_has_left_only_the_last_one_stays() -> None:
    lines = [FIRST_LINE, fork(FIRST, None, 2), fork(FIRST, None, 3)]
    ours = [entry(10, line=line) for line in lines]
    theirs = [entry(10, line=fork(FIRST, None, 0), run="theirs")]
    assert gone(*ours) == ids(lines[0], 10)
    assert gone(*ours, *theirs) == ids(lines[0], 10)


def test_steps_of_another_format_are_never_removed() -> None:
    foreign = entry(10, committed=False, foreign=True)
    assert gone(entry(30), foreign, entry(20)) == {"20.0.ours"}
    assert gone(foreign) == set()


def test_a_half_written_step_of_another_line_goes_once_it_is_older_than_all_that_stay() -> None:
    half = entry(30, committed=False, line=FIRST_LINE)
    assert gone(entry(25, line=BACK), half, entry(20, line=FIRST_LINE), keep=1) == ids(FIRST_LINE, 20)
    assert gone(entry(45, line=BACK), half, keep=1) == ids(FIRST_LINE, 30)


def test_as_many_steps_as_a_long_run_leaves_are_told_apart_in_no_time() -> None:
    """Each compared with each other would take hours: the test's own limit ends that."""
    newest = manifest(1)
    steps = [
        replace(entry(step, committed=False), manifest=replace(newest, save=save_id(step)) if step % 2 else None)
        for step in range(100_000, 0, -1)
    ]
    assert len(gone(*steps, keep=5)) == 100_000 - 6


def scored(step: int, attempt: int = 0, line: Line = FIRST, **metrics: float) -> CatalogEntry:
    found = entry(step, attempt=attempt, line=line)
    assert found.manifest is not None
    found.manifest.shards.metrics = metrics
    return found


LOWEST = Lasting(best=Best(metric="loss", mode="min"))


def lasting(*entries: CatalogEntry, rules: Lasting = LOWEST) -> dict[str, str]:
    return {name.partition(".ours")[0]: why for name, why in why_lasting(entries, rules).items()}


def test_a_step_without_the_metric_is_never_the_best() -> None:
    assert lasting(scored(30), scored(20, accuracy=0.1), scored(10, loss=7.0)) == {"10.0": "best loss"}
    assert lasting(scored(30), scored(20)) == {}


def test_of_equal_steps_the_later_one_is_better_and_of_a_repeated_step_the_last_save_counts() -> None:
    assert lasting(scored(20, loss=1.0), scored(10, loss=1.0)) == {"20.0": "best loss"}
    assert lasting(scored(20, attempt=1, loss=2.0), scored(20, loss=0.0), scored(10, loss=1.0)) == {"10.0": "best loss"}
    milestones = Lasting(every_steps=10)
    assert lasting(scored(20, attempt=1), scored(20), scored(15), rules=milestones) == {"20.1": "milestone"}


def test_a_step_may_last_for_two_reasons_and_each_says_which_place_it_has() -> None:
    highest = Lasting(every_steps=20, best=Best(metric="accuracy", mode="max", n=2))
    found = lasting(*(scored(step, accuracy=step / 100) for step in (50, 40, 30, 20)), rules=highest)
    assert found == {"50.0": "best accuracy", "40.0": "milestone, best accuracy, no. 2", "20.0": "milestone"}


def test_what_lasts_is_counted_in_each_line_that_stays() -> None:
    left = [scored(step, line=FIRST_LINE, loss=loss) for step, loss in ((50, 5.0), (40, 1.0), (30, 3.0), (20, 2.0))]
    ours = [scored(step, line=BACK, loss=loss) for step, loss in ((45, 4.0), (35, 3.5))]
    rules = {"lasting": LOWEST}
    names = {found.name for found in superfluous([left[0], ours[0], *left[1:2], ours[1], *left[2:]], 1, **rules)}
    assert names == ids(BACK, 35) | ids(FIRST_LINE, 30), "step 20 is the best of the newest descent, 40 of the left one"


def test_a_half_written_step_goes_though_an_older_milestone_stays() -> None:
    steps = [entry(30), entry(25, committed=False, run="theirs"), entry(10)]
    assert {found.name for found in superfluous(steps, 1, lasting=Lasting(every_steps=10))} == {"25.0.theirs"}


def test_metrics_that_are_no_numbers_make_a_record_a_damaged_one() -> None:
    whole = manifest(10).to_json()
    assert parse_manifest(seal_json({**whole, "metrics": {"loss": 1}, "of a later release": []})).metrics == {
        "loss": 1.0
    }
    for bad in ({"loss": "low"}, {"loss": True}, {"n": 1.0}, {"": 1.0}, [1.0], {"loss": None}):
        with pytest.raises(CorruptError, match="metrics: got"):
            parse_manifest(seal_json({**whole, "metrics": bad}))


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0.0, 1.0, 2.0])), min_size=1, max_size=8), st.integers(0, 8)
)
def test_metrics_merge_to_the_same_whichever_node_tells_first(rows: list[tuple[int, float]], cut: int) -> None:
    given_rows = [("loss", rank, value) for rank, value in dict(rows).items()]
    (all_at_once,) = merged_metrics(given_rows)
    (by_node,) = merged_metrics([*merged_metrics(given_rows[cut:]), *merged_metrics(given_rows[:cut])])
    lowest = min(given_rows, key=lambda row: row[1])
    assert all_at_once[:3] == by_node[:3] == lowest
    assert (len(all_at_once) > 3) == (len(by_node) > 3) == (len({value for _, _, value in given_rows}) > 1)


def test_the_newest_step_is_the_newest(tmp_path) -> None:  # type: ignore[no-untyped-def]
    tier = SharedTier(tmp_path, "ns")
    tier.prepare()
    for step in (10, 20):
        save = save_id(step)
        tier.commit(save, WORLD, tier.write_node(save, 0, [shard(save, rank) for rank in range(WORLD)]))
    assert newest_steps({"namespace": "ns", "shared": {"path": str(tmp_path)}}) == {"shared": 20}


def test_an_attempt_started_again_takes_its_own_claim_over() -> None:
    claim = Claim(run_id="r", attempt=1, nonce="n", user="u", host="h", job="7", since_s=1.5e9)
    assert claim.yields_to(replace(claim, nonce="m")) and not claim.yields_to(replace(claim, attempt=0))


def test_a_sealed_manifest_without_each_rank_or_of_another_kind_is_refused() -> None:
    whole = manifest(10)
    assert parse_manifest(seal_json(whole.to_json())).save == whole.save
    with pytest.raises(CorruptError, match="expected one of each rank"):
        parse_manifest(seal_json({**whole.to_json(), "world_size": WORLD + 1}))
    with pytest.raises(CorruptError, match="expected one node"):
        parse_manifest(seal_json(whole.to_json()), partial=True)
