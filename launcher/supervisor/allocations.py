"""The job's boosters at the scheduler: submits them, ends them and observes their states, one request at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from holdfast.base.deadlines import within
from launcher.core.commands import AskAllocation, EndAllocation
from launcher.core.inputs import AllocationAsked, AllocationsSeen, AllocationState, Input, Terminated
from launcher.core.state import Booster, BoosterPhase, State
from launcher.errors import LauncherError
from launcher.scheduler.cluster import Cluster
from slurm import SlurmError

log = logging.getLogger(__name__)

LOOK_S = 10.0
_EXPLAIN_S = 2.0  # no input is handled meanwhile, so that later ones of the same node come after this one


class Allocations:
    """Performs the core's commands about boosters.

    Args:
        cluster: the cluster of the job.
        put: gives an input to the core.

    Attributes:
        environment: the environment of the boosters' runners.
    """

    def __init__(self, cluster: Cluster, put: Callable[[Input], None]) -> None:
        self._cluster = cluster
        self._put = put
        self.environment: Mapping[str, str] = {}
        self._known: set[str] = set()  # boosters that have not ended yet, by number
        self._asking: set[str] = set()  # those that are being submitted
        self._has_others = False  # whether the scheduler may have boosters of an earlier start of the job
        self._wake = asyncio.Event()

    async def follow(self, boosters: Iterable[Booster]) -> None:
        """Observe the boosters while the job runs.

        Args:
            boosters: those that an earlier supervisor has recorded.
        """
        self._known |= {each.allocation for each in boosters if not (each.has_ended or each.is_asked)}
        self._has_others = True
        while True:
            self._wake.clear()
            await self._look()
            with contextlib.suppress(TimeoutError):
                await within(LOOK_S if self._is_any else None, self._wake.wait())

    @property
    def _is_any(self) -> bool:
        return bool(self._known or self._asking or self._has_others)

    async def explained(self, given: Terminated, state: State) -> Terminated:
        """A booster's SIGTERM with Slurm's reason for it, if Slurm answers at once. Others are returned as they are."""
        member = None if given.node is None else state.members.table.get(given.node)
        booster = next((each for each in state.boosters if member and each.allocation == member.allocation), None)
        if booster is None or booster.phase is BoosterPhase.LEAVING:
            return given
        try:
            why = await within(_EXPLAIN_S, self._cluster.why_terminated_booster(booster.allocation))
        except (TimeoutError, LauncherError, SlurmError) as error:
            log.warning("why booster %s ends is not known: %s", booster.name, error or "the scheduler is slow")
            return given
        return replace(given, why=why)

    async def ask(self, command: AskAllocation) -> None:
        """Submit a booster. Until this is over, it is not known whether the scheduler has it."""
        is_followed, number = self._is_any, command.allocation
        self._asking.add(number)
        if not is_followed:
            self._wake.set()
        try:
            job_id = await self._cluster.ask_allocation(number, command.nodes, command.exclude, self.environment)
        except (LauncherError, SlurmError, OSError) as error:
            log.warning("cannot submit booster %s: %s", number, error)
            self._put(AllocationAsked(allocation=number, error=str(error)))
        else:
            self._put(AllocationAsked(allocation=number, job_id=job_id))
        self._asking.remove(number)
        self._known.add(number)

    def joined(self, allocation: str) -> None:
        """Observe a booster at once whose first runner has connected. Slurm may have sent its SIGTERM before that."""
        if allocation in self._known | self._asking:
            self._wake.set()

    async def end(self, command: EndAllocation) -> None:
        """End a booster. It may not have been submitted yet, or never be."""
        number, is_followed = command.allocation, self._is_any
        try:
            await self._cluster.end_allocation(number)
        except (LauncherError, SlurmError) as error:  # the core orders it again when it is seen again
            log.warning("cannot end booster %s yet: %s", number, error)
        self._known |= {number} - self._asking
        if not is_followed:
            self._wake.set()

    async def _look(self) -> None:
        if not self._is_any:
            return
        known = {*self._known}
        try:
            seen = await self._cluster.allocations(known)
        except (LauncherError, SlurmError) as error:
            log.warning("cannot get the state of the boosters: %s", error)
            return
        ended = {number for number, each in seen.items() if each.state is AllocationState.ENDED}
        self._known -= ended
        self._has_others = not seen.keys() <= self._known | self._asking | ended
        if seen:
            self._put(
                AllocationsSeen(
                    states={name: each.state for name, each in seen.items()},
                    reasons={name: each.reason for name, each in seen.items() if each.reason},
                    nodes={name: each.nodes for name, each in seen.items() if each.nodes},
                    failed=frozenset(name for name, each in seen.items() if each.has_failed),
                )
            )
