"""Seconds per recovery come from the events alone."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.history.recovery import cold_start_s, recoveries


def event(time: float, name: str, **fields: Any) -> dict[str, Any]:
    return {"time": time, "event": name, **fields}


HISTORY = [
    event(100.0, "job_start"),
    event(101.0, "attempt_start", attempt=0, rung="start"),
    event(102.5, "workers_started", seconds=1.0),
    event(111.5, "first_step", step=1, seconds=10.0),
    event(120.0, "fault", kind="node_lost", node="n1", step=40, detect=2.5),
    event(120.1, "fault", kind="process_exit", node="n2", step=40),
    event(120.5, "attempt_start", attempt=1, rung="spare"),
    event(121.0, "workers_started", seconds=0.25),
    event(122.0, "restore", step=35, tier="memory"),
    event(124.0, "first_step", step=36, seconds=3.0),
]


def test_a_recovery_counts_from_the_last_sign_of_life() -> None:
    (only,) = recoveries(HISTORY)
    assert (only.node, only.kind, only.rung) == ("n1", "node_lost", "spare")
    assert (only.step_lost, only.step_resumed, only.restored_from) == (40, 35, "memory")
    assert only.detect_s == pytest.approx(2.5)
    assert only.workers_s == pytest.approx(3.25)
    assert only.next_step_s == pytest.approx(6.0)


def test_a_known_time_of_failure_replaces_the_silence() -> None:
    (only,) = recoveries(HISTORY, {"n1": 119.0})
    assert only.detect_s == pytest.approx(1.0) and only.next_step_s == pytest.approx(4.5)


def test_a_recovery_that_is_under_way_has_no_end_yet() -> None:
    (only,) = recoveries(HISTORY[:-3])
    assert only.next_step_s is None and only.workers_s is None


def test_cold_start_is_from_submission_where_it_is_known() -> None:
    assert cold_start_s(HISTORY) == pytest.approx(11.0)
    assert cold_start_s(HISTORY, submitted_at=98.0) == pytest.approx(13.0)
    assert cold_start_s(HISTORY[:2]) is None


def test_a_fault_on_the_way_back_belongs_to_the_same_recovery() -> None:
    again = [
        event(121.5, "fault", kind="process_exit", node="n2"),
        event(121.6, "attempt_start", attempt=2, rung="workers"),
        event(123.0, "first_step", step=36, seconds=1.0),
    ]
    (only,) = recoveries([*HISTORY[:-3], *again])
    assert (only.kind, only.rung) == ("node_lost", "workers")
    assert only.next_step_s == pytest.approx(5.1)


def test_a_later_resize_or_requeue_is_no_part_of_a_recovery_that_is_over() -> None:
    later = [
        event(300.0, "attempt_start", attempt=2, rung="grow"),
        event(301.0, "workers_started", seconds=1.0),
        event(302.0, "restore", step=90, tier="s3"),
        event(304.0, "first_step", step=91, seconds=4.0),
    ]
    assert recoveries([*HISTORY, *later]) == recoveries(HISTORY)
