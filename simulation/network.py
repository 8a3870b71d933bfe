"""Which host reaches which, and the connections between runners and supervisors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.driver import Driver
    from simulation.host import Host
    from simulation.runner import Runner
    from simulation.world import World

HELLO = "hello"
CLOSE = "close"
WELCOME = "welcome"
_HEARTBEAT_S = 0.5


class Network:
    """Directed reachability of hosts.

    Attributes:
        cuts: pairs of host names: nothing goes from the first to the second.
        delay_s: the longest delay of a message.
    """

    __slots__ = ("cuts", "delay_s")

    def __init__(self) -> None:
        self.cuts: set[tuple[str, str]] = set()
        self.delay_s = 0.003

    def flows(self, source: Host, target: Host) -> bool:
        if not (source.is_up and target.is_up):
            return False
        return source is target or not self.cuts or (source.name, target.name) not in self.cuts

    def reaches(self, one: Host, other: Host) -> bool:
        return self.flows(one, other) and self.flows(other, one)


class Link:
    """One TCP connection. Messages arrive in order; what cannot arrive waits until the path is back.

    Attributes:
        is_open_up, is_open_down: whether the runner, the supervisor has not closed its end.
        silent_up_s: since when nothing comes from the runner; None while heartbeats come.
        silent_down_s: since when nothing comes from the supervisor.
    """

    __slots__ = (
        "_down", "_down_s", "_flows_down", "_flows_up", "_up", "_up_s", "_world", "driver", "is_open_down",
        "is_open_up", "runner", "silent_down_s", "silent_up_s",
    )  # fmt: skip

    def __init__(self, world: World, runner: Runner, driver: Driver) -> None:
        self._world = world
        self.runner = runner
        self.driver = driver
        self.is_open_up = self.is_open_down = True
        self._up: list[Any] = []
        self._down: list[Any] = []
        self._up_s = self._down_s = 0.0
        self._flows_up = self._flows_down = True
        self.silent_up_s: float | None = None
        self.silent_down_s: float | None = None
        world.links.append(self)

    def send_up(self, message: Any) -> None:
        if self.is_open_up:
            self._post_up(message)

    def send_down(self, message: Any) -> None:
        if self.is_open_down:
            self._post_down(message)

    def close_up(self) -> None:
        """The runner, or its kernel, closes the connection."""
        if self.is_open_up:
            self.is_open_up = False
            self._post_up(CLOSE)
            self._forget()

    def close_down(self) -> None:
        """The supervisor, or its kernel, closes the connection."""
        if self.is_open_down:
            self.is_open_down = False
            self._post_down(CLOSE)
            self._forget()

    def vanish(self, *, of_runner: bool) -> None:
        """One end's host has gone without a word, and is back: its kernel resets the connection when it is used."""
        if of_runner:
            self._up.clear()
            self.close_up()
        else:
            self._down.clear()
            self.close_down()

    def reset(self) -> None:
        """It breaks: both ends find that out."""
        if self.is_open_up and self.is_open_down:
            world = self._world
            self._up.clear()
            self._down.clear()
            world.clock.after(world.rng.random() * 0.01, self.runner.receive, self, CLOSE)
            world.clock.after(world.rng.random() * 0.01, self.driver.receive, self, CLOSE)

    def update(self) -> None:
        """Something has changed: are both sides still heard?"""
        world, runner, driver = self._world, self.runner, self.driver
        flows = world.network.flows
        path_up, path_down = flows(runner.host, driver.host), flows(driver.host, runner.host)
        up = path_up and runner.is_awake and self.is_open_up
        if up is not self._flows_up:
            self._flows_up = up
            self.silent_up_s = None if up else world.clock.now - world.rng.random() * _HEARTBEAT_S
            driver.links.changed(self)
        down = path_down and driver.is_awake and self.is_open_down
        if down is not self._flows_down:
            self._flows_down = down
            self.silent_down_s = None if down else world.clock.now - world.rng.random() * _HEARTBEAT_S
            runner.hears_changed(self)
        if self._up and path_up:
            waiting, self._up = self._up, []
            for message in waiting:
                self._post_up(message)
        if self._down and path_down:
            waiting, self._down = self._down, []
            for message in waiting:
                self._post_down(message)

    def _post_up(self, message: Any) -> None:
        world = self._world
        at_s = world.clock.now + world.rng.random() * world.network.delay_s
        self._up_s = at_s = max(at_s, self._up_s + 1e-6)
        world.clock.at(at_s, self._arrive_up, message)

    def _post_down(self, message: Any) -> None:
        world = self._world
        at_s = world.clock.now + world.rng.random() * world.network.delay_s
        self._down_s = at_s = max(at_s, self._down_s + 1e-6)
        world.clock.at(at_s, self._arrive_down, message)

    def _arrive_up(self, message: Any) -> None:
        if not self.is_open_down:
            return
        if self._up or not self._world.network.flows(self.runner.host, self.driver.host):
            self._up.append(message)
        else:
            self.driver.receive(self, message)

    def _arrive_down(self, message: Any) -> None:
        if not self.is_open_up:
            return
        if self._down or not self._world.network.flows(self.driver.host, self.runner.host):
            self._down.append(message)
        else:
            self.runner.receive(self, message)

    def _forget(self) -> None:
        if not (self.is_open_up or self.is_open_down) and self in self._world.links:
            self._world.links.remove(self)
