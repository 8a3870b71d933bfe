"""Boosters with the simulated scheduler: they wait in the queue, run, and end in every way that Slurm knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from launcher.core.inputs import AllocationsSeen, AllocationState
from simulation.runner import Runner
from simulation.violation import Violation

if TYPE_CHECKING:
    from simulation.host import Host
    from simulation.world import World

KILL_WAIT_S = 30.0
TRY_AGAIN_S = 15.0


class BoosterJob:
    """One allocation beside the base's.

    Attributes:
        id: its number in the run, which is part of its name with the scheduler.
        state: with the scheduler.
        reason: why it waits, or how it ended.
        hosts: its nodes while it runs.
        start: the base job's start in which it was asked for.
        since_s: since when it runs.
        has_failed: whether it has ended with an error of its own.
        is_told: whether somebody has ordered its end, or it was preempted.
        preempted_s: since when it is to make way for an urgent job.
    """

    __slots__ = (
        "_exclude",
        "_world",
        "has_failed",
        "hosts",
        "id",
        "is_told",
        "preempted_s",
        "reason",
        "since_s",
        "size",
        "start",
        "state",
    )

    def __init__(self, world: World, id: str, size: int, exclude: tuple[str, ...], start: int) -> None:
        self._world = world
        self.size = size
        self._exclude = frozenset(exclude)
        self.id = id
        self.start = start
        self.state = AllocationState.QUEUED
        self.reason = "Priority"
        self.hosts: list[Host] = []
        self.since_s: float | None = None
        self.preempted_s: float | None = None
        self.is_told = self.has_failed = False

    @property
    def seen(self) -> AllocationState:
        """What the scheduler says: also that it has begun to end one for an urgent job, which its runners may miss."""
        is_preempted = self.state is AllocationState.RUNNING and self.preempted_s is not None
        return AllocationState.PREEMPTED if is_preempted else self.state

    def try_to_start(self) -> None:
        """Runs, where enough nodes are free and the base job runs."""
        world = self._world
        if self.state is not AllocationState.QUEUED:
            return
        slurm = world.slurm
        free = [host for host in world.hosts.values() if host.is_free and host.name not in self._exclude]
        if world.boosters.is_blocked or len(free) < self.size:
            self.reason = "Resources"
            world.clock.after(TRY_AGAIN_S, self.try_to_start)
            return
        if slurm.state != "running" or self.start != slurm.starts:  # its script looks for the base job
            self.state, self.reason = AllocationState.ENDED, "COMPLETED"
            return
        self.begin(free[: self.size])

    def begin(self, hosts: list[Host]) -> None:
        """Runs on these."""
        world = self._world
        self.state, self.reason, self.since_s = AllocationState.RUNNING, "", world.clock.now
        self.hosts = hosts
        if world.boosters.is_broken:
            world.kinds.add("booster_failed")
            self.has_failed = True
            world.clock.after(world.delay(0.1, 1.0), self.finish, "NonZeroExitCode")
        for host in self.hosts:
            host.is_allocated, host.allocation = True, self.id
            if self.has_failed:
                continue
            world.clock.after(world.delay(0.1, 3.0) + world.boosters.late_s, self._start_runner, host)
        if world.trace is not None:
            world.trace.note(world.clock.now, f"booster {self.id} starts on {','.join(h.name for h in self.hosts)}")

    def _start_runner(self, host: Host) -> None:
        is_there = self.state is AllocationState.RUNNING and host.allocation == self.id
        if is_there and host.runner is None and host.can_be_given_processes:
            Runner(self._world, host, None)

    def terminate(self, reason: str, grace_s: float) -> None:
        """SIGTERM, and SIGKILL once the grace is over; at once where there is none."""
        world = self._world
        self.is_told = True
        if self.state is AllocationState.QUEUED:
            self.state, self.reason = AllocationState.ENDED, reason
        elif self.state is AllocationState.RUNNING:
            self.reason = reason
            if reason == "PREEMPTED" and self.preempted_s is None:
                self.preempted_s = world.clock.now
            if not grace_s:
                self.finish(reason)
                return
            for host in self.hosts:
                if host.runner is not None and host.has_slurmd and not host.is_frozen:
                    world.clock.after(world.delay(0.0, 0.3), host.runner.terminate)
            world.clock.after(grace_s, self.finish, reason)

    def finish(self, reason: str) -> None:
        """Whatever is left of it is killed, and its nodes' memory is cleared."""
        if self.state is not AllocationState.RUNNING:
            return
        world = self._world
        self.state, self.reason = AllocationState.ENDED, reason
        if world.trace is not None:
            world.trace.note(world.clock.now, f"booster {self.id} ends: {reason}")
        for host in self.hosts:
            host.is_allocated, host.allocation = False, ""
            if host.runner is not None:
                world.kinds.add("booster_killed")
                host.runner.die()
            for group in list(host.agents):
                group.lose(host)
            host.memory = {}

    def runner_left(self) -> None:
        """It ends when its last runner has."""
        if all(host.runner is None for host in self.hosts):
            self.finish(self.reason or "COMPLETED")


