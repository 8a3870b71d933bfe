"""What each resize cost comes from the events alone."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.history.resize import resizes
from launcher.history.status import status_of


def event(time: float, name: str, **fields: Any) -> dict[str, Any]:
    return {"time": time, "event": name, **fields}


def attempt(time: float, number: int, nodes: int, rung: str) -> dict[str, Any]:
    return event(time, "attempt_start", attempt=number, nodes=[f"n{i}" for i in range(nodes)], rung=rung)


STARTED = [
    event(100.0, "job_start"),
    attempt(100.0, 0, 2, "start"),
    event(110.0, "first_step", attempt=0, step=1, seconds=10.0),
]
ASKED = event(150.0, "resize", attempt=0, size=2, to=4, reason="more nodes are there")
SAVED = event(151.0, "commit", attempt=0, step=40, tier="memory", seconds=0.25)
ENDED = event(152.0, "attempt_end", attempt=0, step=40, outcome="resized")
GROWN = [
    attempt(152.5, 1, 4, "grow"),
    event(153.0, "workers_started", attempt=1, seconds=0.5),
    event(153.5, "restore", attempt=1, step=40, tier="memory", seconds=0.25),
    event(154.5, "first_step", attempt=1, step=41, seconds=2.0),
]


def test_a_resize_costs_the_time_from_the_agreed_step_to_the_next_one() -> None:
    events = [*STARTED, ASKED, SAVED, ENDED, *GROWN]
    (only,) = resizes(events)
    assert (only.attempt, only.rung, only.size, only.to) == (1, "grow", 2, 4)
    assert (only.stopped_s, only.ended_s, only.trained_s) == (150.75, 152.0, 154.5)
    assert (only.met_s, only.planned_s, only.started_s) == (153.25, 153.5, 153.0)
    assert only.seconds == pytest.approx(3.75)
    assert status_of(events, now_s=160).lost_s == {"start": 10.0, "resize": 3.75}


def test_without_a_save_of_the_last_step_it_counts_from_the_end_of_the_attempt() -> None:
    (unsaved,) = resizes([*STARTED, ASKED, ENDED, *GROWN])
    (older,) = resizes([*STARTED, ASKED, SAVED | {"step": 35}, ENDED, *GROWN])
    assert unsaved.stopped_s == older.stopped_s == 152.0


def test_a_shrink_after_a_loss_counts_from_the_loss() -> None:
    fault = event(151.0, "fault", kind="node_lost", node="n1", detect=0.5)
    lost = ENDED | {"outcome": "fault", "step": 43}
    (only,) = resizes([*STARTED, SAVED, fault, lost, attempt(152.5, 1, 1, "shrink"), *GROWN[1:]])
    assert (only.rung, only.size, only.to, only.stopped_s) == ("shrink", 2, 1, 150.5)


def test_a_resize_that_a_fault_interrupts_lasts_until_training_goes_on() -> None:
    fault = event(153.2, "fault", kind="process_exit", node="n3")
    again = [event(153.6, "attempt_end", attempt=1, outcome="fault"), attempt(154.0, 2, 4, "workers")]
    trains = event(156.0, "first_step", attempt=2, step=41, seconds=2.0)
    (only,) = resizes([*STARTED, ASKED, SAVED, ENDED, *GROWN[:2], fault, *again, trains])
    assert (only.attempt, only.to, only.trained_s) == (2, 4, 156.0)
    assert only.seconds == pytest.approx(5.25)


def test_one_under_way_has_no_cost_yet_and_a_restart_of_the_same_size_is_none() -> None:
    (only,) = resizes([*STARTED, ASKED, SAVED, ENDED, GROWN[0]])
    assert only.seconds is None
    assert not resizes([*STARTED, ENDED | {"outcome": "fault"}, attempt(152.5, 1, 2, "workers"), *GROWN[1:]])
