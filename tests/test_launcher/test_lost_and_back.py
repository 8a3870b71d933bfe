"""Nodes whose runner or connection was lost are the job's again; a node at fault makes way for a spare."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from talkers import Talkers, ended, supervised

from launcher.connections.channel import Channel
from launcher.core.replay import History, replay
from launcher.history.events import Event, read_events
from launcher.history.status import status_of


class Trains(Talkers):
    """Ends well once it is let go."""

    def ends(self, channel: Channel, attempt: dict[str, Any]) -> None:
        channel.send(ended(attempt))


class LosesAll(Trains):
    """The scheduler ends the runners' step once, as `scancel JOB.0` does."""

    starts = 0

    async def start_runners(self, nodes: list[str], environment: Any) -> None:
        self.starts += 1
        await super().start_runners(nodes, environment)

    def started(self, node: str, channel: Channel, attempt: dict[str, Any]) -> None:
        if self.starts > 1:
            self.ends(channel, attempt)
        else:
            for task in self._tasks:
                task.cancel()


def test_runners_that_are_lost_all_at_once_are_started_again_and_no_node_is_out(tmp_path: Path) -> None:
    outcome, events = supervised(tmp_path, LosesAll)
    assert outcome.name == "done", outcome
    starts = [event for event in events if event["event"] == "attempt_start"]
    assert [(start["nodes"], start["rung"]) for start in starts] == [
        (["node0", "node1"], "start"),
        (["node0", "node1"], "workers"),
    ]
    assert events[-1]["event"] == "job_end"  # after it no node is out
    assert status_of(events).out == {} == dict(replay(events[:-1], History()).out)


class Flaps(Trains):
    """The connection of node1 breaks, and it comes back; then that of its replacement, which does not."""

    async def start_runners(self, nodes: list[str], environment: Any) -> None:
        self._port = int(environment["HOLDFAST_SUPERVISOR"].rpartition(":")[2])
        await super().start_runners(nodes, environment)

    def started(self, node: str, channel: Channel, attempt: dict[str, Any]) -> None:
        if (attempt["attempt"], node) == (0, "node1"):
            channel.abort()
            self._tasks.append(asyncio.create_task(self._comes_back(node)))
        elif (attempt["attempt"], node) == (1, "node2"):
            self._tasks.append(asyncio.create_task(self._breaks_once_node1_is_back(channel, attempt)))
        elif attempt["attempt"] == 2:
            self.ends(channel, attempt)

    async def _comes_back(self, node: str) -> None:
        """When others train: one that is back before that is not replaced."""
        while len(self._events("attempt_start")) < 2:
            await asyncio.sleep(0.01)
        await self._runner(node, self._port, attempt=0)

    async def _breaks_once_node1_is_back(self, channel: Channel, attempt: dict[str, Any]) -> None:
        while not self._events("node_back"):
            await asyncio.sleep(0.01)
        channel.abort()

    def _events(self, name: str) -> list[Event]:
        return [event for event in read_events(self._job_dir / "events.jsonl") if event["event"] == name]


def test_a_node_whose_connection_broke_is_a_spare_again_when_its_runner_is_back(tmp_path: Path) -> None:
    outcome, events = supervised(tmp_path, Flaps, spares=1)
    assert outcome.name == "done", outcome
    starts = [event["nodes"] for event in events if event["event"] == "attempt_start"]
    assert starts == [["node0", "node1"], ["node0", "node2"], ["node0", "node1"]]
    assert status_of(events).out.keys() == {"node2"}
    assert events[-1]["event"] == "job_end"  # after it no node is out
    assert [(node, out.is_lost) for node, out in replay(events[:-1], History()).out.items()] == [("node2", True)]
