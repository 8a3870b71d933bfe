"""What a supervisor that has taken over makes of runners that do not come to it, and what the job's next start does."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from talkers import Talkers, ended, supervised

from launcher.connections.channel import Channel
from launcher.core import attempt as attempt_module
from launcher.errors import LauncherError
from launcher.history.events import Event, EventLog, read_events
from launcher.history.outcome import Outcome
from launcher.job.jobfile import JobSpec
from launcher.leadership.terms import Term, claim, newest
from launcher.supervisor.folder import make_folders, prepare
from launcher.supervisor.supervisor import Supervisor

NODES = ["node0", "node1"]
FAILED = [
    {"event": "fault", "attempt": 0, "kind": "process_exit"},
    {"event": "attempt_end", "attempt": 0, "outcome": "fault"},
]


class Left(Talkers):
    """A job whose supervisor is lost; another takes over on its node, to which these nodes' runners come."""

    node = NODES[0]

    def __init__(self, spec: JobSpec, job_dir: Path, back: Collection[str], *, are_terminated: bool = False) -> None:
        super().__init__(spec, job_dir)
        self._back = back
        self._are_terminated = are_terminated
        self.kept_from: list[tuple[str, ...]] = []  # the nodes, at each requeue

    def started(self, node: str, channel: Channel, attempt: dict[str, Any]) -> None:
        raise AssertionError("an attempt without runners")

    def came(self, channel: Channel) -> None:
        if self._are_terminated:
            channel.send({"op": "signal", "name": "SIGTERM"})

    def look_for_the_next(self) -> None:
        term = newest(self._job_dir)
        assert term is not None and term.number == 2
        self._tasks = [asyncio.create_task(self._runner(node, term.port, attempt=0)) for node in self._back]

    def requeue(self, exclude: Collection[str] = ()) -> None:
        self.kept_from.append(tuple(exclude))


class Trains(Talkers):
    """The next start: all goes well."""

    def started(self, node: str, channel: Channel, attempt: dict[str, Any]) -> None:
        channel.send(ended(attempt))


def left_job(folder: Path, past: list[Event]) -> tuple[JobSpec, Path, EventLog]:
    """A job with such events, of whose supervisor only its term and these are left."""
    (folder / "train.py").touch()
    job_dir = folder / "job"
    spec = JobSpec(name="t", script=folder / "train.py", nodes=len(NODES))
    make_folders(job_dir)
    prepare(spec, job_dir)
    claim(job_dir, Term(number=1, run_id="run", node=NODES[0], host="127.0.0.1", port=1, pid=1))
    events = EventLog(job_dir / "events.jsonl")
    ready = [{"event": "node_ready", "node": node} for node in NODES]
    start = {"event": "attempt_start", "attempt": 0, "nodes": NODES, "spares": [], "rung": "start"}
    for event in [
        {"event": "job_start"},
        *ready,
        start,
        {"event": "workers_started", "attempt": 0, "seconds": 1.0},
        *past,
    ]:
        events.append(**event)
    return spec, job_dir, events


def taken_over(folder: Path, past: list[Event], **left: Any) -> tuple[Outcome, Left, list[Event]]:
    """How the take-over of a job with such events ends, where it was, and what it has recorded."""
    spec, job_dir, events = left_job(folder, past)
    cluster = Left(spec, job_dir, **left)

    async def scene() -> Outcome:
        running = asyncio.create_task(Supervisor(spec, job_dir, cluster, events, take_over=1).run())
        while (term := newest(job_dir)) is None or term.number == 1:
            await asyncio.sleep(0)
        cluster.look_for_the_next()
        return await running

    outcome = asyncio.run(scene())
    events.close()
    told = read_events(job_dir / "events.jsonl")
    return outcome, cluster, told[[event["event"] for event in told].index("takeover") :]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_module, "RETURN_S", 0.3)


def out(events: list[Event]) -> list[str]:
    return [event["node"] for event in events if event["event"] == "node_out"]


@pytest.mark.parametrize("past", [FAILED, []], ids=["between attempts", "in an attempt"])
def test_where_no_runner_is_left_nothing_is_held_against_the_nodes(tmp_path: Path, past: list[Event]) -> None:
    """Slurm has ended the runners, or the supervisor before has let them go: the job goes back to Slurm."""
    outcome, cluster, events = taken_over(tmp_path, past, back=[])
    assert (outcome.name, cluster.kept_from, out(events)) == ("stopped", [()], [])

    again, events = supervised(tmp_path, Trains)
    assert again.name == "done"
    assert [event["nodes"] for event in events if event["event"] == "attempt_start"] == [NODES, NODES]


@pytest.mark.parametrize("past", [FAILED, []], ids=["between attempts", "in an attempt"])
def test_where_a_runner_is_there_a_node_whose_own_does_not_come_is_out_for_good(
    tmp_path: Path, past: list[Event]
) -> None:
    outcome, cluster, events = taken_over(tmp_path, past, back=NODES[:1])
    assert (outcome.name, cluster.kept_from, out(events)) == ("stopped", [(NODES[1],)], [NODES[1]])


def test_a_successor_that_cannot_take_the_lead_leaves_no_word_in_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    spec, job_dir, events = left_job(tmp_path, [])
    monkeypatch.setattr("launcher.leadership.lease.claim", refused)
    successor = Supervisor(spec, job_dir, Left(spec, job_dir, []), events, take_over=1)
    with pytest.raises(LauncherError, match=r"cannot take the lead of the job .Input/output error."):
        asyncio.run(successor.run())
    events.close()
    assert read_events(job_dir / "events.jsonl")[-1]["event"] == "workers_started"


def test_a_successor_whose_start_is_not_in_the_record_begins_it(tmp_path: Path) -> None:
    """The nodes in the record, and the requeue that was asked for, are of the start before."""
    stopped = [
        {"event": "stop_requested", "reason": "requeue"},
        {"event": "attempt_end", "attempt": 0, "outcome": "stopped", "step": 7},
    ]
    spec, job_dir, events = left_job(tmp_path, stopped)

    class StartedAgain(Trains):
        restart_count = 1

    outcome = asyncio.run(Supervisor(spec, job_dir, StartedAgain(spec, job_dir), events, take_over=1).run())
    events.close()
    told = [event["event"] for event in read_events(job_dir / "events.jsonl")]
    assert outcome.name == "done" and "node_out" not in told
    assert told[told.index("takeover") :][:2] == ["takeover", "job_start"]


def test_while_slurm_ends_the_job_a_runner_that_does_not_come_says_nothing_of_its_node(tmp_path: Path) -> None:
    outcome, _, events = taken_over(tmp_path, [], back=NODES[:1], are_terminated=True)
    assert (outcome.name, out(events)) == ("stopped", [])
    assert [event["reason"] for event in events if event["event"] == "stop_requested"] == ["requeue"]
