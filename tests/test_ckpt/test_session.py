"""A worker's link with its agent: what it hears between its calls, and what it does when no save can come about."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import numpy as np
import pytest
from agent_kit import World, config, run
from agent_kit import until as until_async
from trainer_kit import Node, checkpointer, settle
from waiting import until

from ckpt.format.layout import Chunk
from ckpt.format.shard_record import SaveId
from ckpt.timeouts import WorkerDeadlines
from holdfast.base.deadlines import within


def test_what_became_of_a_save_is_told_when_it_happens_not_at_the_next_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ckpt")
    node = Node(tmp_path, shared={"path": str(tmp_path / "shared"), "every_steps": 1})
    try:
        ckpt = node.start()
        ckpt.save(1, {"x": np.zeros(1000)})
        until(lambda: "committed step 1 in tier shared" in caplog.text, "the commit")
        assert "committed step 1 in the memory of all nodes: 8000 bytes in " in caplog.text
        node.stop()
        until(lambda: "saving stops, training goes on" in caplog.text, "the loss")
        ckpt.close()
    finally:
        node.stop()


def test_a_shard_that_the_agent_refuses_is_a_failed_save_of_this_rank(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    try:
        with node.start() as ckpt:
            with monkeypatch.context() as patch:
                patch.setattr(Chunk, "to_list", lambda chunk: ["x", "float64", [1000], [], [1000], 0, 8000])
                ckpt.save(1, {"x": np.zeros(1000)})
            until(lambda: ckpt.failed_saves == 1, "the refusal")
            assert "step 1 was dropped before it was committed: node n0: the shard of rank 0 was refused" in caplog.text
            ckpt.save(2, {"x": np.zeros(1000)})
            settle(ckpt)
            assert ckpt.failed_saves == 1
    finally:
        node.stop()


def test_once_the_other_agents_are_lost_no_save_waits_for_a_slot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The save that is promised keeps its slot for good, and the older one keeps the other."""

    async def test() -> None:
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            ckpt = checkpointer(world.places[1], config(), rank=1, deadlines=WorkerDeadlines(slot_s=30))
            in_thread, protect = asyncio.to_thread, world.agents[1]._saving._on_protect

            async def promise_then_lose_the_world(source: int, save: SaveId) -> None:
                await protect(source, save)
                for transport in world.fake.transports:
                    transport.fail = "MPI_ERR_PROC_FAILED"

            await in_thread(ckpt.save, 1, {"x": np.zeros(1000)})
            world.workers[0].save(1, 0)
            await world.workers[1].event("committed", step=1)
            world.agents[1]._peers._handlers["protect"] = promise_then_lose_the_world
            await in_thread(ckpt.save, 2, {"x": np.zeros(1000)})
            world.workers[0].save(2, 1)
            await until_async(lambda: "saving stops, training goes on: the other agents are lost" in caplog.text)
            for step in (3, 4):
                await in_thread(ckpt.save, step, {"x": np.zeros(1000)})
                await world.monitors[1].event("problem", step=step, failed="memory")
            assert ckpt.failed_saves == 2
            await in_thread(ckpt.close)

    run(test)


def test_ranks_that_close_in_a_stop_wait_for_lower_tiers_as_long_as_the_newest_request_allows(tmp_path: Path) -> None:
    async def test() -> None:
        slow = {"path": str(tmp_path / "nvme"), "every_steps": 1, "rate_limit_bytes_s": 1}
        async with World(tmp_path, ["a", "b"], 0, config(nvme=slow)) as world:
            await world.save(1, 0)
            closing = [asyncio.ensure_future(worker.request("await_saves", closing=True)) for worker in world.workers]
            for monitor in world.monitors:  # a halt has no limit
                monitor.send(op="stop")
            for monitor in world.monitors:
                await monitor.event("stop_agreed")
            assert not any(request.done() for request in closing)
            for monitor in world.monitors:  # and is replaced by a preemption
                monitor.send(op="stop", lower_s=0.0)
            await asyncio.gather(*closing)
            with pytest.raises(asyncio.TimeoutError):
                await within(0.2, world.workers[0].request("await_saves"))

    run(test)
