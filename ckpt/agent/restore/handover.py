"""Training nodes take over the shards of a restored step that only holders have, before the holders leave.

So the step survives what its scheme promises until the new world has committed a step. Each shard goes to the node
whose ranks probably load it, so most of these bytes are fetched for the load anyway.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from ckpt.agent.context import Part
from ckpt.agent.shards.plan import Plan
from ckpt.capacity import node_memory
from ckpt.errors import CheckpointError
from ckpt.format.memory_names import KINDS, copy_stem
from ckpt.format.shard_record import ShardRecord

_AT_ONCE = 2  # shards fetched at once: while one fills the network, the first bytes of the other are requested

log = logging.getLogger(__name__)


class Handover(Part):
    """One node's part."""

    async def run(self, plan: Plan) -> list[int]:
        """Copies the shards that this node takes over. Returns the ranks whose shard is now in its memory.

        A shard that cannot be copied, or does not fit into memory, stays with its holder, and workers load it from
        there. The step is whole only until the holder leaves, so this is reported as a problem.
        """
        save = plan.save
        reader, node = self._context.reader, self._place.node_rank
        mine = [rank for rank in plan.leaving if reader(rank, plan.world_size) == node]
        if save is None or not mine:
            return []
        since_s, limit, failures = time.monotonic(), asyncio.Semaphore(_AT_ONCE), dict[int, str]()
        records: dict[int, ShardRecord] = {}

        async def record(holder: int, rank: int) -> None:
            records[rank] = await self._exchange.record(holder, save, rank)

        async def copy(holder: int, rank: int) -> None:
            """The next commit frees the memory of the copy."""
            name = self._memory_store.free_name(copy_stem(node, rank), self._config.slots, keep=None)
            await self._exchange.pull(holder, save, rank, name)

        async def try_holders(rank: int, fetch: Callable[[int, int], Awaitable[None]]) -> None:
            async with limit:
                for holder in plan.holders[rank]:
                    try:
                        await fetch(holder, rank)
                    except (CheckpointError, OSError) as error:
                        failures[rank] = str(error)
                    else:
                        failures.pop(rank, None)
                        return

        await asyncio.gather(*(try_holders(rank, record) for rank in mine))
        fitting = self._fitting(records, plan.world_size)
        failures |= {rank: "this node's memory has no room for it" for rank in records.keys() - set(fitting)}
        await asyncio.gather(*(try_holders(rank, copy) for rank in fitting))
        taken = [rank for rank in fitting if rank not in failures]
        if failures:
            rank, reason = min(failures.items())
            more = f"and {len(failures) - 1} more: " if len(failures) > 1 else ""
            what = f"rank {rank}: {more}{reason}; only nodes that are about to leave hold it until the next commit"
            self._listener.problem("shard not taken over", what, save.step)
        nbytes = sum(records[rank].nbytes for rank in taken)
        log.info("%d shards taken over, %d bytes in %.3f s", len(taken), nbytes, time.monotonic() - since_s)
        return taken

    def _fitting(self, records: dict[int, ShardRecord], world_size: int) -> list[int]:
        """The ranks whose shards leave room for the load, the first save, and the redundancy of all.

        Without this room no save could be committed, and only a commit frees memory.
        """
        if not records:
            return []
        state_bytes = sum(record.nbytes for record in records.values()) * world_size // len(records)
        each, account = node_memory(self._config, self._place, state_bytes)
        there = self._memory_store.file_bytes(*KINDS)
        save_bytes = max(0, account.total_bytes - there) // account.slots
        left = self._memory_store.free_bytes() - max(self._place.ranks_per_node * each, save_bytes)
        fitting = []
        for rank, record in sorted(records.items()):
            left -= record.nbytes + record.nbytes * account.redundancy_bytes // max(1, account.own_bytes)
            if left >= 0:
                fitting.append(rank)
        return fitting
