"""Who takes over from a supervisor that is missed, and the batch script, which keeps one on its host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.leadership.terms import LEASE_S
from simulation.folder import REMOVED

if TYPE_CHECKING:
    from simulation.driver import Driver
    from simulation.host import Host
    from simulation.runner import Runner
    from simulation.world import World

REFUSED_S = 1.0
ORPHANED_S = 60.0
MAX_DEATHS = 5


class Standby:
    """Waits until a supervisor is gone, then becomes the next one.

    Attributes:
        is_alive: whether it waits, or supervises.
        supervises: whether it has taken over.
    """

    __slots__ = (
        "_begun_s",
        "_driver",
        "_is_out",
        "_is_waiting",
        "_runner",
        "_term",
        "_was_closed",
        "_world",
        "is_alive",
    )

    def __init__(self, world: World, runner: Runner, term: int, *, was_closed: bool) -> None:
        self._world = world
        self._runner = runner
        self._term = term
        self._was_closed = was_closed
        self._begun_s = world.clock.now
        self._driver: Driver | None = None
        self._is_waiting = self.is_alive = True
        self._is_out = False
        world.standbys.append(self)
        world.clock.after(world.delay(0.1, 0.5), self.look)

    @property
    def supervises(self) -> bool:
        return self._driver is not None and self._driver.is_alive

    def look(self) -> None:
        """Something has changed, or time has passed: is it gone?"""
        world, folder, host = self._world, self._world.folder, self._runner.host
        if not self._is_waiting or not self._runner.is_awake:
            return
        if not folder.is_seen(host) or folder.newest_term != self._term or folder.result is not None:
            self.die()
            return
        holder = folder.holders[self._term - 1]
        now_s = world.clock.now
        quiet_from_s = None if folder.quiet_s is None else max(folder.quiet_s, self._begun_s)
        is_quiet = quiet_from_s is not None and now_s >= quiet_from_s + LEASE_S - 1e-6
        answers = world.network.reaches(host, holder.host)
        is_gone = self._was_closed and (
            not answers or (not holder.is_alive and now_s >= self._begun_s + REFUSED_S - 1e-6)
        )
        if is_quiet or is_gone:
            if not self._is_out:
                self._is_out = host.name in world.replayed().out
                if not self._is_out and folder.is_writable(host):
                    self._take_over(is_silent=not answers)
            return
        if quiet_from_s is not None:
            world.clock.at(quiet_from_s + LEASE_S, self.look)
        if self._was_closed and now_s < self._begun_s + REFUSED_S - 1e-6:
            world.clock.at(self._begun_s + REFUSED_S, self.look)

    def dismiss(self) -> None:
        """The supervisor is heard again."""
        if self._is_waiting:
            self.die()

    def die(self) -> None:
        self._is_waiting = False
        self.is_alive = self.supervises
        if self in self._world.standbys:
            self._world.standbys.remove(self)
        if self._driver is not None and not self._runner.is_alive:
            self._driver.die()
            self.is_alive = False

    def ended(self) -> None:
        """The supervisor that it has become has ended."""
        self.is_alive = False
        if self._runner.is_leaving:
            self._runner.die()

    def _take_over(self, *, is_silent: bool) -> None:
        self._is_waiting = False
        self._world.standbys.remove(self)
        self._driver = self._world.supervise(self._runner.host, after=self._term, is_silent=is_silent, standby=self)


class BatchScript:
    """Keeps a supervisor on the batch host.

    Attributes:
        is_alive: whether Slurm's script runs.
        driver: the supervisor here; None where another host has it.
    """

    __slots__ = ("_deaths", "_waits", "_world", "driver", "host", "is_alive")

    def __init__(self, world: World, host: Host) -> None:
        self._world = world
        self.host = host
        self.is_alive = True
        self._deaths = 0
        self._waits = False
        self.driver: Driver | None = None

    def start(self, after: int | None = None) -> None:
        if not self.is_alive or not self.host.is_up:
            return
        if self.host.is_frozen:
            self._world.clock.after(1.0, self.start, after)
            return
        self._waits = False
        self.driver = self._world.supervise(self.host, after=after, batch=self)

    def died(self) -> None:
        """The supervisor here was killed."""
        self.driver = None
        if not self.is_alive or not self.host.is_up:
            return
        self._deaths += 1
        if self._deaths >= MAX_DEATHS:
            self._wait()
        else:
            self._world.clock.after(self._world.delay(0.3, 1.0), self._restart)

    def ended(self, outcome: str) -> None:
        """The supervisor here has ended."""
        self.driver = None
        if outcome == "superseded":
            self._wait()
        else:
            self.is_alive = False
            self._world.slurm.script_ended()

    def fail(self) -> None:
        """It cannot go on: the job's folder is not there."""
        if self.is_alive:
            self.is_alive = False
            self._world.slurm.terminate("failed", starts_again=False)

    def look(self) -> None:
        """Another host supervises: is it done, or gone?"""
        if not (self._waits and self.is_alive and self.host.is_up) or self.host.is_frozen:
            return
        folder, now_s = self._world.folder, self._world.clock.now
        if folder.result is not None:
            self.is_alive = self._waits = False
            self._world.slurm.script_ended()
        elif folder.quiet_s is not None:
            if now_s >= folder.quiet_s + ORPHANED_S - 1e-6:
                self._waits = False
                self._restart()
            else:
                self._world.clock.at(folder.quiet_s + ORPHANED_S, self.look)

    def _wait(self) -> None:
        self._waits = True
        self.look()

    def _restart(self) -> None:
        folder = self._world.folder
        if folder.mode == REMOVED:
            self.fail()
        elif self.is_alive and folder.result is not None:
            self.is_alive = False
            self._world.slurm.script_ended()
        elif self.is_alive:
            if folder.is_seen(self.host) and folder.is_writable(self.host):
                self.start(folder.newest_term or None)
            else:
                self._world.clock.after(2.0, self._restart)
