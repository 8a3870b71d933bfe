"""The agent of node rank 0 leads each save: all nodes seal, publish, protect, then commit.

A failed save is dropped everywhere. Shards whose replicas differ do not have all tensors together. A restore cannot
see that, so such shards are never published.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ckpt.agent.cadence import CadenceLeader
from ckpt.agent.context import Context, Part
from ckpt.agent.flush.leader import FlushLeader
from ckpt.agent.rpc.messages import serves
from ckpt.agent.rpc.peers import PeerError
from ckpt.agent.save.alike import compare
from ckpt.agent.shards.plan import Plan
from ckpt.agent.tasks import Tasks
from ckpt.errors import AgentError
from ckpt.format.lasting import Given, merged_metrics
from ckpt.format.line import Line
from ckpt.format.shard_record import SaveId

log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class Gathering:
    """A step that some nodes have sealed."""

    step: int
    alarm: asyncio.TimerHandle  # drops the save if some nodes have not sealed it in time
    since_s: float = field(default_factory=time.monotonic)  # when the first node received a shard of it
    nodes: dict[int, int] = field(default_factory=dict)  # sealed bytes, by node rank
    flush: bool = False
    lines: set[Line] = field(default_factory=set)  # that its ranks continue
    given: list[Given] = field(default_factory=list)  # what its ranks have given
    stall_s: float = 0.0  # of the slowest rank
    tokens: Counter[str] = field(default_factory=Counter)  # number of ranks that sent each token of a replica group
    members: dict[str, int] = field(default_factory=dict)  # by token, number of ranks that have to send it

    def differing(self) -> list[str]:
        """Groups whose ranks have not all sent the same token: they do not divide the same tensors."""
        return [
            f"{count} of {self.members[token]} ranks"
            for token, count in self.tokens.items()
            if count != self.members[token]
        ]


class SaveLeader(Part):
    """Leads steps to their commit one after another, the oldest complete one first.

    Nodes seal steps in order. So an incomplete step before a complete one was dropped and never becomes complete.
    """

    def __init__(
        self, context: Context, flush: FlushLeader, restored: Callable[[], Plan | None], cadence: CadenceLeader
    ) -> None:
        """
        Args:
            cadence: is told of each commit.
            restored: the plan of the restore; None if there is none.
        """
        super().__init__(context)
        self._flush = flush
        self._cadence = cadence
        self._restored = restored
        self._line: Line | None = None  # the newest one that some node has saved to
        self._reported = ""  # the line that was reported last
        self._unequal: set[str] = set()  # metrics whose differences were reported
        self._has_compared = False  # what all ranks store
        self._gathering: dict[int, Gathering] = {}
        self._committed = -1
        self._dropped_up_to = -1  # a rank without an agent dropped its saves up to this step
        self._dropped: set[int] = set()
        self._complete = asyncio.Event()
        self._tasks = Tasks()

    async def run(self) -> None:
        """Leads saves until cancelled."""
        while True:
            await self._complete.wait()
            self._complete.clear()
            while (save := self._oldest_complete()) is not None:
                await self._lead(save)

    @serves("sealed")
    async def _on_sealed(
        self,
        source: int,
        step: int,
        nbytes: int,
        flush: bool,
        token_counts: list[Any],
        lines: list[Line],
        given: list[Any],
        stall_s: float,
        elapsed_s: float,
    ) -> None:
        found = set(lines)
        self._follow_line(max(found), step)
        if step <= self._committed or step in self._dropped:
            raise AgentError(f"step {step} was dropped, or a newer one has committed")
        if step <= self._dropped_up_to:
            raise AgentError(f"step {step} was dropped by a rank that had no agent")
        save = self._gathering.get(step)
        if save is None:
            alarm = asyncio.get_running_loop().call_later(self._deadlines.seal_s, self._overdue, step)
            save = self._gathering[step] = Gathering(step=step, alarm=alarm)
        save.since_s = min(save.since_s, time.monotonic() - elapsed_s)
        save.nodes[source] = nbytes
        save.flush |= flush
        save.lines |= found
        save.given += map(tuple, given)
        save.stall_s = max(save.stall_s, stall_s)
        for token, count, members in token_counts:
            save.tokens[token] += count
            save.members[token] = members
        if self._is_complete(save):
            self._complete.set()

    def _follow_line(self, line: Line, step: int) -> None:
        """A line that begins later counts its steps anew. The ranks have left what is in flight of the one before.

        The first line has the steps that were dropped before it was known. Of the same step, other nodes continue an
        older line: their ranks have loaded another step (see `_lead`).
        """
        if self._line is None:
            self._line = line
        if line <= self._line:
            return
        for older in [older for older in self._gathering if older != step]:
            self._end(older)
            self._listener.problem("save dropped", "the script has begun another line", older, failed="memory")
        self._line, self._committed, self._dropped_up_to = line, -1, -1
        self._dropped.clear()

    @serves("ask_drop")
    async def _on_ask_drop(self, source: int, step: int, descent: Line, reason: str) -> None:
        """Answers at once, because the drop is sent back to the task that asks."""
        self._follow_line(descent, step)
        self._refuse_of_left_line(descent, step)
        if step <= self._committed:
            raise AgentError(f"step {self._committed} has committed before it")
        self._tasks.start(self._drop(step, descent, f"node {self._peers.nodes[source]}: {reason}"))

    @serves("ask_drop_up_to")
    async def _on_ask_drop_up_to(self, source: int, step: int, descent: Line) -> None:
        self._follow_line(descent, step)
        self._refuse_of_left_line(descent, step)
        self._dropped_up_to = max(self._dropped_up_to, step)
        for older in [save for save in self._gathering.values() if save.step <= self._dropped_up_to]:
            reason = f"node {self._peers.nodes[source]}: a rank had no agent"
            self._tasks.start(self._drop(older.step, max(older.lines), reason))

    def _refuse_of_left_line(self, asked: Line, step: int) -> None:
        """A later line may save the same step again. Its save is not dropped with that of the line before it."""
        save = self._gathering.get(step)
        if self._line is not None and asked < self._line and not (save and asked in save.lines):
            raise AgentError(f"step {step} is of {asked}, and {self._line} has begun since")

    def _is_complete(self, save: Gathering) -> bool:
        return len(save.nodes) == len(self._context.training)

    def _oldest_complete(self) -> Gathering | None:
        complete = [save for save in self._gathering.values() if self._is_complete(save)]
        return min(complete, key=lambda save: save.step, default=None)

    async def _lead(self, save: Gathering) -> None:
        """Leads a save from sealed to committed on all nodes."""
        for older in [step for step in self._gathering if step < save.step]:
            line = max(self._gathering[older].lines)
            await self._drop(older, line, f"step {save.step} is complete on all nodes before it")
        if differing := save.differing():
            reason = (
                f"replicated tensors: only {differing[0]} have the same; from now on every rank stores all it holds"
            )
            await self._drop(save.step, max(save.lines), reason, replicas_differ=True)
            return
        save_id = self._context.save_id(save.step, min(save.lines))
        if len(save.lines) > 1:
            what = "the ranks do not continue the same step"
            self._listener.problem(what, "call load() on every rank, with the same step", save.step)
        try:
            await self._context.call_training("publish", save=save_id, metrics=self._metrics(save))
            await self._context.call_training("protect", save=save_id)
        except PeerError as error:
            await self._drop(save.step, max(save.lines), str(error))
            return
        if self._end(save.step) is None:
            return  # a node has dropped it meanwhile
        self._committed = save.step
        self._dropped = {step for step in self._dropped if step > save.step}  # older steps are refused anyway
        tiers = self._flush.wanted(save.step, save.flush)
        nbytes = sum(save.nodes.values())
        seconds = time.monotonic() - save.since_s
        fields: dict[str, Any] = {"save": save_id, "tiers": tiers, "nbytes": nbytes, "seconds": round(seconds, 6)}
        stall_s = round(save.stall_s, 6)
        await self._try_all("a node did not confirm the commit", "commit_save", **fields, stall_s=stall_s)
        self._report_line(save_id)
        self._cadence.committed(save_id, seconds, stall_s)
        self._compare_once(save_id)
        log.info("step %d committed: %d bytes on %d nodes in %.3f s", save.step, nbytes, len(save.nodes), seconds)
        if tiers:
            self._tasks.start(self._flush.lead(save_id, nbytes, tiers))

    def _metrics(self, save: Gathering) -> dict[str, float]:
        """The metrics of a save: of each, what the lowest rank has given. Differences are reported once for each."""
        metrics = {}
        for name, rank, value, *other in merged_metrics(save.given):
            metrics[name] = value
            if other and name not in self._unequal:
                self._unequal.add(name)
                what = f"the ranks give other values of the metric {name}"
                detail = f"{value:g} of rank {rank} counts, {other[1]:g} of rank {other[0]} does not; reduce it first"
                self._listener.problem(what, detail, save.step)
        return metrics

    def _report_line(self, save: SaveId) -> None:
        """Reports the first save of a line that does not continue from the newest step of the namespace."""
        line, plan = save.line, self._restored()
        if line.id == self._reported or plan is None:
            return
        is_first, self._reported = not self._reported, line.id
        if plan.save is None and is_first:
            return  # the report of the restore has said why it begins at step 0
        if plan.save is None or line.id != plan.save.line.id:
            origin = line.ancestors[0][1] if line.ancestors else None
            self._listener.to_monitors("line", step=save.step, origin=origin, newest=plan.newest, line=line.id)

    def _compare_once(self, save: SaveId) -> None:
        """After the run's first save, in the background: reports large tensors that are equal and stored by each rank.

        A later attempt of the run, and agents that replace lost ones, save what has been compared.
        """
        plan = self._restored()
        continues = plan is not None and plan.save is not None and plan.save.run_id == save.run_id
        if self._has_compared or self._place.generation or continues:
            return
        self._has_compared = True
        if self._place.world_size > 1:
            self._tasks.start(self._compare(save))

    async def _compare(self, save: SaveId) -> None:
        answers = await self._try_all("large tensors are not compared", "large_tensors", save=save)
        rows = [answer["rows"] for answer in answers]
        if not rows or None in rows:
            self._has_compared = False  # the shards are gone already: at the next save
        elif (alike := compare(rows)) is not None:
            self._listener.problem("every rank stores equal tensors", alike.message, save.step)

    def _overdue(self, step: int) -> None:
        save = self._gathering[step]
        if missing := [self._peers.nodes[node] for node in self._context.training if node not in save.nodes]:
            reason = f"node {', '.join(missing)} has not sealed it within {self._deadlines.seal_s:g} s"
            self._tasks.start(self._drop(step, max(save.lines), reason))

    def _end(self, step: int) -> Gathering | None:
        """Removes a step from those being gathered; None if it was not among them."""
        save = self._gathering.pop(step, None)
        if save is not None:
            save.alarm.cancel()
        return save

    async def _drop(self, step: int, line: Line, reason: str, *, replicas_differ: bool = False) -> None:
        self._end(step)
        if step not in self._dropped:
            self._dropped.add(step)
            self._listener.problem("save dropped", reason, step, failed="memory")
        await self._try_all(
            "a node did not confirm the drop",
            "drop",
            step=step,
            descent=line,
            reason=reason,
            replicas_differ=replicas_differ,
        )
