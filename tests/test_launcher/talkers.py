"""A real supervisor with runners that only talk: tasks of this process, which start nothing."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from launcher.clusters.local.cluster import LocalCluster
from launcher.connections.channel import Channel, ChannelError, Message, connect
from launcher.history.events import EventLog, read_events
from launcher.history.outcome import Outcome
from launcher.job.jobfile import JobSpec
from launcher.supervisor.folder import make_folders, prepare, read_secret
from launcher.supervisor.supervisor import Supervisor


def ended(attempt: Mapping[str, Any] = MappingProxyType({}), **said: Any) -> dict[str, Any]:
    """A runner's message "ended": its workers have ended well, at step 7, and its node saw nothing."""
    well = {"ok": True, "step": 7, "failures": [], "reason": None, "stopped": False, "oom_kills": 0, "kernel": []}
    return {"op": "ended", **well, **said, **attempt}


def heartbeat(**said: Any) -> dict[str, Any]:
    """A runner's heartbeat: its node is warm and trains nothing."""
    known = {"attempt": None, "step": None, "slowest": None, "section": "step", "activity": 0, "rank_ended": False}
    return {"op": "heartbeat", "warm": True, "port": 1, "times": [], **known, **said}


class Talkers(LocalCluster):
    """A cluster of such runners, from which a job can be handed back."""

    can_requeue = True

    def __init__(self, spec: JobSpec, job_dir: Path) -> None:
        super().__init__(spec, job_dir)
        self._tasks: list[asyncio.Task[None]] = []

    @abstractmethod
    def started(self, node: str, channel: Channel, attempt: dict[str, Any]) -> None:
        """The supervisor has had a runner start its workers; `attempt` belongs into every answer."""

    def came(self, channel: Channel) -> None:
        """The supervisor has taken a runner on."""

    def heard(self, channel: Channel, message: Message) -> None:
        """The supervisor has sent a message."""

    async def start_runners(self, nodes: list[str], environment: Mapping[str, str]) -> None:
        port = int(environment["HOLDFAST_SUPERVISOR"].rpartition(":")[2])
        self._tasks = [asyncio.create_task(self._runner(node, port)) for node in nodes]

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)
        await super().close()

    async def _runner(self, node: str, port: int, attempt: int | None = None) -> None:
        hello: Message = {"op": "hello", "node": node, "pid": 1, "problem": None, "warm": True, "port": 1}
        hello |= {"restart_count": self.restart_count, "allocation": "local", "addresses": []}
        hello["attempt"] = attempt
        channel, message = await connect(self.host, port, read_secret(self._job_dir), hello)
        self.came(channel)
        try:
            while message["op"] != "leave":
                if message["op"] == "start":
                    attempt = {"attempt": message["attempt"]}
                    channel.send({"op": "started", "pids": [1]} | attempt)
                    self.started(node, channel, attempt)
                elif message["op"] == "kill":
                    channel.send({"op": "killed", "attempt": message["attempt"], "step": 7, "left": [], "held": ""})
                message = await channel.receive()
                self.heard(channel, message)
        except ChannelError:
            return
        finally:
            await channel.close()


def supervised(
    folder: Path, cluster: Callable[[JobSpec, Path], Talkers], **keys: Any
) -> tuple[Outcome, list[dict[str, Any]]]:
    """A job of two nodes, with these keys of the job file beside: how it ends, and its events."""
    (folder / "train.py").touch()
    spec = JobSpec(name="t", script=folder / "train.py", nodes=2, **keys)
    make_folders(folder / "job")
    prepare(spec, folder / "job")
    events = EventLog(folder / "job" / "events.jsonl")
    outcome = asyncio.run(Supervisor(spec, folder / "job", cluster(spec, folder / "job"), events).run())
    events.close()
    return outcome, read_events(folder / "job" / "events.jsonl")
