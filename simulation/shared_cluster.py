"""Many elastic jobs on one cluster: `python -m simulation.shared_cluster [--jobs 200] [--nodes 1000]`.

Each job is a core and a driver of its own. Its base has nodes of its own; boosters of all jobs share the others, in the
order of their jobs' priorities. Urgent jobs come, preempt as many boosters as they need, and go.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass, field

from launcher.core.inputs import AllocationState
from simulation.boosters import KILL_WAIT_S, BoosterJob
from simulation.clock import Clock
from simulation.host import Host
from simulation.schedule import Schedule, Setup
from simulation.violation import Violation
from simulation.world import World

BASE_NODES = 2
LATEST_S = 20_000.0
MOMENT_S = 2.0


@dataclass(eq=False)
class Urgent:
    """A job that outranks boosters.

    Attributes:
        waited_s: from its submission to its start; None before that.
    """

    at_s: float
    size: int
    lasts_s: float
    waited_s: float | None = None
    nodes: list[str] = field(default_factory=list)


class Pool:
    """The nodes beside those of the bases, and who waits for them.

    Attributes:
        preempted: how many nodes of boosters were.
        begun: how many boosters have begun to run.
        used_before, used_after: nodes in use before the first urgent job, and some time after the last.
    """

    def __init__(self, clock: Clock, names: list[str]) -> None:
        self.clock = clock
        self.size = len(names)
        self.free = names
        self.waiting: list[PooledBooster] = []
        self.running: list[PooledBooster] = []
        self.urgent: list[Urgent] = []
        self.preempted = self.begun = 0
        self.used_before = self.used_after = 0
        self._is_due = False

    def look_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self.clock.after(MOMENT_S, self._look)

    def submit_urgent(self, job: Urgent) -> None:
        self.urgent.append(job)
        self.look_soon()

    def _look(self) -> None:
        """Starts what there is room for: urgent jobs first, then boosters by priority, the oldest first."""
        self._is_due = False
        while self.urgent and len(self.free) >= self.urgent[0].size:
            job = self.urgent.pop(0)
            job.waited_s = self.clock.now - job.at_s
            job.nodes, self.free = self.free[: job.size], self.free[job.size :]
            self.clock.after(job.lasts_s, self._end_urgent, job)
        if self.urgent:
            self._make_room(self.urgent[0].size)
            return
        self.waiting = [job for job in self.waiting if job.state is AllocationState.QUEUED]
        self.waiting.sort(key=lambda job: (-job.priority, job.number))
        while self.waiting and len(self.free) >= self.waiting[0].size:
            job = self.waiting.pop(0)
            names, self.free = self.free[: job.size], self.free[job.size :]
            self.running.append(job)
            self.begun += 1
            job.start_on(names)

    def _make_room(self, size: int) -> None:
        """Preempts the boosters of the lowest priority, and no more than are needed."""
        coming = sum(job.size for job in self.running if job.is_told)
        for job in sorted(self.running, key=lambda job: (job.priority, -job.number)):
            if len(self.free) + coming >= size:
                return
            if not job.is_told:
                coming += job.size
                self.preempted += job.size
                job.terminate("PREEMPTED", KILL_WAIT_S)

    def _end_urgent(self, job: Urgent) -> None:
        self.free += job.nodes
        self.look_soon()

    def count(self, name: str) -> None:
        setattr(self, name, self.size - len(self.free))

    def give_back(self, job: PooledBooster, names: list[str]) -> None:
        self.running.remove(job)
        self.free += names
        self.look_soon()


class PooledBooster(BoosterJob):
    """A booster whose nodes come from the pool."""

    __slots__ = ("number", "pool", "priority")

    pool: Pool
    priority: int
    number: int

    def try_to_start(self) -> None:
        if self.state is AllocationState.QUEUED and self not in self.pool.waiting:
            self.pool.waiting.append(self)
            self.pool.look_soon()

    def start_on(self, names: list[str]) -> None:
        world = self._world
        for name in names:
            if name not in world.hosts:
                world.hosts[name] = Host(world, name)
        self.begin([world.hosts[name] for name in names])

    def finish(self, reason: str) -> None:
        was_running = self.state is AllocationState.RUNNING
        super().finish(reason)
        if was_running:
            self.pool.give_back(self, [host.name for host in self.hosts])


@dataclass(frozen=True)
class Report:
    """What came of it.

    Attributes:
        outcomes: of the jobs.
        grown, shrunk: attempts by these rungs.
        preempted: nodes that boosters gave to urgent jobs, which wanted so many: `urgent`.
        used_before, used_after: shared nodes in use, see Pool.
        pool: how many there are.
        waited_s: the longest wait of an urgent job.
    """

    outcomes: dict[str, int]
    decisions: int
    grown: int
    shrunk: int
    preempted: int
    begun: int
    used_before: int
    used_after: int
    pool: int
    urgent: int
    waited_s: float
    simulated_s: float


def run(jobs: int, nodes: int, *, urgent: int = 6, seed: int = 1, chunks: int = 30) -> Report:
    """Runs all jobs to their ends.

    Args:
        jobs: elastic ones, each with BASE_NODES of its own.
        nodes: of the cluster.
        urgent: how many urgent jobs come, each for about a fifth of the shared nodes.
        chunks: commits that each job needs.

    Raises:
        Violation: something was not true that must be.
    """
    rng, clock = random.Random(seed), Clock()
    pool = Pool(clock, [f"p{index}" for index in range(nodes - jobs * BASE_NODES)])
    worlds = []
    for index in range(jobs):
        setup = Setup(
            seed=seed * 1000 + index,
            nodes=BASE_NODES,
            spares=0,
            least=BASE_NODES,
            extra=0,
            chunks=chunks,
            boosters=rng.choice((1, 2, 4)),
            booster_nodes=rng.choice((1, 2)),
            settle_s=10.0,
            snooze_s=30.0,
        )
        priority = rng.randrange(3)
        worlds.append(World(Schedule(setup), clock=clock, make_booster=pooled(pool, priority)))
        clock.at(rng.uniform(0.0, 60.0), worlds[-1].start)
    length_s = chunks * worlds[0].setup.chunk_s
    wanted = [
        Urgent(at_s=length_s * (0.2 + 0.4 * index / urgent), size=max(1, pool.size // 5), lasts_s=60.0)
        for index in range(urgent)
    ]
    for job in wanted:
        clock.at(job.at_s, pool.submit_urgent, job)
    clock.at(wanted[0].at_s - 1.0, pool.count, "used_before")
    clock.at(wanted[-1].at_s + 180.0, pool.count, "used_after")
    how = clock.run(LATEST_S, lambda: all(world._is_over() for world in worlds))
    if how != "over":
        stuck = [index for index, world in enumerate(worlds) if world.outcome is None]
        raise Violation("no deadlock", f"{how} at {clock.now:.0f} s; jobs without an outcome: {stuck}")
    outcomes: dict[str, int] = {}
    for world in worlds:
        world.invariants.finished()
        assert world.outcome is not None
        outcomes[world.outcome[0]] = outcomes.get(world.outcome[0], 0) + 1
        if world.slurm.starts != 1 or world.kinds - {"booster_killed"}:
            raise Violation("the base is untouched", f"{world.slurm.starts} starts, {world.kinds}")
    if any(job.waited_s is None for job in wanted):
        raise Violation("no deadlock", "an urgent job has never run")
    return Report(
        outcomes=outcomes,
        decisions=sum(world.decisions for world in worlds),
        grown=sum(world.rungs["grow"] for world in worlds),
        shrunk=sum(world.rungs["shrink"] for world in worlds),
        preempted=pool.preempted,
        begun=pool.begun,
        used_before=pool.used_before,
        used_after=pool.used_after,
        pool=pool.size,
        urgent=sum(job.size for job in wanted),
        waited_s=max(job.waited_s or 0.0 for job in wanted),
        simulated_s=clock.now,
    )


def pooled(pool: Pool, priority: int) -> type[PooledBooster]:
    """The boosters of one job, as World makes them."""

    def make(*args: object) -> PooledBooster:
        job = PooledBooster(*args)  # type: ignore[arg-type]
        job.pool, job.priority = pool, priority
        job.number = pool.begun * 10_000 + len(pool.waiting)
        return job

    return make  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(prog="simulation.shared_cluster", description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    begun_s = time.monotonic()
    report = run(given.jobs, given.nodes, seed=given.seed)
    print(f"{report}\n{time.monotonic() - begun_s:.1f} s")


if __name__ == "__main__":
    main()
