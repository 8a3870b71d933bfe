"""A job's status from its events: states, nodes, steps, and the share of time that counted."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from rich.console import Console

from launcher.core.boosters import REFUSED
from launcher.history.fields import EVENTS, describe
from launcher.history.status import JobStatus, StatusFold, status_of
from launcher.history.view import duration, render


def event(time_s: float, name: str, **fields: Any) -> dict[str, Any]:
    return {"time": time_s, "event": name, "attempt": None, "node": None, "step": None, "seconds": None} | fields


STARTED = [
    event(0, "job_start", run_id="slurm-c-7", nodes_requested=2, spares=1, restart_count=0, cluster="slurm"),
    event(1, "node_ready", node="n1", warm=True),
    event(2, "attempt_start", attempt=0, nodes=["n1", "n2"], spares=["n3"], rung="start"),
    event(3, "restore", attempt=0, step=0, tier="none", sources={}, seconds=0.1),
    event(4, "workers_started", attempt=0, seconds=2.0),
    event(10, "first_step", attempt=0, step=1, seconds=8.0),
]
TRAINED = [*STARTED, event(19, "commit", attempt=0, tier="memory", step=10, seconds=0.2, bytes=100)]
LOST = [
    *TRAINED,
    event(31, "fault", attempt=0, kind="node_lost", node="n2", reason="no heartbeat for 2.5 s", step=20, detect=1.0),
    event(31, "attempt_end", attempt=0, outcome="fault", step=20),
    event(31, "node_out", node="n2", reason="no heartbeat for 2.5 s"),
]
SWAPPED = [
    *LOST,
    event(32, "attempt_start", attempt=1, nodes=["n1", "n3"], spares=[], rung="spare"),
    event(33, "restore", attempt=1, step=10, tier="memory", sources={"partner@n1": [1]}, seconds=0.5),
    event(33, "rebuilt", attempt=1, node="n3", rank=1, from_node="n1", bytes=100, seconds=0.1),
    event(40, "first_step", attempt=1, step=11, seconds=8.0),
]
DONE = [
    *SWAPPED,
    event(50, "attempt_end", attempt=1, outcome="done", step=21),
    event(50, "job_end", outcome="done", step=21, seconds=50.0),
]


def test_a_job_without_events_is_pending() -> None:
    assert status_of([]) == JobStatus()
    assert status_of([]).state == "pending"


def test_a_job_whose_first_attempt_begins_is_starting() -> None:
    status = status_of(STARTED[:4], now_s=6)
    assert (status.state, status.attempt, status.nodes, status.spares) == ("starting", 0, ("n1", "n2"), ("n3",))
    assert (status.run_id, status.cluster, status.step, status.ettr) == ("slurm-c-7", "slurm", 0, None)


def test_a_job_that_tells_no_steps_is_running() -> None:
    assert status_of(STARTED[:5], now_s=6).state == "running"


def test_a_training_job_tells_its_step_speed_and_commits() -> None:
    status = status_of(TRAINED, now_s=20)
    assert (status.state, status.step, dict(status.committed)) == ("training", 10, {"memory": 10})
    assert status.steps_per_s == pytest.approx(1.0)
    assert status.ettr == pytest.approx(10 / 20)


def test_a_save_that_failed_counts_once_for_each_tier_whichever_nodes_tell_of_it() -> None:
    lost = [
        event(21 + i, "problem", attempt=0, node=f"n{i}", what="save dropped", step=20, failed="memory") for i in (1, 2)
    ]
    full = event(24, "problem", attempt=0, what="flush to the s3 tier failed", step=20, failed="s3", detail="503")
    other = event(25, "problem", attempt=0, what="stop not agreed yet", detail="x")
    status = status_of([*TRAINED, *lost, full, other], now_s=26)
    assert status.failed_saves == 2
    console = Console(width=120, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(status, "7  gpt"))
    assert "memory 10  (2 saves failed)" in console.export_text()


def test_what_is_not_saved_in_a_tier_is_told_until_a_newer_step_is() -> None:
    lost = [
        event(20 + step, "problem", attempt=0, what="flush failed", step=step, failed="s3", detail="no\nroom")
        for step in (20, 30)
    ]
    of_the_one_before = event(52, "commit", attempt=0, tier="s3", step=20)
    assert status_of([*TRAINED, *lost, of_the_one_before]).unsaved == {"s3": "step 30: flush failed: no room"}
    assert status_of([*TRAINED, *lost, event(53, "commit", attempt=0, tier="s3", step=30)]).unsaved == {}
    assert status_of([*TRAINED, *lost[::-1]]).unsaved == {"s3": "step 30: flush failed: no room"}


def test_every_event_that_it_reads_is_one_that_is_written() -> None:
    assert {name.removeprefix("_on_") for name in vars(StatusFold) if name.startswith("_on_")} <= set(EVENTS)


def test_a_job_that_lost_a_node_is_recovering_and_says_why() -> None:
    status = status_of(LOST, now_s=31)
    assert (status.state, status.reason, status.faults) == ("recovering", "no heartbeat for 2.5 s", 1)
    assert dict(status.out) == {"n2": "no heartbeat for 2.5 s"}
    assert status.steps_per_s is None


def test_a_spare_that_trains_is_a_spare_no_more() -> None:
    status = status_of(SWAPPED, now_s=41)
    assert (status.state, status.nodes, status.spares, status.attempt) == ("training", ("n1", "n3"), (), 1)
    assert status.step == 11


def test_ettr_counts_neither_waiting_nor_steps_that_were_repeated() -> None:
    # Attempt 0 trained from 10 s to 30 s (the fault took 1 s to be noticed) and made steps 1 to 20, of which 1 to 10
    # were kept: 10 s count. Attempt 1 trained from 40 s to 50 s, all of it kept.
    assert status_of(DONE).ettr == pytest.approx((10 + 10) / 50, abs=0.02)


def test_a_deeper_fall_back_takes_from_earlier_attempts_too() -> None:
    again = [
        *SWAPPED,
        event(50, "fault", attempt=1, kind="process_exit", step=30, reason="exit code 1"),
        event(60, "attempt_start", attempt=2, nodes=["n1", "n3"], spares=[], rung="requeue"),
        event(61, "restore", attempt=2, step=0, tier="none"),
    ]
    assert status_of(again, now_s=100).ettr == pytest.approx(0.0)


def test_a_job_stopped_for_a_requeue_is_requeued_until_it_starts_again() -> None:
    stopped = [
        *TRAINED,
        event(20, "stop_requested", reason="preempted"),
        event(21, "attempt_end", attempt=0, outcome="stopped", step=11),
    ]
    assert status_of(stopped[:-1], now_s=20).state == "stopping"
    status = status_of(stopped, now_s=90)
    assert (status.state, status.step) == ("requeued", 11)
    again = [*stopped, event(100, "job_start", run_id="slurm-c-7", restart_count=1, cluster="slurm")]
    assert status_of(again, now_s=101).state == "starting"
    assert status_of(again, now_s=101).seconds == pytest.approx(101)


def test_an_ended_job_has_its_outcome_as_state_and_its_clock_stands() -> None:
    status = status_of(DONE, now_s=10_000)
    assert (status.state, status.step, status.seconds) == ("done", 21, 50)
    failed = status_of([*STARTED, event(12, "job_end", outcome="user_error", step=1, reason="Traceback\nKeyError: 1")])
    assert (failed.state, failed.reason) == ("user_error", "Traceback\nKeyError: 1")


def test_unknown_and_malformed_events_do_no_harm() -> None:
    strange: list[dict[str, Any]] = [
        {},
        {"event": "news", "time": 1.0},
        {"event": "commit"},
        {"time": "x", "event": "fault"},
    ]
    assert status_of([*strange, *DONE, *strange]).state == "done"


def test_the_status_is_json_data() -> None:
    assert json.loads(json.dumps(status_of(DONE).to_mapping()))["out"] == {"n2": "no heartbeat for 2.5 s"}


def test_the_table_tells_what_a_user_asks_for() -> None:
    console = Console(width=120, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(status_of(SWAPPED, now_s=41), "7  gpt"))
    shown = console.export_text()
    for expected in ("training", "n1 n3", "n2  no heartbeat for 2.5 s", "memory 10", "ETTR", "attempt 1 (spare)"):
        assert expected in shown


def test_the_error_that_ended_a_job_stands_first() -> None:
    reason = "the same error twice: rank 1\nTraceback (most recent call last):\n  File t.py\nKeyError: 1"
    ended = status_of([*STARTED, event(12, "job_end", outcome="user_error", step=1, reason=reason)])
    console = Console(width=120, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(ended, "7  gpt"))
    shown = [line.rstrip() for line in console.export_text().splitlines()]
    assert shown[:3] == ["Traceback (most recent call last):", "  File t.py", "KeyError: 1"]
    assert any(line.split() == ["state", "user_error", "KeyError:", "1"] for line in shown)
    assert shown[-1].endswith("end: user_error at step 1: the same error twice: rank 1")


def test_a_job_that_has_ended_commits_nothing_any_more() -> None:
    console = Console(width=120, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(status_of(STARTED), "7  gpt"))
    console.print(render(status_of([*STARTED, event(12, "job_end", outcome="cancelled", step=1)]), "7  gpt"))
    committed = [line.split() for line in console.export_text().splitlines() if "committed" in line]
    assert committed == [["committed", "nothing", "yet"], ["committed", "nothing"]]


@pytest.mark.parametrize(("told", "shown"), [(STARTED[:-1], "none reported"), (STARTED, "1")])
def test_a_script_that_reports_no_step_is_not_said_to_be_at_step_0(told: list[dict[str, Any]], shown: str) -> None:
    console = Console(width=120, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(status_of(told), "7  nanogpt"))
    (line,) = (line.split(maxsplit=1) for line in console.export_text().splitlines() if line.split()[:1] == ["step"])
    assert line[1].strip() == shown


def test_a_cadence_that_a_job_has_computed_is_said_in_steps_or_seconds() -> None:
    memory = {"event": "cadence", "tier": "memory", "every_s": 150.4, "every_steps": 30}
    assert describe(memory) == "from now on a save goes to memory every 30 steps (150 s)"
    shared = {"event": "cadence", "tier": "shared", "every_s": 1234.5, "every_steps": None}
    assert describe(shared) == "from now on a save goes to shared every 1,234 s"


def test_a_fault_names_its_node_once() -> None:
    told = event(5, "fault", attempt=0, kind="process_exit", node="n1", reason="n1: rank 0: killed by SIGKILL")
    assert describe(told) == "process_exit on n1: rank 0: killed by SIGKILL"
    assert (
        describe(told | {"reason": "n10: the warm process ended"}) == "process_exit on n1: n10: the warm process ended"
    )


def test_every_event_is_one_line_of_words() -> None:
    for told in DONE:
        line = describe(told)
        assert line and "\n" not in line and "None" not in line
    assert describe(LOST[7]) == "node_lost on n2 at step 20: no heartbeat for 2.5 s (noticed within 1.0 s)"


@pytest.mark.parametrize(("seconds", "text"), [(0, "00:00:00"), (3661.9, "01:01:01"), (90000, "1 d 01:00:00")])
def test_durations_are_read_at_a_glance(seconds: float, text: str) -> None:
    assert duration(seconds) == text


GROWN = [
    *TRAINED,
    event(19, "booster_asked", allocation="b1", nodes=2),
    event(19, "booster_submitted", allocation="b1", job_id="41"),
    event(19, "booster_asked", allocation="b2", nodes=2),
    event(19, "booster_submitted", allocation="b2", job_id="42"),
    event(20, "booster_waits", allocation="b2", job_id="42", reason="Priority"),
    event(21, "node_ready", node="x1", warm=True, allocation="b1"),
    event(21, "node_ready", node="x2", warm=True, allocation="b1"),
    event(30, "resize", attempt=0, size=2, to=4, reason="more nodes are there"),
    event(31, "attempt_end", attempt=0, outcome="resized", step=12),
]
RESIZED = [
    *GROWN,
    event(32, "attempt_start", attempt=1, nodes=["n1", "n2", "x1", "x2"], spares=["n3"], rung="grow"),
    event(33, "restore", attempt=1, step=12, tier="memory", sources={}, seconds=0.1),
    event(35, "first_step", attempt=1, step=13, seconds=3.0),
]


def test_status_says_why_a_job_has_its_size() -> None:
    assert status_of(TRAINED, now_s=20).size is None, "a fixed size"
    size = status_of(GROWN[:-2], now_s=30).size
    assert size == (
        "2 nodes train; booster 41 (2 nodes) is ready and joins at the next resize; "
        "booster 42 (2 nodes) waits in the queue: Priority"
    )
    starting = [told for told in GROWN[:-2] if told.get("node") != "x2"]
    assert "booster 41 (2 nodes) has its nodes, and starts on them" in (status_of(starting, now_s=30).size or "")
    size = status_of(RESIZED, now_s=36).size
    assert size is not None and size.startswith("4 nodes train; booster 41 (2 nodes) trains; booster 42")
    leaving = [*RESIZED, event(40, "node_leaving", node="x1", allocation="b1", job_id="41", reason="preempted")]
    assert "booster 41 (2 nodes) leaves: preempted" in (status_of(leaving, now_s=41).size or "")
    gone = [*leaving, event(50, "booster_end", allocation="b1", job_id="41", reason="PREEMPTED", again=350.0)]
    at = time.strftime("%H:%M:%S", time.localtime(350.0))
    ended = f"booster 41 has ended (preempted); the next is requested at {at}"
    assert ended in (status_of(gone, now_s=51).size or "")
    asked = [*leaving, event(45, "booster_asked", allocation="b3", nodes=2), gone[-1]]
    assert "has ended" not in (status_of(asked, now_s=51).size or ""), "another was requested already"
    assert "booster b3 (2 nodes) is being submitted" in (status_of(asked, now_s=51).size or "")
    scaled = [*gone, event(60, "scale_requested", nodes=2)]
    assert "2 requested by a user" in (status_of(scaled, now_s=61).size or "")
    left = [*scaled, event(70, "scale_requested")]
    assert "requested by" not in (status_of(left, now_s=71).size or "")


def test_a_booster_that_is_refused_is_in_the_size_until_one_is_submitted() -> None:
    why = "Job violates accounting/QOS policy"
    refused = [
        *TRAINED,
        event(19, "booster_asked", allocation="b1", nodes=2),
        event(19, "problem", what=REFUSED, detail=why, again=319.0),
        event(19, "booster_leaving", allocation="b1", reason=why),
    ]
    told = f"2 nodes train; a booster was refused: {why}; the next is requested at "
    assert (status_of(refused, now_s=20).size or "").startswith(told)
    refused.append(event(29, "booster_end", allocation="b1", reason=why, again=319.0))
    assert (status_of(refused, now_s=30).size or "").startswith(told)
    again = [*refused, event(320, "booster_asked", allocation="b2", nodes=2)]
    text = f"2 nodes train; booster b2 (2 nodes) is being submitted; a booster was refused: {why}"
    assert status_of(again, now_s=320).size == text
    again.append(event(321, "booster_submitted", allocation="b2", job_id="42"))
    assert status_of(again, now_s=322).size == "2 nodes train; booster 42 (2 nodes) waits in the queue"


def test_sizes_are_fields_in_json() -> None:
    elastic = status_of(RESIZED, now_s=36).to_mapping()["elastic"]
    assert json.loads(json.dumps(elastic)) == {
        "nodes": 4,
        "requested": None,
        "boosters": [
            {"id": "41", "size": 2, "state": "training", "reason": "", "nodes": ["x1", "x2"], "since": 21},
            {"id": "42", "size": 2, "state": "queued", "reason": "Priority", "nodes": [], "since": 19},
        ],
        "ended": None,
        "refused": "",
        "again": None,
    }
    assert status_of(TRAINED, now_s=20).to_mapping()["elastic"] is None


def test_a_fault_of_a_booster_does_not_interrupt_the_job() -> None:
    told = event(20, "fault", kind="booster_start", node="n7", reason="booster 41 did not start on n7")
    status = status_of([*TRAINED, told], now_s=21)
    assert (status.state, status.faults, status.lost_s) == ("training", 1, {"start": 10.0})


def test_a_resize_is_no_fault_and_its_time_counts_as_lost() -> None:
    assert status_of(GROWN, now_s=31).state == "resizing"
    status = status_of(RESIZED, now_s=36)
    assert (status.state, status.faults, status.step) == ("training", 0, 13)
    assert status.lost_s == {"start": 10.0, "resize": 4.0}
    assert status.ettr == pytest.approx((31 - 10 + 36 - 35) / 36)
    preempted = [*RESIZED, event(40, "fault", attempt=1, kind="preempted", node="x1", reason="lost", detect=0.0)]
    assert status_of(preempted, now_s=41).faults == 0


def test_a_node_that_was_lost_with_its_booster_is_neither_out_nor_a_spare() -> None:
    lost = event(40, "node_out", node="x1", reason="its connection closed", lost=True)
    back = event(50, "node_back", node="x1", allocation="b1", job_id="41")
    assert describe(back) == "x1 may be used again: it was lost as booster 41 ended"
    left = event(45, "attempt_start", attempt=2, nodes=["n1", "n2"], spares=[], rung="shrink")
    smaller = status_of([*RESIZED, lost, left], now_s=46).size
    assert smaller is not None and "booster 41 (2 nodes) has lost nodes: x1" in smaller
    status = status_of([*RESIZED, lost, left, back], now_s=51)
    assert (dict(status.out), status.spares) == ({}, ())


def test_time_lost_is_told_by_its_cause() -> None:
    assert status_of(SWAPPED, now_s=41).lost_s == {"start": 10.0, "node_lost": 10.0}


BY_SPARE = event(30, "node_leaving", attempt=0, node="n2", cause="drained", reason="drained by root: a broken fan")
LEFT = [
    *TRAINED,
    BY_SPARE,
    event(31, "attempt_end", attempt=0, outcome="resized", step=12),
    event(32, "attempt_start", attempt=1, nodes=["n1", "n3"], spares=[], rung="spare", holders=["n2"]),
    event(33, "restore", attempt=1, step=12, tier="memory", sources={}, seconds=0.1),
    event(35, "first_step", attempt=1, step=13, seconds=3.0),
    event(36, "node_out", node="n2", reason="drained by root: a broken fan", cause="drained"),
]


def test_status_says_that_a_spare_takes_a_nodes_place_and_why_the_node_is_out() -> None:
    leaving = status_of([*TRAINED, BY_SPARE], now_s=30)
    assert (leaving.state, leaving.reason) == (
        "resizing",
        "a spare takes the place of n2: drained by root: a broken fan",
    )
    left = status_of(LEFT, now_s=40)
    assert (left.state, left.out, left.faults) == ("training", {"n2": "drained by root: a broken fan"}, 0)
    assert left.size is None, "its size is the same"
    assert describe(BY_SPARE) == "n2 is being left, a spare takes its place: drained by root: a broken fan"
    assert describe(LEFT[-1]) == "n2 has left the job: drained by root: a broken fan"