class Boosters:
    """All boosters of a job.

    Args:
        make: one that is asked for.

    Attributes:
        jobs: by number, the oldest first.
        is_blocked: whether none starts.
        is_broken: whether those that start end with an error.
        late_s: how much longer their runners take to start.
    """

    __slots__ = ("_make", "_world", "is_blocked", "is_broken", "jobs", "late_s")

    def __init__(self, world: World, make: Callable[..., BoosterJob] = BoosterJob) -> None:
        self._world = world
        self._make = make
        self.jobs: dict[str, BoosterJob] = {}
        self.is_blocked = self.is_broken = False
        self.late_s = 0.0

    def submit(self, number: str, size: int, exclude: tuple[str, ...]) -> BoosterJob:
        """The scheduler accepts one more job."""
        world = self._world
        if number in self.jobs:
            raise Violation("one allocation for a request", f"{number} is submitted again")
        job = self.jobs[number] = self._make(world, number, size, exclude, world.slurm.starts)
        queue_s = world.rng.choice((0.05, 1.0, 5.0, 20.0, 60.0, 200.0)) if not world.setup.is_local else 0.01
        world.clock.after(queue_s * world.delay(0.5, 1.0), job.try_to_start)
        return job

    def running(self) -> list[BoosterJob]:
        return [job for job in self.jobs.values() if job.state is AllocationState.RUNNING]

    def seen(self, known: set[str]) -> AllocationsSeen:
        """The answer to a supervisor's question: all that are there, and those that it knows and does not ask for."""
        jobs = [job for job in self.jobs.values() if job.id in known or job.state is not AllocationState.ENDED]
        states = dict.fromkeys(known, AllocationState.ENDED) | {job.id: job.seen for job in jobs}
        return AllocationsSeen(
            states=states,
            reasons=dict.fromkeys(known, "GONE") | {job.id: job.reason for job in jobs},
            nodes={job.id: tuple(host.name for host in job.hosts) for job in jobs if job.hosts},
            failed=frozenset(job.id for job in jobs if job.has_failed and job.state is AllocationState.ENDED),
        )

    def end(self, id: str) -> None:
        """A supervisor's scancel."""
        job = self.jobs.get(id)
        if job is not None and job.state is not AllocationState.ENDED:
            job.terminate("CANCELLED", KILL_WAIT_S)

    def end_all(self, grace_s: float) -> None:
        for job in list(self.jobs.values()):
            if job.state is not AllocationState.ENDED:
                job.terminate("CANCELLED", grace_s)

    def runner_left(self, host: Host) -> None:
        job = self.jobs.get(host.allocation)
        if job is not None:
            self._world.clock.after(0.5, job.runner_left)
