"""A node of the cluster: its processes and its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.agents import AgentGroup
    from simulation.driver import Driver
    from simulation.runner import Runner
    from simulation.world import World

KEPT_STEPS = 2
Memory = dict[int, tuple[str, ...]]


class Host:
    """One node.

    Attributes:
        is_up, is_frozen: whether it runs; whether everything on it stands still.
        has_slurmd: whether Slurm can start processes here.
        is_allocated: whether it belongs to the job, or one of its boosters.
        allocation: its booster; "" where it has none.
        is_drained: whether Slurm gives it no new job.
        incident: what its last health check has found; None: nothing.
        problem: why it fails its preflight; None if it does not.
        memory: committed steps held here, each with the nodes that hold its shards; nodes share
            it, so it is replaced and never changed.
        kill_s: how much longer it takes to end processes.
        is_unkillable: whether some process does not end.
        start_s: how much longer workers take to start.
        never_warm: whether its warm process never loads torch.
        skew_s: its clock's difference.
    """

    __slots__ = (
        "agents", "allocation", "drivers", "has_slurmd", "incident", "is_allocated", "is_drained", "is_frozen",
        "is_unkillable", "is_up", "kill_s", "memory", "name", "never_warm", "problem", "runner", "skew_s", "start_s",
        "world",
    )  # fmt: skip

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_up = self.has_slurmd = True
        self.is_frozen = self.is_allocated = self.is_drained = self.is_unkillable = self.never_warm = False
        self.allocation = ""
        self.incident: str | None = None
        self.problem: str | None = None
        self.memory: Memory = {}
        self.kill_s = self.start_s = self.skew_s = 0.0
        self.runner: Runner | None = None
        self.drivers: list[Driver] = []
        self.agents: list[AgentGroup] = []

    @property
    def can_be_given_processes(self) -> bool:
        return self.is_up and self.has_slurmd and self.is_allocated and not self.is_frozen

    @property
    def is_free(self) -> bool:
        """Whether a booster can have it."""
        return self.is_up and self.has_slurmd and not (self.is_allocated or self.is_drained) and self.runner is None

    def crash(self, *, closes: bool) -> None:
        """Everything on it is gone, its memory too.

        Args:
            closes: whether its connections are closed as it goes.
        """
        if not self.is_up:
            return
        if closes:
            self._end_processes()
        self.is_up = False
        if not closes:
            self._end_processes()
        self.memory = {}
        self.world.changed()

    def boot(self) -> None:
        """It is up again, with nothing on it."""
        if self.is_up:
            return
        self.is_up, self.is_frozen, self.has_slurmd = True, False, True
        for link in list(self.world.links):
            if link.runner.host is self:
                link.vanish(of_runner=True)
            elif link.driver.host is self:
                link.vanish(of_runner=False)
        self.world.changed()

    def freeze(self) -> None:
        self.is_frozen = True
        self.world.changed()

    def thaw(self) -> None:
        if self.is_frozen:
            self.is_frozen = False
            self.world.changed()
            if self.runner is not None:
                self.runner.thawed()

    def _end_processes(self) -> None:
        self.world.slurm.host_lost(self)
        if self.runner is not None:
            self.runner.die()
        for driver in list(self.drivers):
            driver.die()
        for group in list(self.agents):
            group.lose(self)


def with_step(memory: Memory, step: int, nodes: tuple[str, ...]) -> Memory:
    """The memory with a shard of one more committed step, and of the newest one before."""
    return dict(sorted((memory | {step: nodes}).items())[-KEPT_STEPS:])
