"""Shards that agents ask each other for: what comes is what was asked for, and nothing else is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agent_kit import World, config, run, save_id

from ckpt.agent.rpc.peers import PeerError
from ckpt.errors import AgentError
from ckpt.format.shard_record import SaveId

NODES = ["a", "b"]


def test_the_record_of_another_shard_than_was_asked_for_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path, NODES, 0, config(scheme="none"), ranks_per_node=2) as world:
            await world.save(10, slot=0)
            here, there = (agent._saves._context.exchange for agent in world.agents)

            async def other(source: int, save: SaveId, rank: int) -> dict[str, Any]:
                return await there._on_record(source, save, rank=3)

            assert (await here.record(1, save_id(10), 2)).rank == 2
            world.agents[1]._peers._handlers["record"] = other
            with pytest.raises(PeerError, match="node b: sent rank 3 of "):
                await here.record(1, save_id(10), 2)

    run(test)


def test_what_a_name_held_is_given_up_before_other_bytes_come_there(tmp_path: Path) -> None:
    """A kill meanwhile leaves no record of bytes that are partly others."""
    record, seen = tmp_path / "a" / "copy-1-0-0.json", []

    async def test() -> None:
        async with World(tmp_path, NODES, 0, config(scheme="none")) as world:
            for step, slot in ((10, 0), (20, 1)):
                await world.save(step, slot)
            here, there = (agent._saves._context.exchange for agent in world.agents)
            await here.pull(1, save_id(10), 1, record.stem)
            assert record.exists()

            async def watched(source: int, **fields: Any) -> None:
                seen.append(record.exists())
                await there._on_shard_bytes(source, **fields)

            world.agents[1]._peers._handlers["shard_bytes"] = watched
            await here.pull(1, save_id(20), 1, record.stem)
            assert seen == [False] and record.exists()

    run(test)


def test_a_file_into_which_bytes_may_still_come_is_never_used_again(tmp_path: Path) -> None:
    async def refuse(source: int, **fields: Any) -> None:
        raise AgentError("gone")

    async def test() -> None:
        async with World(tmp_path, NODES, 0, config(scheme="none")) as world:
            await world.save(10, slot=0)
            here = world.agents[0]._saves._context.exchange
            world.agents[1]._peers._handlers["shard_bytes"] = refuse
            with pytest.raises(PeerError, match="gone"):
                await here.pull(1, save_id(10), 1, "copy-1-0-0")
            assert not list((tmp_path / "a").glob("copy-*"))

    run(test)


@pytest.mark.parametrize("block", [-1, 1, True, "0"])
def test_blocks_that_a_shard_does_not_have_are_not_served(tmp_path: Path, block: Any) -> None:
    async def test() -> None:
        async with World(tmp_path, NODES, 0, config(scheme="none")) as world:
            await world.save(10, slot=0)
            there = world.agents[1]._saves._context.exchange
            with pytest.raises(AgentError, match="blocks outside the shard's 1 asked for"):
                await there._on_shard_bytes(0, save_id(10), rank=1, blocks=[block], tag=0)

    run(test)
