"""Node rank 0 leads the flush of committed saves to the lower tiers: every node writes its file, then one commit.

The tiers are independent. Each takes one save at a time, at its own cadence.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial

from ckpt.agent.cadence import CadenceLeader
from ckpt.agent.context import Context, Part
from ckpt.agent.flush.lease import Lease
from ckpt.agent.flush.tier_contents import TierContents
from ckpt.agent.rpc.messages import serves
from ckpt.agent.storage_calls import in_thread, in_time
from ckpt.errors import AgentError, CheckpointError
from ckpt.format.manifest import merge
from ckpt.format.shard_record import SaveId
from ckpt.sections import AUTO, TierSection
from ckpt.tiers.last_seen import remember
from ckpt.tiers.posix import SharedTier
from ckpt.tiers.tier import Tier
from holdfast.base.deadlines import within


class FlushLeader(Part):
    """Decides to which tiers a save is flushed, and leads the flush."""

    def __init__(
        self,
        context: Context,
        lease: Lease,
        newest: Callable[[], SaveId | None],
        cadence: CadenceLeader,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            newest: the newest committed or restored save.
            cadence: gives the time between saves where `every_steps` is `auto`.
        """
        super().__init__(context)
        self._lease = lease
        self._newest = newest
        self._cadence = cadence
        self._finishing: asyncio.Future[None] | None = None
        self._asking: set[int] = set()  # nodes whose agents end once the newest step is written
        self._all_ask = asyncio.Event()
        self._sections: dict[str, TierSection] = context.config.lower
        self._clock = clock
        self._one_at_a_time: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._held: dict[str, set[SaveId]] = {name: set() for name in self._sections}  # at the start
        self._reached: dict[str, SaveId] = {}  # the save that was written last, by tier
        self._busy: dict[str, set[int]] = {name: set() for name in self._sections}
        self._last_s = dict.fromkeys(self._sections, clock())  # start of the newest flush, by tier

    def wanted(self, step: int, asked: bool) -> list[str]:
        """The tiers to which a step is flushed. Their flush counts as started.

        Args:
            asked: whether to flush to all tiers; else only where the step is due and no other is under way.
        """
        return [name for name, section in self._sections.items() if self._wanted(name, section, step, asked)]

    def _wanted(self, name: str, section: TierSection, step: int, asked: bool) -> bool:
        now, busy = self._clock(), self._busy[name]
        due = any(step % every == 0 for every in section.multiples)
        limits = (section.every_s, self._cadence.tier_every_s(name) if section.every_steps == AUTO else None)
        due |= any(limit is not None and now - self._last_s[name] >= limit for limit in limits)
        due &= not (busy and not asked and section.every_steps == AUTO)  # it waits for a free time
        if due and busy and not asked:
            older = ", ".join(map(str, sorted(busy)))
            self._listener.problem(
                f"not flushed to the {name} tier", f"the flush of step {older} has not ended", step, failed=name
            )
            self._listener.to_workers("flush_dropped", step=step, tier=name, under_way=older)
            return False
        if due or asked:
            self._start(name, step)
        return due or asked

    def resume(self, contents: TierContents, save: SaveId | None) -> list[str]:
        """Continues after earlier agents. Returns the tiers to which a restored save is flushed.

        `every_s` counts from the newest commit in each tier, because a run that restarts often would never reach it
        otherwise. The wall clock gives the time of that commit and may jump, so the age is limited to 0 to `every_s`.

        Args:
            save: the restored save, if all its shards are in the memory of the nodes where their ranks run; else None.
        """
        self._held |= {name: set(saves) for name, saves in contents.held.items()}
        for name, section in self._sections.items():
            if section.every_s is not None and name in contents.last_s:
                age_s = min(max(time.time() - contents.last_s[name], 0.0), section.every_s)
                self._last_s[name] = self._clock() - age_s
        if save is None:
            return []
        shards = self._memory_store.shards().values()
        asked = any(record.flush for record in shards if record.save == save)
        names = []
        for name, section in self._sections.items():
            now = asked or self._is_late(name, section, contents)
            due = save.step if now else max((save.step - save.step % every for every in section.multiples), default=0)
            if (
                name in contents.held
                and (due or not save.step)
                and not any(_is_between(due, other, save) for other in contents.held[name])
            ):
                self._start(name, save.step)
                names.append(name)
        return names

    def _is_late(self, name: str, section: TierSection, contents: TierContents) -> bool:
        """Whether a flush is due by `every_s`, which is also the case if the tier has no commit yet."""
        if section.every_s is None:
            return False
        return name not in contents.last_s or self._clock() - self._last_s[name] >= section.every_s

    def _start(self, name: str, step: int) -> None:
        self._busy[name].add(step)
        self._last_s[name] = self._clock()

    async def lead(self, save: SaveId, nbytes: int, names: list[str]) -> None:
        """Flushes a committed save to tiers. A failure is reported, and the slots are freed all the same."""
        await asyncio.gather(*(self._lead(save, nbytes, name) for name in names))

    @serves("ask_finish")
    async def _on_ask_finish(self, source: int) -> None:
        """Answers all nodes together: an agent that has its answer ends, and node rank 0 answers the others."""
        self._asking.add(source)
        if self._asking.issuperset(self._context.training):
            self._all_ask.set()
        if self._finishing is None:
            self._finishing = asyncio.ensure_future(self._finish())
        await asyncio.shield(self._finishing)
        with contextlib.suppress(asyncio.TimeoutError):  # a node whose runner is lost never asks
            await within(self._deadlines.answer_s, self._all_ask.wait())

    async def _finish(self) -> None:
        """Writes the newest step to all tiers that lack it, as memory is freed with the job.

        Nothing is written if some shards are not in the memory of the nodes where their ranks run.
        """
        for name in self._sections:
            async with self._one_at_a_time[name]:
                pass  # flushes that have begun may be of this step
        newest = self._newest()
        has = {name: newest in self._held[name] or self._reached.get(name) == newest for name in self._sections}
        missing = [name for name in self._sections if not has[name]]
        if newest is None or not missing:
            return
        answers = await self._try_all("the last step is not pinned on every node", "pin_newest", tiers=missing)
        pinned = [answer["pinned_bytes"] for answer in answers]
        if not pinned or None in pinned:
            return
        self._listener.to_monitors("finishing", step=newest.step, tiers=missing)
        for name in missing:
            self._start(name, newest.step)
        await self.lead(newest, sum(pinned), missing)

    async def _lead(self, save: SaveId, nbytes: int, name: str) -> None:
        tier, since_s, step = self._context.tiers[name], time.monotonic(), save.step
        async with self._one_at_a_time[name]:
            try:
                self._lease.check(name)
                await (self._write_locally(name, save) if tier.node_local else self._write_shared(name, tier, save))
                failure, self._reached[name] = None, save
            except (CheckpointError, OSError) as error:
                failure = str(error)
                self._listener.problem(f"flush to the {name} tier failed", failure, step, failed=name)
            self._busy[name].discard(step)
            seconds = round(time.monotonic() - since_s, 6)
            await self._try_all(
                "end of a flush not confirmed by every node", "flush_done", tier=name, save=save,
                reached=failure is None, nbytes=nbytes, seconds=seconds,
            )  # fmt: skip
            if failure is None:
                self._cadence.flushed(name, seconds)
                self._listener.to_monitors("commit", tier=name, step=step, bytes=nbytes, seconds=seconds)
                await self._retain(name, tier, self._sections[name])

    async def _write_shared(self, name: str, tier: Tier, save: SaveId) -> None:
        """All nodes write, then this node commits."""
        await self._lease.prepare(name, self._deadlines.flush_s)
        await in_time(self._deadlines.flush_s, tier.begin, save)
        answers = await self._context.call_training("flush_write", tier=name, save=save)
        world_size, packs = self._place.world_size, [answer["places"] for answer in answers]
        shards = await in_thread(merge, save, self._config.namespace, world_size, packs)
        await in_time(self._deadlines.flush_s, tier.commit, save, world_size, shards)
        if isinstance(tier, SharedTier):
            with contextlib.suppress(AgentError):  # the home directory does not answer
                await in_time(self._deadlines.answer_s, remember, tier.folder, save, self._place.owner)

    async def _write_locally(self, name: str, save: SaveId) -> None:
        """All nodes write, then all commit. So no node commits a step that another could not write."""
        await self._context.call_training("flush_write", tier=name, save=save)
        await self._context.call_training("flush_commit", tier=name, save=save)

    async def _retain(self, name: str, tier: Tier, section: TierSection) -> None:
        keep, lasting = section.keep, section.lasting
        try:
            if not tier.node_local:
                await in_time(self._deadlines.flush_s, tier.write_lasting, lasting)
                await in_time(self._deadlines.flush_s, partial(tier.retain, keep, lasting=lasting))
                return
            answers = await self._context.call_training("flush_list", tier=name)
            complete = list(set.intersection(*(set(answer["saves"]) for answer in answers)))
            await self._context.call_training("flush_retain", tier=name, keep=keep, complete=complete)
        except (CheckpointError, OSError) as error:
            self._listener.problem(f"old steps could not be removed from the {name} tier", str(error))


def _is_between(due: int, other: SaveId, save: SaveId) -> bool:
    """Whether a save that `save` continues, or is, has a step from `due` on."""
    return save.line.has(other.line.id, other.step) and due <= other.step <= save.step
