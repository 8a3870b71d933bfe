"""A save on one node: its workers' shards are sealed, published and protected, then the save is committed or dropped.

The leader (node rank 0) decides; see leader.py. A node that has answered "protect" has promised the save: it keeps the
shards until it learns the outcome. Before that it may ask to drop the save.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ckpt.agent.context import Context, Part
from ckpt.agent.protect.node import ProtectNode
from ckpt.agent.rpc.messages import OF_WORKER, check, serves
from ckpt.agent.rpc.peers import PeerError
from ckpt.agent.rpc.worker_socket import Client
from ckpt.agent.save.alike import rows_of
from ckpt.agent.saves import NodeSaves
from ckpt.agent.tasks import Tasks
from ckpt.errors import AgentError, CheckpointError
from ckpt.format.checksums import checksums
from ckpt.format.lasting import Given, merged_metrics, parse_metrics
from ckpt.format.layout import Layout
from ckpt.format.line import FIRST, Line
from ckpt.format.memory_names import StoredName, copy_stem, own_stem
from ckpt.format.shard_record import SaveId, ShardRecord
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.quarantine import forget_notes
from holdfast.base.deadlines import within

_REMEMBER = 64  # number of dropped steps to remember


@dataclass(kw_only=True, eq=False)
class Save:
    """A save in flight on this node."""

    step: int
    id: SaveId | None = None  # once the leader has published it
    since_s: float = field(default_factory=time.monotonic)
    names: dict[int, str] = field(default_factory=dict)  # names of the sealed shards, by local rank
    records: dict[str, ShardRecord] = field(default_factory=dict)  # of the sealed shards, by name
    staged: set[int] = field(default_factory=set)  # local ranks that have staged a shard
    lines: set[Line] = field(default_factory=set)  # that its ranks continue: one, if all have loaded the same step
    tasks: Tasks = field(default_factory=Tasks)  # sealing, protecting, and watching both
    tokens: Counter[str] = field(default_factory=Counter)  # number of ranks that sent each token of a replica group
    members: dict[str, int] = field(default_factory=dict)  # by token, number of ranks that have to send it
    nbytes: int = 0
    given: list[Given] = field(default_factory=list)  # what its ranks have given
    stall_s: float = 0.0  # of the slowest rank
    flush: bool = False
    promised: bool = False

    @property
    def newest_line(self) -> Line:
        return max(self.lines)


class SaveNode(Part):
    """All saves in flight on this node."""

    def __init__(self, context: Context, saves: NodeSaves, protect: ProtectNode) -> None:
        super().__init__(context)
        self._saves, self._protect = saves, protect
        self._line: Line | None = None  # the newest one that a worker of this node has saved to
        self._slots = context.config.slots
        self._in_flight: dict[int, Save] = {}
        self._ending: set[Save] = set()  # dropped, but the workers do not know yet
        self._is_lost = False  # whether the other agents are lost, and the workers know it
        self._dropped: deque[int] = deque(maxlen=_REMEMBER)  # a worker may still stage one of them
        self._dropped_up_to = -1  # a worker of this node has dropped its saves up to this step
        self._lower_until_s: float | None = None  # for workers that close in a stop
        self._sealing = [asyncio.Lock() for _ in range(self._place.ranks_per_node)]  # seals each rank's steps in order

    def staged(self, client: Client, message: dict[str, Any]) -> None:
        """A worker has staged its shard into one of its slots. An invalid shard drops the save at once."""
        try:
            self._take(client, message)
        except (CheckpointError, KeyError, TypeError, ValueError) as error:
            if type(step := message.get("step")) is int:
                reason = f"the shard of rank {self._rank_of(client)} was refused: {error}"
                self.drop_shard(step, self._line_of(message), reason)
            raise

    def _take(self, client: Client, message: dict[str, Any]) -> None:
        fields = check(message, OF_WORKER)
        local_rank, step, slot, rank = client.local_rank, fields["step"], fields["slot"], fields["rank"]
        layout, line = Layout.from_json(fields["layout"]), fields["descent"]
        if slot >= self._slots or rank != self._rank_of(client):
            raise AgentError(f"staged: slot {slot} of rank {rank} is not one of local rank {local_rank}")
        self._follow_line(line)
        is_dropped, save_id = step in self._dropped or step <= self._dropped_up_to, self._context.save_id(step, line)
        if is_dropped or save_id in self._saves.pinned or self._memory_store.find(save_id, rank):
            reason = "dropped already" if is_dropped else "saved already"
            client.send({"event": "dropped", "step": step, "reason": reason})
            return
        save = self._begin(step)
        if local_rank in save.staged:
            raise AgentError(f"step {step} is in flight already")
        save.staged.add(local_rank)
        save.lines.add(line)
        save.flush |= bool(message.get("flush"))
        save.stall_s = max(save.stall_s, float(message.get("stall_s", 0.0)))
        for name, value in parse_metrics(message.get("metrics", {})).items():
            save.given.append((name, rank, value))
        members = {str(token): int(size) for token, size in dict(message.get("tokens", {})).items()}
        save.tokens.update(members.keys())
        save.members.update(members)
        staged = ShardRecord(
            save=save_id, namespace=self._config.namespace, rank=rank,
            world_size=self._place.world_size, layout=layout, blocks=(), flush=save.flush,
        )  # fmt: skip
        save.tasks.start(self._seal(save, local_rank, str(StoredName(own_stem(local_rank), slot)), staged))

    def _follow_line(self, line: Line) -> None:
        """Steps that were dropped say nothing about those of a line that begins later.

        The first line has them: a rank may drop a step before another one has staged it.
        """
        if self._line is not None and line > self._line:
            self._dropped.clear()
            self._dropped_up_to = -1
        self._line = max(line, self._line or line)

    def _line_of(self, message: dict[str, Any]) -> Line:
        """The line in a message that may be malformed; else that of this node's saves."""
        try:
            return Line.from_json(message["descent"])
        except (CheckpointError, KeyError, TypeError):
            return self._line or FIRST

    def drop_shard(self, step: int, line: Line, reason: str) -> None:
        """A worker of this node could not save a step, so no node need wait for it."""
        self._follow_line(line)
        if step not in self._dropped:
            save = self._begin(step)
            save.lines.add(line)
            save.tasks.start(self._ask_drop(save, reason))

    async def drop_up_to(self, step: int, line: Line, rank: int) -> None:
        """A worker of this node had no agent up to a step, so no save up to it can become complete."""
        self._follow_line(line)
        self._dropped_up_to = max(self._dropped_up_to, step)
        for save in [save for save in self._in_flight.values() if save.step <= step]:
            save.tasks.start(self._ask_drop(save, f"rank {rank} was without an agent"))
        try:
            await self._peers.call(0, "ask_drop_up_to", step=step, descent=line)
        except PeerError as error:
            self._listener.problem("dropped saves not reported", str(error), step)

    async def limit_lower(self, lower_s: float | None) -> None:
        """All ranks stop. Those that close wait for the lower tiers for this time at most; None: without a limit."""
        self._lower_until_s = None if lower_s is None else time.monotonic() + lower_s
        await self._saves.notify()

    async def await_saves(self, *, is_closing: bool = False) -> None:
        """Returns when the workers know the outcome of this node's saves, or that the other agents are lost.

        Args:
            is_closing: whether the limit of a stop applies: then the outcome in the lower tiers may not be known.
        """
        async with self._saves.changed:
            while not self._is_lost and (self._in_flight or self._ending or self._saves.pinned):
                left_s = self._lower_left_s() if is_closing and not (self._in_flight or self._ending) else None
                if left_s is not None and left_s <= 0:
                    return
                with suppress(asyncio.TimeoutError):
                    await within(left_s, self._saves.changed.wait())

    def _lower_left_s(self) -> float | None:
        return None if self._lower_until_s is None else self._lower_until_s - time.monotonic()

    async def world_lost(self, reason: str) -> None:
        """The other agents are lost. Promised saves may have committed, so they stay. No other save can commit."""
        for unpromised in [save for save in self._in_flight.values() if not save.promised]:
            await self._drop(unpromised.step, reason)
        await self._saves.world_lost()
        self._listener.to_workers("world_lost", reason=reason)
        self._is_lost = True
        await self._saves.notify()

    def _rank_of(self, client: Client) -> int:
        ranks = self._context.ranks(self._place.node_rank)
        if not 0 <= client.local_rank < len(ranks):
            raise AgentError(f"local rank {client.local_rank}: this node has {len(ranks)}")
        return ranks[client.local_rank]

    def _begin(self, step: int) -> Save:
        save = self._in_flight.get(step)
        if save is None:
            save = self._in_flight[step] = Save(step=step)
            save.tasks.start(self._watch(save))
        return save

    async def _watch(self, save: Save) -> None:
        """Asks to drop a save that makes no progress: a worker died, or the leader is silent."""
        await asyncio.sleep(self._deadlines.seal_s)
        missing = [rank for rank in range(self._place.ranks_per_node) if rank not in save.names]
        if missing:
            ranks = ", ".join(map(str, missing))
            await self._ask_drop(
                save, f"local rank {ranks} has not sealed its shard within {self._deadlines.seal_s:g} s"
            )
            return
        await asyncio.sleep(self._deadlines.protect_s)
        if not save.promised:
            await self._ask_drop(save, f"node {self._place.nodes[0]} has not called for redundancy within its deadline")

    async def _seal(self, save: Save, local_rank: int, name: str, staged: ShardRecord) -> None:
        """Checksums a staged shard, and reports to the leader once all shards of the node are sealed."""
        try:
            async with self._sealing[local_rank]:
                data = self._memory_store.bytes_of(name, staged.layout.nbytes)
                blocks = await asyncio.to_thread(checksums, data)
                save.names[local_rank], save.records[name] = name, replace(staged, blocks=blocks)
            save.nbytes += len(data)
            if len(save.names) == self._place.ranks_per_node:
                token_counts = [[token, count, save.members[token]] for token, count in save.tokens.items()]
                await self._peers.call(
                    0, "sealed", step=save.step, nbytes=save.nbytes, flush=save.flush, token_counts=token_counts,
                    lines=sorted(save.lines), given=merged_metrics(save.given),
                    stall_s=save.stall_s, elapsed_s=time.monotonic() - save.since_s,
                )  # fmt: skip
        except (CheckpointError, OSError) as error:
            await self._ask_drop(save, str(error))

    async def _ask_drop(self, save: Save, reason: str) -> None:
        """Asks the leader to drop the save everywhere. If that fails, drops it here."""
        try:
            await self._peers.call(0, "ask_drop", step=save.step, descent=save.newest_line, reason=reason)
        except PeerError as error:
            if not save.promised:
                self._listener.problem("save dropped", f"{reason}; {error}", save.step, failed="memory")
                await self._drop(save.step, reason)

    @serves("publish")
    async def _on_publish(self, source: int, save: SaveId, metrics: dict[str, float]) -> None:
        found = self._in_flight.get(save.step)
        if found is None:
            raise AgentError(f"step {save.step} was dropped here")
        found.id = save
        for name, record in found.records.items():
            self._memory_store.publish(name, replace(record, save=save, metrics=metrics))

    @serves("protect")
    async def _on_protect(self, source: int, save: SaveId) -> None:
        found = self._in_flight.get(save.step)
        if found is None or found.id != save:
            raise AgentError(f"step {save.step} was dropped here")
        newest, keep = self._saves.newest, None
        if newest or not self._place.generation:
            keep = {save, *([newest] if newest else [])}
        # else these agents have replaced lost ones and know no newest save: what is here may be all that is left of one
        try:
            await found.tasks.hold(self._protect.make(save, keep))
        except asyncio.CancelledError:
            raise AgentError(f"step {save.step} was dropped meanwhile") from None
        found.promised = True

    @serves("commit_save")
    async def _on_commit_save(
        self, source: int, save: SaveId, tiers: list[str], nbytes: int, seconds: float, stall_s: float
    ) -> None:
        step = save.step
        found = self._in_flight.get(step)
        if found is None or found.id != save:
            raise AgentError(f"step {step} was dropped here")
        del self._in_flight[step]
        self._saves.committed(save, found.names, tiers)
        report = {"step": step, "bytes": nbytes, "seconds": seconds}
        self._listener.to_workers("committed", save=save, pinned=bool(tiers), **report)
        self._listener.to_monitors("commit", tier="memory", **report, stall_s=stall_s)
        await found.tasks.cancel()
        for older in [older for older in self._in_flight if older < step]:  # their outcome will not arrive any more
            await self._drop(older, f"step {step} has committed, and this one's commit did not arrive")
        self._tidy()
        await self._saves.notify()

    @serves("large_tensors")
    async def _on_large_tensors(self, source: int, save: SaveId) -> dict[str, Any]:
        found = [self._memory_store.find(save, rank) for rank in self._context.ranks(self._place.node_rank)]
        if not all(found):
            return {"rows": None}
        records = [self._memory_store.record(names[0]) for names in found]
        return {"rows": await asyncio.to_thread(rows_of, records)}

    def _tidy(self) -> None:
        local_ranks = range(self._place.ranks_per_node)
        stems = set(map(own_stem, local_ranks))
        stems |= {copy_stem(node, local_rank) for node in self._protect.sources for local_rank in local_ranks}
        self._memory_store.tidy(stems, self._slots, self._saves.kept)
        self._protect.tidy(self._saves.kept)
        left = {record.save for record in self._memory_store.shards().values()} | self._protect.saves()
        forget_notes(self._place.ram_dir, set(map(directory_name, left)))

    @serves("drop")
    async def _on_drop(self, source: int, step: int, descent: Line, reason: str, replicas_differ: bool) -> None:
        """Drops a save, but not one of the same step that a later line has here already."""
        save = self._in_flight.get(step)
        self._follow_line(descent)
        if descent == self._line or (save is not None and descent >= save.newest_line):
            await self._drop(step, reason, replicas_differ=replicas_differ)

    async def _drop(self, step: int, reason: str, *, replicas_differ: bool = False) -> None:
        """Ends all work on a save, then tells the workers. From then on nothing here reads their slots."""
        if step not in self._dropped:
            self._dropped.append(step)
        if (save := self._in_flight.pop(step, None)) is None:
            return
        self._ending.add(save)
        try:
            await save.tasks.cancel()
            self._listener.to_workers("dropped", step=step, reason=reason, replicas_differ=replicas_differ)
        finally:
            self._ending.discard(save)
        await self._saves.notify()
