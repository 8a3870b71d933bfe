"""Node rank 0 leads all agents to one restore at the start of an attempt: the newest step that is complete and
verifies.

First it collects the inventories. Each candidate, newest first, is verified, and lost shards are rebuilt from parity.
All nodes carry out the resulting plan and complete its redundancy. Steps that were passed over as damaged are
quarantined.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

from ckpt.agent.context import Context, Part
from ckpt.agent.flush.leader import FlushLeader
from ckpt.agent.flush.lease import Lease
from ckpt.agent.flush.tier_contents import LostStep, TierContents, read_tier_contents
from ckpt.agent.protect.leader import RebuildLeader
from ckpt.agent.shards.held import Held, ShardKind, held_saves
from ckpt.agent.shards.plan import Plan
from ckpt.agent.storage_calls import in_thread, in_time
from ckpt.errors import AgentError, CheckpointError, CorruptError
from ckpt.format.line import FIRST, newest_line
from ckpt.format.shard_record import SaveId
from ckpt.tiers.catalog import directory_name, is_of_run, newest_first
from ckpt.tiers.last_seen import Seen, last_seen, seen_elsewhere, why_absent
from ckpt.tiers.posix import SharedTier
from ckpt.tiers.quarantine import QUARANTINED

_MEMORY = "memory"
_MOST_REASONS = 5  # in one message

log = logging.getLogger(__name__)


class RestoreLeader(Part):
    """Finds the newest complete step, and completes it on every node."""

    def __init__(self, context: Context, lease: Lease, flush: FlushLeader) -> None:
        super().__init__(context)
        self._lease = lease
        self._flush = flush
        self._contents = TierContents(held={}, last_s={}, unreadable=())
        self._line = FIRST  # whose newest step is restored
        self._rebuilding = RebuildLeader(context)
        self._skipped: list[tuple[int, str]] = []
        self._missing: Seen | None = None  # the last step that was written to the shared directory, if it is not there
        self._elsewhere: Seen | None = None  # where this job has saved before, if nothing is here
        self._damaged: dict[SaveId, dict[str, str]] = {}  # passed over: the damage, by tier (or memory)
        self._unread: dict[str, str] = {}  # shared tiers of which a step could not be read, with the reason
        self._foreseen = False  # a plan that may come is announced only once, because workers ask only once
        self.is_refused = False  # there are steps, and none can be restored: training does not begin
        self._in_memory_now = False  # whether every shard of the plan is in the memory of its rank's node

    async def run(self) -> None:
        """Agrees on a plan with all nodes, or tells all that there is none."""
        try:
            plan, _ = await asyncio.gather(self._find(), self._lease.take())
        except Exception as error:
            log.exception("no restore agreed")
            if isinstance(error, NoneRestorable):
                self.is_refused = True
                self._listener.to_monitors("restore_refused", reason=str(error))
            await self._call("no_restore", reason=str(error))
            return
        same_world = plan.world_size == self._place.world_size
        in_place = same_world and self._in_memory_now
        tiers = self._flush.resume(self._contents, plan.save if in_place else None)
        answers = await self._call("restore", plan=plan, same_world=same_world, tiers=tiers)
        nbytes = sum(answer["pinned_bytes"] for answer in answers)
        taken = {rank: node for node, answer in enumerate(answers) for rank in answer["taken"]}
        await self._protect(plan.taken_over(taken), in_place)
        for save, damaged in self._damaged.items():
            await self._quarantine(save, damaged)
        if plan.save and tiers:
            await self._flush.lead(plan.save, nbytes, tiers)

    async def _protect(self, plan: Plan, in_place: bool) -> None:
        since_s, placement, alone = time.monotonic(), None, None
        if not in_place:
            placement = plan.placement
            if not placement.nodes:
                return
            stay = ((rank, set(plan.holders[rank]).intersection(self._context.training)) for rank in placement.nodes)
            alone = [rank for rank, nodes in stay if len(nodes) == 1]
        answers = await self._call("protect_restored", placement=placement, alone=alone)
        made = sum(answer["made"] for answer in answers)
        log.info("redundancy of the restored step: %d made in %.3f s", made, time.monotonic() - since_s)

    async def _quarantine(self, save: SaveId, damaged: dict[str, str]) -> None:
        """Quarantines a passed-over step where it is damaged. Nodes quarantine it on their own disks."""
        everyone = range(len(self._peers.nodes))
        await self._call("quarantine", everyone, save=save, reason=damaged.get(_MEMORY, ""))
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

    async def _call(self, op: str, nodes: Iterable[int] | None = None, **fields: Any) -> list[dict[str, Any]]:
        return await self._try_all(f"restore: {op} failed on a node", op, nodes, **fields)

    async def _find(self) -> Plan:
        """The newest save that can be completed. Raises if it cannot be known whether there is one."""
        answers = await self._peers.call_all("inventory")
        for node, answer in enumerate(answers):
            self._rebuilding.note(node, answer["parity"])
        held = {held.save: held for held in held_saves((answer["shards"] for answer in answers), self._preference)}
        # If nodes may have a complete step, a slow tier gets little time. Parts of a step are useless without the tier.
        is_whole = any(not one.lost for one in held.values())
        has_parity = any(answer["parity"] for answer in answers)
        timeout_s = self._deadlines.answer_s if is_whole or has_parity else self._deadlines.verify_s
        self._contents = await read_tier_contents(self._context, answers, timeout_s)
        await self._look_back(held)
        stored = self._stored()
        saves = list(dict.fromkeys([*held, *stored]))
        ours = self._restorable(saves)
        if self._has_to_begin(ours):
            self._line = newest_line(saves, self._contents.lines)
            return self._in_descent(Plan(), saves)
        for save in self._candidates(ours):
            plan = await self._complete(held.get(save) or Held(save=save, world_size=0), stored.get(save, []))
            if plan is not None:
                return self._in_descent(plan, saves)
        await self._refuse_to_start_anew(ours)
        return self._in_descent(Plan(skipped=tuple(self._skipped)), saves)

    def _restorable(self, saves: list[SaveId]) -> list[SaveId]:
        """With `start_fresh` those of this run only, unless its user has gone back to another line since."""
        begun = newest_line(saves, self._contents.lines)
        if not self._config.start_fresh or (begun in self._contents.lines and any(map(self._is_ours, saves))):
            return saves
        return list(filter(self._is_ours, saves))

    def _has_to_begin(self, ours: list[SaveId]) -> bool:
        """Whether this is the first attempt of a run with `start_fresh`, or none before it has saved a step."""
        may_have = self._place.attempt and (self._lost or self._contents.unreadable)
        return self._config.start_fresh and not ours and not may_have

    def _is_ours(self, save: SaveId) -> bool:
        return save.run_id == self._place.run_id

    @property
    def _lost(self) -> list[LostStep]:
        """The steps in lower tiers that cannot be restored; with `start_fresh` those of this run."""
        run_id, is_fresh = self._place.run_id, self._config.start_fresh
        return [one for one in self._contents.lost if not is_fresh or is_of_run(one.name, run_id)]

    def _candidates(self, saves: list[SaveId]) -> Iterator[SaveId]:
        """The saves of the newest line's descent, newest first. Of one step, this run's attempts first, latest first.

        A line that has nothing but shards in memory may have been lost before its first commit. Then the line before it
        follows. A line with a step in a lower tier is never passed over.
        """
        ours = {save: self._is_ours(save) for save in saves}
        in_order = sorted(saves, key=lambda save: (ours[save], save.attempt if ours[save] else 0), reverse=True)
        begun = {*self._contents.lines, *(save.line for saves in self._contents.held.values() for save in saves)}
        tried: set[SaveId] = set()
        for line in sorted({*begun, *(save.line for save in saves)}, reverse=True):
            self._line = line
            descent = [save for save in in_order if line.has(save.line.id, save.step) and save not in tried]
            tried.update(descent)
            yield from newest_first(descent, line)
            if line in begun:
                return

    async def _look_back(self, in_memory: Collection[SaveId]) -> None:
        """Compares the shared directory with what earlier runs remember of it."""
        tier, there = self._context.tiers.get("shared"), self._contents.held.get("shared")
        if not isinstance(tier, SharedTier) or there is None:
            return
        seen = await in_thread(last_seen, tier.folder)
        is_lost = seen is not None and any(one.step == seen.step for one in self._contents.lost)
        if seen is not None and not is_lost and not seen.is_among(there):
            quarantined = [name for name, _ in await in_thread(tier.quarantined)]
            if not any(name.startswith(f"{QUARANTINED}{seen.step:010d}.") for name in quarantined):
                self._missing = seen
        if not (seen or in_memory or self._contents.lost or any(self._contents.held.values())):
            self._elsewhere = await in_thread(seen_elsewhere, tier.folder, self._place.owner)

    async def _refuse_an_absent_disk(self) -> None:
        """Raises AgentError if the shared directory is empty because its file system is not mounted."""
        tier = self._context.tiers.get("shared")
        if isinstance(tier, SharedTier) and (why := await in_thread(why_absent, tier.folder)):
            way_out = "Mount it, or set `checkpoint: {start_fresh: true}` to begin at step 0"
            raise NoneRestorable(f"namespace {self._config.namespace}: {why}. {way_out}")

    async def _refuse_to_start_anew(self, saves: list[SaveId]) -> None:
        """Raises AgentError if lower tiers have steps of this namespace, but none that can be restored."""
        if unread := [*self._contents.unreadable, *self._unread.values()]:
            raise AgentError(f"no memory holds a complete step, and {'; '.join(unread)}")
        stored = {save.step for held in self._contents.held.values() for save in held if save in saves}
        lost = {one.step: one.reason for one in self._lost}
        is_fresh = self._config.start_fresh
        if not stored and not lost:
            if not is_fresh:
                await self._refuse_an_absent_disk()
            return
        reasons = {**lost, **{step: reason for step, reason in self._skipped if step in stored}}
        each = "; ".join(
            f"step {step}: {reason}" for step, reason in sorted(reasons.items(), reverse=True)[:_MOST_REASONS]
        )
        if aside := sorted({str(save.line) for save in saves if not self._line.has(save.line.id, save.step)}):
            each = "; ".join(filter(None, (each, f"{', '.join(aside)} has other steps: see `holdfast ckpt rollback`")))
        whose = "this run has saved steps, and none of them" if is_fresh else "has steps, and none"
        again = "start the job anew" if is_fresh else "set `checkpoint: {start_fresh: true}`"
        raise NoneRestorable(
            f"namespace {self._config.namespace}{': ' if is_fresh else ' '}{whose} can be restored: {each}. Training "
            f"does not begin again at step 0 by itself: repair them, choose another namespace, or {again}"
        )

    def _in_descent(self, plan: Plan, saves: list[SaveId]) -> Plan:
        """The plan with what else there is in the namespace: newer steps that cannot be restored, and other lines."""
        step = -1 if plan.save is None else plan.save.step
        other_ids = {save.line.id for save in saves if not self._line.has(save.line.id, save.step)}
        lost = [one for one in self._contents.lost if one.step > step and one.line not in other_ids]
        aside = [save for save in saves if save.step > step or plan.save is None]
        left = [f"{one.name}: {one.reason}" for one in lost]
        for line in sorted({save.line for save in aside if plan.save is None or save.line != plan.save.line}):
            steps = sorted(save.step for save in aside if save.line == line)
            why = "start_fresh" if plan.save is None else f"{self._line} is newer"
            left.append(f"{line} up to step {steps[-1]}: {why}")
        skipped = list(dict.fromkeys([*plan.skipped, *((one.step, one.reason) for one in lost)]))
        notice = ""
        if self._elsewhere is not None:
            notice = f"this job has saved elsewhere: {self._elsewhere}"
            left.append(notice)
        if (seen := self._missing) is not None and seen.step > step:
            skipped.append((seen.step, f"{seen}, and is not there any more"))
        elif seen is not None:
            notice = f"{seen}, and is not there any more: is the folder an older copy? Step {step} is restored"
            self._listener.problem("the shared directory lacks its newest step", notice, seen.step)
        # the step after which the newest line begins has a line that goes on with other steps
        is_head = not lost and (plan.save is None or plan.save.line == self._line)
        known = [save.step for save in saves if self._line.has(save.line.id, save.step)]
        numbers = [self._line.number, *(save.line.number for save in saves)]
        return replace(
            plan, skipped=tuple(sorted(skipped, reverse=True)), is_head=is_head, left=tuple(left),
            newest=max((*known, *(one.step for one in lost)), default=None), next_number=1 + max(numbers),
            began_s=time.time(), notice=notice,
        )  # fmt: skip

    def _preference(self, rank: int, node: int, kind: ShardKind) -> tuple[Any, ...]:
        """The order of sources: memory before disks, training nodes before holders, the rank's current node before
        others, the saving node before copies."""
        is_holder = node not in self._context.training
        return (kind is ShardKind.DISK, is_holder, node != self._context.home(rank), kind, node)

    def _stored(self) -> dict[SaveId, list[str]]:
        """By save, the shared tiers that have it."""
        found: dict[SaveId, list[str]] = defaultdict(list)
        for name, saves in self._contents.held.items():
            for save in saves if not self._context.tiers[name].node_local else []:
                found[save].append(name)
        return found

    async def _complete(self, held: Held, stored: list[str]) -> Plan | None:
        """The plan to restore this save, with every byte verified.

        None if that is impossible; `skipped` has the reason. A shared tier of which a newer step could not be read is
        not used, because the older step would take the newer one's place.
        """
        save, holders = held.save, held.holders
        await self._keep_verified(save, holders)
        rebuilt, no_rebuild, damage = await self._bring_back(held)
        held.kinds.update({(rank, holders[rank][0]): ShardKind.OWN for rank in rebuilt})
        lost = held.lost
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        reasons, damaged = [], {_MEMORY: damage} if damage else {}
        if lost:
            reasons.append(f"rank {lost[0]}{more} of {held.world_size}: no node's memory holds a shard that verifies")
            reasons += [no_rebuild] if no_rebuild else []
        source, fetched = None, list[int]()
        for name in stored if lost or not held.world_size else []:
            if name in self._unread:
                reasons.append(self._unread[name])
                continue
            try:
                manifest = await in_time(self._deadlines.verify_s, self._context.tiers[name].read_manifest, save)
                held.world_size = manifest.world_size
                lost = held.lost
                fetched = await self._verify_stored(name, held)
                source, reasons = name, []
                break
            except (CheckpointError, OSError) as error:
                reasons.append(f"{name} tier: {error}")
                if isinstance(error, CorruptError):
                    damaged[name] = str(error)
                elif not isinstance(error, FileNotFoundError):
                    self._unread[name] = f"step {save.step} of the {name} tier cannot be read: {error}"
        if reasons:
            self._damaged[save] = damaged
            log.warning("step %d of attempt %d passed over: %s", save.step, save.attempt, "; ".join(reasons))
            self._skipped.append((save.step, "; ".join(reasons)))
            return None
        self._in_memory_now = len(fetched) == len(lost)
        leaving = tuple(rank for rank, node in held.best.items() if node not in self._context.training)
        if held.world_size == self._place.world_size:
            leaving = ()  # every node restores the shards of its own ranks anyway
        return Plan(
            save=save, world_size=held.world_size, tier=source or ("nvme" if held.on_disks else "memory"),
            holders=holders, rebuilt=tuple(rebuilt), nvme=held.on_disks, leaving=leaving,
            stored=tuple(sorted(stored, key=lambda name: name != source)), fetched=tuple(fetched),
            skipped=tuple(self._skipped),
        )  # fmt: skip

    async def _bring_back(self, held: Held) -> tuple[list[int], str, str]:
        """As RebuildLeader's. If the world size has changed, nodes prefetch surviving blocks during the rebuild.

        A failed rebuild is tried once more without prefetching, because prefetched blocks may have taken the memory it
        needs.
        """
        is_resized = held.world_size != self._place.world_size
        # a rank's own node has read the shard from its disk into memory
        on_disks = {rank for rank in held.on_disks if is_resized or held.best[rank] != self._context.home(rank)}
        keepers = []
        if held.lost and is_resized and not self._foreseen:
            keepers = await self._rebuilding.prospect(held, on_disks)
        if not keepers:
            return await self._rebuilding.bring_back(held, on_disks)
        self._foreseen = True
        plan = Plan(save=held.save, world_size=held.world_size, holders=held.holders, rebuilt=tuple(held.lost))
        await self._call("foresee", plan=plan, headers=keepers)
        rebuilt, failure, _ = await self._rebuilding.bring_back(held, on_disks)
        if not failure:
            return rebuilt, failure, ""
        log.warning("step %d: %s; once more, with nothing prefetched", held.save.step, failure)
        await self._call("withdraw")
        again, failure, damage = await self._rebuilding.bring_back(held, on_disks)
        return [*rebuilt, *again], failure, damage

    async def _keep_verified(self, save: SaveId, holders: dict[int, list[int]]) -> None:
        """Makes the best holder of each rank verify its bytes. If they are damaged, the next holder is tried."""
        pending = sorted(holders)
        while pending:
            asked: dict[int, list[int]] = defaultdict(list)
            for rank in pending:
                asked[holders[rank][0]].append(rank)
            answers = await self._peers.call_each("verify", asked, save=save)
            pending = []
            for node, answer in zip(asked, answers, strict=True):
                for rank in answer["unverified"]:
                    name = self._peers.nodes[node]
                    self._listener.problem("shard does not verify", f"rank {rank} in the memory of {name}", save.step)
                    del holders[rank][0]
                    if holders[rank]:
                        pending.append(rank)

    async def _verify_stored(self, name: str, held: Held) -> list[int]:
        """All nodes together read the shards that only a lower tier has. Returns the ranks that are now in memory.

        Raises:
            CorruptError: bytes do not match.
            FileNotFoundError: a file is gone.
            PeerError: a node could not read.
        """
        parts: dict[int, list[int]] = defaultdict(list)
        for rank in held.lost:
            parts[self._context.reader(rank, held.world_size)].append(rank)
        answers = await self._peers.call_each("verify_stored", parts, tier=name, save=held.save)
        if damaged := [answer["damaged"] for answer in answers if "damaged" in answer]:
            raise CorruptError("; ".join(damaged))
        if missing := [answer["missing"] for answer in answers if "missing" in answer]:
            raise FileNotFoundError("; ".join(missing))
        return [rank for answer in answers for rank in answer["fetched"]]


class NoneRestorable(AgentError):
    """The namespace has steps in lower tiers, and none of them can be restored."""
