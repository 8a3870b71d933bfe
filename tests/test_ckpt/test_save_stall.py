"""For how long saves hold training up: a worker tells its agent, and the slowest rank's time is in the commit event."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from agent_kit import World, config, run
from trainer_kit import Node, settle

from ckpt.agent.rpc.client import AgentClient
from ckpt.errors import CopyError
from ckpt.worker import engine, session
from ckpt.worker.save.staging import Stager

SLOW_S = 1000.0  # by a clock of the test's own, so that nothing waits


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.stop()


def test_a_commit_tells_for_how_long_its_save_held_up_the_slowest_rank(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with World(tmp_path, ["a", "b"], 0, config(), ranks_per_node=2) as world:
            for worker in world.workers:
                worker.save(10, 0, stall_s=0.25 * worker.rank)
            for monitor in world.monitors:
                assert (await monitor.event("commit", tier="memory", step=10))["stall_s"] == 0.75

    run(scenario)


def test_the_ranks_that_give_other_values_of_a_metric_are_named_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            for step, slot in ((10, 0), (20, 1)):
                for worker in world.workers:
                    worker.save(step, slot, metrics={"loss": 2.0 - worker.rank})
                await world.monitors[0].event("commit", tier="memory", step=step)
            (problem,) = world.monitors[0].seen("problem")
            assert problem["what"] == "the ranks give other values of the metric loss" and problem["step"] == 10
            assert problem["detail"] == "2 of rank 0 counts, 1 of rank 1 does not; reduce it first"

    run(scenario)


def test_a_dropped_save_holds_up_too_and_is_told_with_the_next_one(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    late_s = [0.0]
    clock = SimpleNamespace(**{**vars(time), "monotonic": lambda: time.monotonic() + late_s[0]})
    send, stage = AgentClient.send, Stager.stage_overlapped

    def sending(self: AgentClient, op: str, **fields: Any) -> None:
        if op == "staged":
            told.append(fields["stall_s"])
        send(self, op, **fields)

    def staging(self: Stager, *arguments: Any) -> Any:
        late_s[0] += SLOW_S
        if late_s[0] == SLOW_S:
            raise CopyError("the first one fails")
        return stage(self, *arguments)

    monkeypatch.setattr(AgentClient, "send", sending)
    monkeypatch.setattr(Stager, "stage_overlapped", staging)
    with node.start() as ckpt:
        monkeypatch.setattr(session, "time", clock)
        monkeypatch.setattr(engine, "time", clock)
        for step in (1, 2, 3):
            ckpt.save(step, {"x": np.zeros(10)})
        settle(ckpt)
    assert [round(stall_s / SLOW_S) for stall_s in told] == [2, 1], "step 1 was dropped"
