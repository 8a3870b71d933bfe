"""At the start of an attempt node rank 0 leads all agents to one restore: the newest step that is whole and verifies.

inventory -> for each candidate, newest first: verify, rebuild from parity -> plan -> every node takes it up -> its
redundancy anew -> what was passed over because its bytes are damaged is quarantined.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ckpt.agent.context import Context, Part
from ckpt.agent.flush.leader import FlushLeader
from ckpt.agent.flush.lease import Lease
from ckpt.agent.flush.tier_contents import TierContents, read_tier_contents
from ckpt.agent.protect.leader import RebuildLeader
from ckpt.agent.restore.plan import Plan
from ckpt.agent.rpc.peers import PeerError
from ckpt.agent.storage_calls import in_time
from ckpt.errors import AgentError, CheckpointError, CorruptError
from ckpt.format.shard_record import SaveId
from ckpt.tiers.catalog import directory_name

_MEMORY = "memory"
_OWN, _COPY, _DISK = range(3)  # how a node holds a shard: as its own, as a copy, on its NVMe

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Held:
    """What all nodes together hold of one save."""

    world_size: int
    kinds: dict[tuple[int, int], int] = field(default_factory=dict)  # how, by rank and node
    holders: dict[int, list[int]] = field(default_factory=dict)  # the nodes by rank, best first


class RestoreLeader(Part):
    """What node rank 0 does: finds the newest complete step, and sees to it that it is complete again on every node."""

    def __init__(self, context: Context, lease: Lease, flush: FlushLeader) -> None:
        super().__init__(context)
        self._lease = lease
        self._flush = flush
        self._contents = TierContents(held={}, last_s={}, unreadable=())
        self._rebuilding = RebuildLeader(context)
        self._skipped: list[tuple[int, str]] = []
        self._damaged: dict[SaveId, dict[str, str]] = {}  # steps passed over: by tier (or memory), what is damaged
        self._foreseen = False  # nodes have been told of a plan that may come: once, workers ask but once
        self._in_memory_now = False  # every shard of the plan lies in the memory of the node where its rank runs

    async def run(self) -> None:
        """Agrees on a plan with all nodes, or tells them all that there is none."""
        try:
            plan, _ = await asyncio.gather(self._find(), self._lease.take())
        except Exception as error:
            log.exception("no restore agreed")
            await self._tell("no_restore", reason=str(error))
            return
        same_world = plan.world_size == self._place.world_size
        in_place = same_world and self._in_memory_now
        tiers = self._flush.resume(self._contents, plan.save if in_place else None)
        answers = await self._tell("restore", plan=plan.to_json(), same_world=same_world, tiers=tiers)
        nbytes = sum(answer["pinned_bytes"] for answer in answers)
        taken = {rank: node for node, answer in enumerate(answers) for rank in answer["taken"]}
        await self._protect(plan.taken_over(taken), in_place)
        for save, damaged in self._damaged.items():
            await self._quarantine(save, damaged)
        if plan.save and tiers:
            await self._flush.lead(plan.save, nbytes, tiers)

    async def _protect(self, plan: Plan, in_place: bool) -> None:
        since_s = time.monotonic()
        if in_place:
            answers = await self._tell("protect_newest")
        elif (placement := plan.placement).nodes:
            alone = [rank for rank in placement.nodes if self._stay(plan.holders[rank]) == 1]
            answers = await self._tell("protect_moved", placement=placement.to_json(), alone=alone)
        else:
            return
        made = sum(answer["made"] for answer in answers)
        log.info("redundancy of the restored step: %d made in %.3f s", made, time.monotonic() - since_s)

    def _stay(self, nodes: list[int]) -> int:
        """How many of these nodes are no holders."""
        return sum(node in self._context.training for node in nodes)

    async def _quarantine(self, save: SaveId, damaged: dict[str, str]) -> None:
        """A step that was passed over is not tried again where it is damaged; nodes know their own disks."""
        everyone = range(len(self._peers.nodes))
        await self._tell("quarantine", everyone, save=save.to_json(), reason=damaged.get(_MEMORY, ""))
        for name, reason in damaged.items():
            where = f"the nodes' {_MEMORY}"
            try:
                if name != _MEMORY:
                    self._lease.check(name)
                    quarantine = self._context.tiers[name].quarantine
                    where = await in_time(self._deadlines.flush_s, quarantine, directory_name(save), reason)
            except (CheckpointError, OSError) as error:
                self._listener.problem("step not quarantined", f"{name} tier: {error}", save.step)
            else:
                self._listener.problem("step quarantined", f"{where}: {reason}", save.step)

    async def _tell(self, op: str, nodes: Iterable[int] | None = None, **fields: Any) -> list[dict[str, Any]]:
        """The same call to some nodes (None: those that train); no answers when one fails, which is reported."""
        nodes = self._context.training if nodes is None else nodes
        try:
            return await self._peers.call_all(op, nodes, **fields)
        except PeerError as error:
            self._listener.problem(f"restore: {op} failed on a node", str(error))
            return []

    async def _find(self) -> Plan:
        """The newest save that can be had whole. Raises when it cannot be known whether there is one."""
        answers = await self._peers.call_all("inventory")
        held = self._held(answers)
        # While nodes may hold a whole step, a slow tier is not waited for long; a part of one is nothing without it.
        is_whole = any(len(one.holders) == one.world_size for one in held.values())
        has_parity = any(answer["parity"] for answer in answers)
        timeout_s = self._deadlines.answer_s if is_whole or has_parity else self._deadlines.verify_s
        self._contents = await read_tier_contents(self._context, answers, timeout_s)
        stored = self._stored()
        for save in _newest_first(held, list(stored), self._place.run_id):
            plan = await self._complete(save, held.get(save), stored.get(save, []))
            if plan is not None:
                return plan
        if self._contents.unreadable:
            raise AgentError(f"no memory holds a complete step, and {'; '.join(self._contents.unreadable)}")
        return Plan(skipped=tuple(self._skipped))

    def _held(self, answers: list[dict[str, Any]]) -> dict[SaveId, Held]:
        """By save, what the nodes say they hold in memory and on their own disks."""
        found: dict[SaveId, Held] = {}
        for node, answer in enumerate(answers):
            self._rebuilding.note(node, answer["parity"])
            rows = [(*row[:3], _OWN if row[3] else _COPY) for row in answer["shards"]]
            rows += [(*row, _DISK) for row in answer["nvme"]]
            for save_json, world_size, rank, kind in rows:
                held = found.setdefault(SaveId.from_json(save_json), Held(world_size=world_size))
                held.kinds[rank, node] = min(kind, held.kinds.get((rank, node), kind))
        for held in found.values():
            for rank, node in sorted(held.kinds, key=partial(self._preference, held)):
                held.holders.setdefault(rank, []).append(node)
        return found

    def _preference(self, held: Held, at: tuple[int, int]) -> tuple[Any, ...]:
        """Memory before disks; who stays before holders; the rank's node of now before others; who saved it before
        copies.
        """
        (rank, node), kind = at, held.kinds[at]
        is_holder = node not in self._context.training
        return (kind == _DISK, is_holder, node != self._context.home(rank), kind, node)

    def _stored(self) -> dict[SaveId, list[str]]:
        """By save, the tiers that all nodes see and that have it."""
        found: dict[SaveId, list[str]] = defaultdict(list)
        for name, saves in self._contents.held.items():
            for save in saves if not self._context.tiers[name].node_local else []:
                found[save].append(name)
        return found

    async def _complete(self, save: SaveId, held: Held | None, stored: list[str]) -> Plan | None:
        """The plan to restore this save, every byte verified; None (and why, in `skipped`) when that cannot be."""
        held = held or Held(world_size=0)
        world_size, holders = held.world_size, held.holders
        await self._keep_verified(save, holders)
        rebuilt, no_rebuild, damage = await self._bring_back(save, held)
        held.kinds.update({(rank, holders[rank][0]): _OWN for rank in rebuilt})
        lost = [rank for rank in range(world_size) if not holders.get(rank)]
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        reasons, damaged = [], {_MEMORY: damage} if damage else {}
        if lost:
            reasons.append(f"rank {lost[0]}{more} of {world_size}: no node's memory holds a shard that verifies")
            reasons += [no_rebuild] if no_rebuild else []
        source, fetched = None, list[int]()
        for name in stored if lost or not world_size else []:
            try:
                manifest = await in_time(self._deadlines.verify_s, self._context.tiers[name].read_manifest, save)
                world_size = manifest.world_size
                lost = [rank for rank in range(world_size) if not holders.get(rank)]
                fetched = await self._verify_stored(name, save, world_size, lost)
                source, reasons = name, []
                break
            except (CheckpointError, OSError) as error:
                reasons.append(f"{name} tier: {error}")
                if isinstance(error, CorruptError):
                    damaged[name] = str(error)
        if reasons:
            self._damaged[save] = damaged
            log.warning("step %d of attempt %d passed over: %s", save.step, save.attempt, "; ".join(reasons))
            self._skipped.append((save.step, "; ".join(reasons)))
            return None
        on_disk = tuple(rank for rank, nodes in holders.items() if nodes and held.kinds[rank, nodes[0]] == _DISK)
        self._in_memory_now = len(fetched) == len(lost)
        leaving = [rank for rank, nodes in holders.items() if nodes and nodes[0] not in self._context.training]
        if world_size == self._place.world_size:
            leaving = []  # every node takes up the shards of its own ranks in any case
        return Plan(
            save=save, world_size=world_size, tier=source or ("nvme" if on_disk else "memory"), holders=holders,
            rebuilt=tuple(rebuilt), nvme=on_disk, leaving=tuple(leaving),
            stored=tuple(sorted(stored, key=lambda name: name != source)), fetched=tuple(fetched),
            skipped=tuple(self._skipped),
        )  # fmt: skip

    async def _bring_back(self, save: SaveId, held: Held) -> tuple[list[int], str, str]:
        """As RebuildLeader's; when the world has another size now, nodes prefetch what survives.

        A rebuild that fails is tried once more, alone: what was prefetched may have taken the memory that it needed.
        """
        work = (save, held.world_size, held.holders, self._only_on_disks(held))
        lost = tuple(rank for rank in range(held.world_size) if not held.holders.get(rank))
        keepers = []
        if lost and held.world_size != self._place.world_size and not self._foreseen:
            keepers = await self._rebuilding.prospect(*work)
        if not keepers:
            return await self._rebuilding.bring_back(*work)
        self._foreseen = True
        plan = Plan(save=save, world_size=held.world_size, holders=held.holders, rebuilt=lost)
        await self._tell("foresee", plan=plan.to_json(), headers=keepers)
        rebuilt, failure, _ = await self._rebuilding.bring_back(*work)
        if not failure:
            return rebuilt, failure, ""
        log.warning("step %d: %s; once more, with nothing prefetched", save.step, failure)
        await self._tell("withdraw")
        again, failure, damage = await self._rebuilding.bring_back(*work)
        return [*rebuilt, *again], failure, damage

    def _only_on_disks(self, held: Held) -> set[int]:
        """The ranks whose best holder has the shard on its disk, and has not brought it into its memory."""
        same_world = held.world_size == self._place.world_size
        best = [(rank, nodes[0]) for rank, nodes in held.holders.items() if nodes]
        return {
            rank
            for rank, node in best
            if held.kinds[rank, node] == _DISK and not (same_world and node == self._context.home(rank))
        }

    async def _keep_verified(self, save: SaveId, holders: dict[int, list[int]]) -> None:
        """Lets the best holder of each rank read its bytes; one whose bytes are damaged is struck off for the next."""
        pending = sorted(holders)
        while pending:
            asked: dict[int, list[int]] = defaultdict(list)
            for rank in pending:
                asked[holders[rank][0]].append(rank)
            answers = await self._peers.call_each("verify", asked, save=save.to_json())
            pending = []
            for node, answer in zip(asked, answers, strict=True):
                for rank in answer["unverified"]:
                    name = self._peers.nodes[node]
                    self._listener.problem("shard does not verify", f"rank {rank} in the memory of {name}", save.step)
                    del holders[rank][0]
                    if holders[rank]:
                        pending.append(rank)

    async def _verify_stored(self, name: str, save: SaveId, world_size: int, ranks: list[int]) -> list[int]:
        """All nodes together read the shards that only a lower tier holds; returns those that are in memory now.

        Raises:
            CorruptError: bytes that were read do not match.
            PeerError: a node could not read.
        """
        parts: dict[int, list[int]] = defaultdict(list)
        for rank in ranks:
            parts[self._context.reader(rank, world_size)].append(rank)
        answers = await self._peers.call_each("verify_stored", parts, tier=name, save=save.to_json())
        if damaged := [answer["damaged"] for answer in answers if "damaged" in answer]:
            raise CorruptError("; ".join(damaged))
        return [rank for answer in answers for rank in answer["fetched"]]


def _newest_first(memory: dict[SaveId, Any], stored: list[SaveId], run_id: str) -> list[SaveId]:
    """By step; of one step this run's, latest attempt first, then others' in the tier's own order."""
    saves = [*(save for save in memory if save not in stored), *stored]
    ours = {save: save.run_id == run_id for save in saves}
    return sorted(saves, key=lambda save: (-save.step, not ours[save], -save.attempt if ours[save] else 0))
