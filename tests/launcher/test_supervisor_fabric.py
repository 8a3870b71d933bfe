"""What a supervisor makes of the word that NCCL does not use the fabric: a real one, with runners that only talk."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from launcher.channel import ChannelError, connect
from launcher.clusters.local import LocalCluster
from launcher.history.events import EventLog, read_events
from launcher.jobfile import JobSpec
from launcher.supervisor.folder import make_folders, prepare, read_secret
from launcher.supervisor.outcome import Outcome
from launcher.supervisor.supervisor import Supervisor

PROBLEM = "NCCL uses network Socket, expected libfabric over EFA"


class Talkers(LocalCluster):
    """Runners that are tasks of this process: the last one speaks of its network, then all are done."""

    can_requeue = True

    def __init__(self, spec: JobSpec, job_dir: Path, *, required: bool) -> None:
        super().__init__(spec, job_dir)
        self._required = required
        self._tasks: list[asyncio.Task[None]] = []

    async def start_runners(self, nodes: list[str], environment: Mapping[str, str]) -> None:
        port = int(environment["HOLDFAST_SUPERVISOR"].rpartition(":")[2])
        self._tasks = [asyncio.create_task(self._runner(node, port)) for node in nodes]

    async def _runner(self, node: str, port: int) -> None:
        hello = {"op": "hello", "node": node, "pid": 1, "problem": None, "warm": True, "port": 1}
        channel, message = await connect(self.host, port, read_secret(self._job_dir), hello)
        try:
            while message["op"] != "leave":
                if message["op"] == "start":
                    attempt = {"attempt": message["attempt"]}
                    channel.send({"op": "started", "pids": [1]} | attempt)
                    if node == self.nodes[-1]:
                        channel.send({"op": "network", "problem": PROBLEM, "required": self._required} | attempt)
                    channel.send({"op": "ended", "ok": True, "step": 7, "failures": [], "reason": None} | attempt)
                elif message["op"] == "kill":
                    channel.send({"op": "killed", "attempt": message["attempt"], "step": 7, "left": []})
                message = await channel.receive()
        except ChannelError:
            return
        finally:
            await channel.close()

    def requeue(self, exclude: Collection[str] = ()) -> None:
        raise AssertionError("a wrong fabric is no reason to requeue")

    async def close(self, *, forget: bool) -> None:
        await asyncio.wait(self._tasks, timeout=5)
        await super().close(forget=forget)


def supervised(folder: Path, *, required: bool) -> tuple[Outcome, list[dict[str, Any]]]:
    (folder / "train.py").touch()
    spec = JobSpec(name="t", script=folder / "train.py", nodes=2)
    make_folders(folder / "job")
    prepare(spec, folder / "job")
    events = EventLog(folder / "job" / "events.jsonl")
    talkers = Talkers(spec, folder / "job", required=required)
    outcome = asyncio.run(Supervisor(spec, folder / "job", talkers, events).run())
    events.close()
    return outcome, read_events(folder / "job" / "events.jsonl")


def test_where_it_is_required_the_job_stops_at_once_and_says_why(tmp_path: Path) -> None:
    outcome, events = supervised(tmp_path, required=True)
    assert (outcome.name, outcome.exit_code) == ("fabric", 14)
    assert PROBLEM in outcome.reason and "node1" in outcome.reason and "fabric: require" in outcome.reason
    (fault,) = (event for event in events if event["event"] == "fault")
    assert (fault["kind"], fault["node"]) == ("fabric", "node1")
    assert sum(event["event"] == "attempt_start" for event in events) == 1


def test_where_it_is_preferred_the_job_goes_on_and_the_problem_is_told(tmp_path: Path) -> None:
    outcome, events = supervised(tmp_path, required=False)
    assert outcome.name == "done"
    (problem,) = (event for event in events if event["event"] == "problem")
    assert (problem["node"], problem["detail"]) == ("node1", PROBLEM)
