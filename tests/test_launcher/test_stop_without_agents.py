"""A stop while the checkpoint agents are lost: others are started at once, or nothing would be saved."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from talkers import Talkers, ended, supervised

from ckpt import CheckpointConfig
from launcher.clusters.child_process import Adopted
from launcher.connections.channel import Channel, Message
from launcher.core import agent_world
from launcher.scheduler.cluster import AgentsHandle


class Stops(Talkers):
    """Agents are lost before the stop, or in it; the ranks save and end once there are others."""

    lost_before = False

    async def start_agents(
        self, nodes: list[str], environment: Mapping[str, str], log_path: Path, **_: Any
    ) -> AgentsHandle:
        self._agents = Adopted()
        return self._agents

    def started(self, node: str, channel: Channel, attempt: dict[str, Any]) -> None:
        self._attempt = attempt
        if node == "node0":
            restored = {"event": "restore_plan", "step": 0, "tier": "none", "seconds": 0.1}
            channel.send({"op": "monitor", "event": restored} | attempt)
            if self.lost_before:
                self._lose_agents(channel)
            os.kill(os.getpid(), signal.SIGTERM)

    def heard(self, channel: Channel, message: Message) -> None:
        if message["op"] == "stop" and not self.lost_before:
            self._lose_agents(channel)
        elif message["op"] == "renew_agents":
            back = {"event": "rejoined", "step": 7, "generation": message["generation"]}
            saved = {"event": "commit", "tier": "memory", "step": 7, "seconds": 0.1}
            for event in (back, saved):
                channel.send({"op": "monitor", "event": event} | self._attempt)
            channel.send(ended(self._attempt))

        elif message["op"] in ("release_agent", "finish_agent"):
            self._tasks.append(asyncio.create_task(self._agents.kill()))

    def _lose_agents(self, channel: Channel) -> None:
        channel.send({"op": "agent_lost", "generation": 0, "reason": "killed"} | self._attempt)


CHECKPOINT = CheckpointConfig.from_mapping({"namespace": "t", "memory": {"every_steps": 10}})


@pytest.mark.parametrize("lost_before", [False, True])
def test_agents_are_replaced_in_a_stop(lost_before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_world, "RENEW_AFTER_S", (1000.0,))
    monkeypatch.setattr(agent_world, "LOSS_WINDOW_S", 0.0)
    monkeypatch.setattr(Stops, "lost_before", lost_before)
    outcome, events = supervised(tmp_path, Stops, checkpoint=CHECKPOINT)
    assert (outcome.name, outcome.step) == ("stopped", 7), outcome
    names = [event["event"] for event in events]
    assert "agents_lost" in names and "agents_back" in names
    assert not [event for event in events if event["event"] in ("fault", "problem")]
