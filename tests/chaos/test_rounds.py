"""A campaign's verdict is right: each way in which a round can be wrong is found in recorded events."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from catalogue import CATALOGUE, damage, delete, drawable, flip_bits, truncate
from verdict import DEGRADED, MEMORY_DAMAGED, OK, READ_ONLY, WRONG, Injected, Round, away_at_cancel, costs, lost_steps

START = {"event": "attempt_start", "time": 1.0, "attempt": 0, "nodes": ["n1", "n2"], "spares": ["n3"]}
COMMIT = {"event": "commit", "time": 5.0, "attempt": 0, "tier": "memory", "step": 40}
AGAIN = {"event": "attempt_start", "time": 12.0, "attempt": 1, "nodes": ["n1", "n3"], "spares": []}
FIRST = {"event": "first_step", "time": 14.0, "attempt": 1, "step": 41}
DONE = {"event": "job_end", "time": 20.0, "outcome": "done"}
CRASH = Injected(name="node crashed", kind="node", nodes=1, ends=None, time=10.0)
UNWRITABLE = Injected(name=READ_ONLY, kind="storage", nodes=0, ends=None, time=10.0)
CANCEL = Injected(name="scancel", kind="slurm", nodes=0, ends="cancelled", time=15.0)


def restore(step: int) -> dict[str, object]:
    return {"event": "restore", "time": 13.0, "attempt": 1, "step": step, "tier": "memory"}


def a_round(step: int = 40, end: dict[str, object] | None = DONE, tolerance: int = 1, **changes: object) -> Round:
    events = [START, COMMIT, AGAIN, restore(step), FIRST, *([end] if end else [])]
    return Round(**{"injected": [CRASH], "events": events, "tolerance": tolerance} | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("a", "verdict", "reason"),
    [
        (a_round(), OK, ""),
        (a_round(injected=[CRASH, CANCEL], end=DONE | {"outcome": "cancelled"}), OK, ""),
        (a_round(step=30, tolerance=0), DEGRADED, "more lost than the scheme covers"),
        (a_round(step=30), WRONG, "committed steps lost"),
        (a_round(end=None, stood_still="commit"), WRONG, "no outcome: commit"),
        (a_round(end=None, log_refused=True), WRONG, "no outcome"),
        (a_round(end=None, log_refused=True, injected=[UNWRITABLE]), DEGRADED, "Slurm could not open the job's log"),
        (a_round(end=DONE | {"outcome": "no_progress"}), WRONG, "ended as no_progress"),
        (a_round(injected=[CRASH, CANCEL]), WRONG, "ended as done, not cancelled"),
        (a_round(wrong_digests=[40]), WRONG, "weights differ"),
        (a_round(leftovers=["n1: pid 7"]), WRONG, "left over"),
    ],
)
def test_a_round_is_judged_by_what_must_follow(a: Round, verdict: str, reason: str) -> None:
    assert a.verdict[0] == verdict and reason in a.verdict[1]


def test_a_save_that_is_under_way_while_memory_is_damaged_does_not_count() -> None:
    def lost(at_s: float) -> int:
        damage = Injected(name=MEMORY_DAMAGED, kind="storage", nodes=1, ends=None, time=at_s, until=at_s + 0.5)
        commits = [COMMIT | {"seconds": 2.0}]
        return len(lost_steps([START, *commits, AGAIN, restore(30), FIRST, DONE], [damage]))

    assert [lost(at_s) for at_s in (2.0, 2.6, 4.9, 6.0)] == [1, 0, 0, 1]


def test_memory_may_stay_on_a_node_that_was_out_when_slurm_cancelled_the_job() -> None:
    out = [{"event": "node_out", "node": "n1"}, {"event": "node_out", "node": "n2"}]
    back = {"event": "node_ready", "node": "n2"}
    assert away_at_cancel([*out, back, {"event": "job_end", "outcome": "cancelled"}]) == {"n1"}
    assert away_at_cancel([*out, {"event": "job_end", "outcome": "done"}]) == away_at_cancel(out) == set()


def test_a_fault_costs_the_time_to_the_next_step_and_the_steps_trained_again() -> None:
    (cost,) = costs(a_round(step=30).events, [CRASH])
    assert (cost.seconds, cost.steps) == (4.0, 10)


def test_a_fault_that_interrupts_nothing_costs_nothing() -> None:
    (cost,) = costs([START, COMMIT, DONE], [CRASH])
    assert (cost.seconds, cost.steps) == (None, None)
    assert costs([START, COMMIT], []) == [], "a job that never trained was given no fault"


@pytest.mark.parametrize("how", [flip_bits, truncate, delete])
def test_damage_changes_some_files_and_leaves_the_others(tmp_path: Path, how: Callable[..., None]) -> None:
    before = {f"{number}.bin": bytes(range(100)) for number in range(5)}
    for name, content in before.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "empty").touch()
    names = damage(tmp_path, random.Random(1), how)
    after = {path.name: path.read_bytes() for path in tmp_path.glob("*.bin")}
    assert len(names) == 3 and {name for name in before if after.get(name) != before[name]} == set(names)


def test_only_a_last_fault_may_end_the_job_and_s3_faults_need_s3() -> None:
    names = {fault.name for fault in drawable({"checkpoint": True, "spares": True}, last=False)}
    assert "scancel" not in names and "S3 killed" not in names and "node crashed" in names
    assert {fault.name for fault in drawable({"s3": True, "checkpoint": True, "spares": True}, last=True)} == set(
        CATALOGUE
    )
