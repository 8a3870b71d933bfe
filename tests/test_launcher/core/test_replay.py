"""What a supervisor that goes on with a job knows of it: the events, whatever is in their file."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from core_kit import Play, make_job
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from launcher.core import commands as do
from launcher.core.gains import Gains
from launcher.core.recovery import choose_rung
from launcher.core.replay import History, NodeOut, apply, replay
from launcher.core.state import RestartLimits, Stage
from launcher.history.events import parse_event, read_events
from launcher.history.fields import COMMON, EVENTS
from launcher.history.recovery import cold_start_s, recoveries
from launcher.history.status import status_of
from launcher.history.tail import Tail
from launcher.history.view import event_line, render

NODES = st.sampled_from(["n1", "n2", "n3"])
LIKELY = {
    "time": st.floats(0, 1e4),
    "attempt": st.integers(0, 3),
    "node": NODES,
    "step": st.integers(0, 50),
    "seconds": st.floats(0, 100),
    "term": st.integers(1, 3),
    "nodes": st.lists(NODES, max_size=3),
    "generation": st.integers(0, 3),
    "kind": st.sampled_from(["node_lost", "user_error", "agent_lost", "hang", "preflight"]),
    "detect": st.floats(0, 10),
    "tier": st.sampled_from(["memory", "shared"]),
    "outcome": st.sampled_from(["fault", "stopped", "done"]),
    "warm": st.booleans(),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.just(10**400) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    """An event of a kind that the supervisor writes: each field likely, or anything, or missing."""
    name = draw(st.sampled_from(sorted(EVENTS)))
    record: dict[str, Any] = {"event": name}
    for key in {**COMMON, **EVENTS[name].fields}:
        how = draw(st.integers(0, 9))
        if how:
            record[key] = draw(LIKELY.get(key, st.text(max_size=5)) if how > 1 else JSON)
    return record


def event(name: str, time: float = 0.0, **fields: Any) -> dict[str, Any]:
    return {"event": name, "time": time, **fields}


RESTORED_TO_BEFORE_AN_ATTEMPT_TWICE = [
    event("job_start", 0),
    event("first_step", 1, attempt=0, step=21, seconds=1),
    event("fault", 5, attempt=0, step=30, kind="node_lost"),
    event("restore", 6, attempt=1, step=10, tier="shared"),
    event("first_step", 7, attempt=1, step=11, seconds=1),
    event("fault", 8, attempt=1, step=12, kind="node_lost"),
    event("restore", 9, attempt=2, step=10, tier="shared"),
]


@settings(max_examples=3 * settings.default.max_examples)
@given(st.lists(records(), max_size=12), st.integers(0, 60), st.booleans())
@example(RESTORED_TO_BEFORE_AN_ATTEMPT_TWICE, 0, True)
@example([event("attempt_start", 1, nodes=["n1"], rung="start"), event("workers_started", 2)], 0, True)
def test_what_decides_take_over_and_requeue_reads_any_record(
    written: list[dict[str, Any]], cut: int, is_take_over: bool
) -> None:
    text = b"".join(json.dumps(record).encode() + b"\n" for record in written)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        path.write_bytes(text[: len(text) - cut])
        events = read_events(path)
        followed = Tail(path).events()
    for has_checkpoint in (False, True):
        history = replay(events, History(has_checkpoint=has_checkpoint))
        running = history.running_attempt
        assert running is None or running.nodes
        assert history.next_attempt >= 0 and (history.step is None or history.step >= 0)
        assert all(isinstance(node, str) for node in [*history.runners, *history.out])
        decision = choose_rung(
            history.gains, RestartLimits(), "why", has_checkpoint=has_checkpoint, can_requeue=True, nodes_suffice=True,
            nodes_changed=False, has_spare=False,
        )  # fmt: skip
        assert decision.action in ("restart", "requeue", "stop")
        play = Play(make_job(3, train=2, has_checkpoint=has_checkpoint, is_take_over=is_take_over), events)
        play.begin()
        play.passes(1000.0)
        assert play.state.stage in Stage
    for each in events:
        event_line(each)
    status = status_of(followed, now_s=1e4)
    assert status.ettr is None or 0 <= status.ettr <= 1
    Console(quiet=True).print(render(status, "t"))
    recoveries(events)
    cold_start_s(events)


def test_a_line_of_any_depth_is_passed_over() -> None:
    assert parse_event(b'{"event": ' + b"[" * 100_000) is None


# What follows was proved of the supervisor's `Past` before.


def test_a_node_that_is_out_stays_out_with_its_first_reason_until_it_is_back() -> None:
    out = [event("node_out", node="n1", reason="silent", lost=True), event("node_out", node="n1", reason="again")]
    history = replay(out, History())
    assert history.out["n1"] == NodeOut(reason="silent", is_lost=True)
    assert not replay([event("node_back", node="n1")], history).out


def test_a_node_whose_python_does_not_load_is_tried_again_when_the_job_starts_again() -> None:
    history = replay(
        [
            event("job_start"),
            event("node_out", node="n1", reason="no torch", environment=True),
            event("node_out", node="n2", reason="drained"),
        ],
        History(),
    )
    assert set(history.out) == {"n1", "n2"}
    assert set(apply(history, event("job_start")).out) == {"n2"}


def test_runners_are_those_of_the_jobs_last_start() -> None:
    ready = [event("node_ready", node=node, warm=True) for node in ("n1", "n2")]
    history = replay([event("job_start"), *ready], History())
    assert set(history.runners) == {"n1", "n2"}
    assert set(replay([event("job_start"), ready[0]], history).runners) == {"n1"}


def test_attempts_are_numbered_through_all_starts_of_the_job() -> None:
    starts = [event("attempt_start", attempt=number, nodes=["n1"], rung="workers") for number in (0, 1)]
    history = replay([event("job_start"), *starts, event("job_start")], History())
    assert (history.next_attempt, history.attempt, history.gains.restarts) == (2, None, 1)


FAILS = [
    event("attempt_start", 10.0, attempt=0, nodes=["n1", "n2"], spares=[], rung="start"),
    event("commit", 11.0, attempt=0, step=7, tier="shared"),
    event("fault", 12.0, attempt=0, kind="user_error", node="n1", traceback="ValueError: 1"),
    event("attempt_end", 13.0, attempt=0, outcome="fault"),
    event("attempt_start", 20.0, attempt=1, nodes=["n1", "n2"], spares=[], rung="workers"),
    event("fault", 22.0, attempt=1, kind="hang", node="n1"),
]


@pytest.mark.parametrize("end", [[event("attempt_end", 23.0, attempt=1, outcome="fault")], []])
def test_a_later_run_in_the_folder_has_the_steps_and_neither_the_requests_nor_the_faults(
    end: list[dict[str, Any]],
) -> None:
    out = event("node_out", node="n3", reason="drained")
    past = [event("job_start"), event("scale_requested", nodes=1), out, *FAILS, *end]
    history = replay([*past, event("job_end", 24.0, outcome="no_progress"), event("job_start", 30.0)], History())
    assert (history.scale, history.hangs, history.step, history.next_attempt) == (None, 0, 7, 2)
    assert history.gains == Gains(step=7, step_at_fault=7) and not history.out
    assert replay([*past, event("job_start", 30.0)], History()).gains.fruitless == 1, "a requeue"
    again = event("attempt_start", 31.0, attempt=2, nodes=["n1", "n2"], rung="requeue")
    assert apply(history, again).gains.restarts == 0


def test_a_later_run_whose_script_is_repaired_restarts_after_a_fault() -> None:
    limits = RestartLimits(max_without_progress=2)
    past = [event("job_start"), *FAILS, event("job_end", 24.0, outcome="no_progress")]
    play = Play(make_job(has_checkpoint=True, limits=limits), past)
    play.run()
    play.fail("n1")
    assert [(each["attempt"], each["rung"]) for each in play.events("attempt_start")] == [
        (2, "requeue"),
        (3, "workers"),
    ]


def test_a_size_that_another_job_file_allowed_keeps_no_job_from_starting() -> None:
    """The run before was killed, so nothing tells that it has ended."""
    play = Play(make_job(4), [event("job_start"), event("scale_requested", nodes=2)])
    play.run()
    assert len(play.attempt.nodes) == 4


RUNS = [
    event("job_start"),
    event("attempt_start", 5.0, attempt=2, nodes=["n1", "n2"], rung="workers"),
    event("workers_started", 7.0, attempt=2, seconds=2.0),
]


@pytest.mark.parametrize(
    ("then", "runs"),
    [
        ([], True),
        ([event("commit", attempt=2, step=5, tier="memory")], True),
        ([event("agents_lost", attempt=2, generation=0)], True),
        ([event("node_out", node="n3", reason="lost", lost=True)], True),
        ([event("node_out", node="n2", reason="lost", lost=True)], False),
        ([event("fault", attempt=2, kind="hang")], False),
        ([event("attempt_end", attempt=2, outcome="fault")], False),
        ([event("job_start")], False),
        ([event("attempt_start", attempt=3, nodes=["n1"], rung="workers")], False),
    ],
)
def test_an_attempt_runs_from_its_workers_start_until_something_ends_it(then: list[dict[str, Any]], runs: bool) -> None:
    running = replay([*RUNS, *then], History()).running_attempt
    assert (running is not None) is runs
    if running is not None:
        assert (running.number, running.nodes, running.begun_s) == (2, ("n1", "n2"), 5.0)


def test_what_a_running_attempt_has_reached_is_known() -> None:
    then = [
        event("restore", attempt=2, step=3, tier="memory"),
        event("first_step", attempt=2, step=4, seconds=1.0),
        event("commit", attempt=2, step=5, tier="memory"),
        event("commit", attempt=2, step=4, tier="shared"),
        event("commit", attempt=1, step=9, tier="shared"),  # of another attempt
    ]
    running = replay([*RUNS, *then], History()).running_attempt
    assert running is not None and running.restored and running.first_step_seen
    assert dict(running.committed) == {"memory": 5, "shared": 4}


def test_the_newest_committed_step_is_the_jobs_step() -> None:
    commits = [event("commit", attempt=0, step=step, tier="memory") for step in (5, 20, 10)]
    assert replay(commits, History()).step == 20
    assert replay([], History()).step is None


def test_the_nodes_that_hold_the_newest_step_are_known() -> None:
    history = replay([{"event": "job_start", "time": 1.0}], History())
    for event, nodes in (
        ({"event": "attempt_start", "attempt": 0, "nodes": ["n1", "n2"]}, ("n1", "n2")),
        ({"event": "commit", "attempt": 0, "step": 7, "tier": "memory"}, ("n1", "n2")),
        ({"event": "attempt_start", "attempt": 1, "nodes": ["n1", "n3"]}, ("n1", "n2", "n3")),
        ({"event": "commit", "attempt": 0, "step": 8, "tier": "shared"}, ("n1", "n2", "n3")),
        ({"event": "attempt_start", "attempt": 2, "nodes": ["n3", "n4"]}, ("n1", "n2", "n3", "n4")),
        ({"event": "commit", "attempt": 2, "step": 9, "tier": "memory"}, ("n3", "n4")),
        ({"event": "node_out", "node": "n3", "reason": "silent", "lost": True}, ("n3", "n4")),
        ({"event": "node_out", "node": "n4", "reason": "cannot start workers"}, ("n3",)),
        ({"event": "booster_asked", "allocation": "b1", "nodes": 1}, ("n3",)),
        ({"event": "node_ready", "node": "x1", "allocation": "b1"}, ("n3",)),
        ({"event": "attempt_start", "attempt": 3, "nodes": ["n1", "x1"]}, ("n3", "n1", "x1")),
        ({"event": "booster_asked", "allocation": "b2", "nodes": 1}, ("n3", "n1", "x1")),
        ({"event": "node_ready", "node": "x1", "allocation": "b2"}, ("n3", "n1")),
    ):
        history = apply(history, {"time": 2.0, **event})
        assert history.trained == nodes, event


def test_what_ended_an_attempt_is_its_first_fault() -> None:
    """Workers that a silent scheduler cost their supervisor say nothing of the job."""
    begun = [{"event": "job_start"}, {"event": "attempt_start", "attempt": 0, "nodes": ["n1", "n2"]}]
    for kinds, fruitless in ((["scheduler_lost", "process_exit"], 0), (["process_exit", "scheduler_lost"], 1)):
        faults = [{"event": "fault", "attempt": 0, "kind": kind} for kind in kinds]
        end = {"event": "attempt_end", "attempt": 0, "outcome": "fault"}
        history = replay([{"time": 1.0, **event} for event in (*begun, *faults, end)], History())
        assert history.gains.fruitless == fruitless, kinds


def test_attempts_that_go_on_from_newer_and_newer_steps_make_progress_though_a_newer_one_was_lost() -> None:
    """Step 100 was lost with the memory of nodes."""
    history = replay([{"time": 1.0, "event": "job_start"}], History())
    found = []
    for number, (restored, committed) in enumerate(((None, 100), (50, 60), (60, 70), (70, 80), (70, 90), (70, 95))):
        attempt = {"attempt": number, "time": 10.0 * number}
        for event in (
            {"event": "attempt_start", "nodes": ["n1", "n2"]},
            {"event": "restore", "step": restored},
            {"event": "commit", "step": committed, "tier": "memory"},
            {"event": "fault", "kind": "hang"},
            {"event": "attempt_end", "outcome": "fault"},
        ):
            history = apply(history, {**attempt, **event})
        found.append(history.gains.fruitless)
    assert found == [0, 1, 1, 1, 2, 3]


def test_a_file_that_is_seen_first_is_a_gain_if_the_first_attempt_can_have_written_it() -> None:
    """The file system may have hung when the job began."""
    old, new = ({"event": "own_checkpoint", "file": "7.pt", "modified": at_s} for at_s in (500.0, 700.0))
    begun = [{"event": "job_start"}, {"event": "attempt_start", "attempt": 0, "nodes": ["n1"]}]
    for events, gained in (([old, *begun], False), ([*begun, old], False), ([*begun, new], True)):
        gains = replay([{"time": 600.0, **event} for event in events], History()).gains
        assert (gains.file_s is not None and gains.file_s > gains.file_at_fault_s) is gained


def test_a_resumed_attempt_records_no_commit_again() -> None:
    past = [
        event("job_start"),
        *(event("node_ready", node=node, warm=True) for node in ("n1", "n2")),
        *RUNS[1:],
        event("commit", attempt=2, step=5, tier="memory"),
    ]
    play = Play(make_job(has_checkpoint=True, is_take_over=True), past)
    play.begin()
    play.come(attempt=2)
    play.commit(5)
    assert not play.events("commit")
    play.commit(6)
    assert [each["step"] for each in play.events("commit")] == [6] and not play.all(do.StartWorkers)
