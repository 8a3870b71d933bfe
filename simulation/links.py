"""The supervisor's side of the runners' connections: who is there, who has fallen silent, what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.core.inputs import IsolationChanged, NodeJoined, NodeLost, StoodStill
from simulation.network import CLOSE, HELLO, WELCOME, Link

if TYPE_CHECKING:
    from simulation.driver import Driver
    from simulation.world import World

SILENCE_S = 2.5
SUSPECT_S = 1.25
ISOLATED_S = 20.0
RETURN_S = 6.0
_LATER_S = 0.011


class Links:
    """As launcher's Links. Times are those of the world."""

    __slots__ = (
        "_awaited", "_awaited_s", "_away", "_broken", "_driver", "_is_ticking", "_isolated_s", "_others",
        "_stood_still_s", "_successors", "_world", "dismissed", "links", "turns_known",
    )  # fmt: skip

    def __init__(self, world: World, driver: Driver, successors: tuple[str, ...]) -> None:
        self._world = world
        self._driver = driver
        self._successors = successors
        self.links: dict[str, Link] = {}
        self.dismissed: dict[str, tuple[str, bool]] = {}
        self._others: dict[tuple[str, str], Link] = {}
        self._away: set[str] = set()
        self._awaited: set[str] = set()
        self._awaited_s = 0.0
        self._broken: dict[str, tuple[float, list[Any], str]] = {}
        self._isolated_s: float | None = None
        self._stood_still_s = -RETURN_S
        self._is_ticking = False
        self.turns_known = bool(successors)

    @property
    def is_isolated(self) -> bool:
        return self._isolated_s is not None

    def turn(self, node: str) -> int | None:
        """A node's place in the succession."""
        left = [name for name in self._successors if name not in self.dismissed and name not in self._away]
        return left.index(node) if node in left else None

    def receive(self, link: Link, message: Any) -> None:
        node = link.runner.host.name
        if message == CLOSE:
            self._closed(node, link)
        elif type(message) is tuple and message[0] == HELLO:
            self._accept(node, link, message)
        elif self.links.get(node) is link and node not in self.dismissed:
            self._driver.put(message)

    def send(self, node: str, message: Any) -> None:
        link = self.links.get(node)
        if link is not None:
            link.send_down(message)
        elif node in self._broken:
            self._broken[node][1].append(message)

    def dismiss(self, node: str, *, forget: bool, allocation: str = "") -> None:
        other = self._others.pop((node, allocation), None)
        if other is not None:
            other.send_down(("leave", forget))
            return
        self.dismissed[node] = (allocation, forget)
        self._awaited.discard(node)
        self._broken.pop(node, None)
        link = self.links.get(node)
        if link is not None:
            link.send_down(("leave", forget))

    def await_return(self, nodes: tuple[str, ...]) -> None:
        self._awaited = {node for node in nodes if node not in self.links and node not in self.dismissed}
        self._awaited_s = self._world.clock.now
        self._tick_at(self._awaited_s + SUSPECT_S)

    def changed(self, link: Link) -> None:
        """A runner has fallen silent, or is heard again."""
        self._tick_at(self._world.clock.now)
        if link.silent_up_s is not None:
            self._tick_at(link.silent_up_s + SUSPECT_S)
            self._tick_at(link.silent_up_s + SILENCE_S)

    def woke(self, slept_s: float) -> None:
        """The supervisor did not run: what came meanwhile has not been read yet."""
        now_s = self._world.clock.now
        if slept_s > SUSPECT_S:
            self._stood_still_s = now_s
        if slept_s > 0.2:
            for link in self.links.values():
                if link.silent_up_s is not None:
                    link.silent_up_s = min(now_s, link.silent_up_s + slept_s)
            self._driver.put(StoodStill(seconds=slept_s))
        self._tick_at(now_s)
        for link in self.links.values():
            self.changed(link)

    def abort(self) -> None:
        """Drops every connection."""
        for link in list(self.links.values()):
            link.close_down()
        self.links.clear()
        self._broken.clear()
        self._awaited.clear()

    def _accept(self, node: str, link: Link, hello: Any) -> None:
        _, attempt, is_warm, problem, allocation = hello
        old = self.links.get(node)
        before = old.runner.allocation if old is not None else self._broken.get(node, (0.0, [], allocation))[2]
        joined = NodeJoined(node=node, attempt=attempt, is_warm=is_warm, problem=problem, allocation=allocation)
        if node in self.dismissed:
            of, forget = self.dismissed[node]
            if of in ("", allocation):
                link.send_down(("leave", forget))
                return
            del self.dismissed[node]
        elif before != allocation:
            self._others[node, allocation] = link
            self._driver.put(joined)
            return
        if old is not None and old is not link:
            old.close_down()
        self.links[node] = link
        self._awaited.discard(node)
        self._away.discard(node)
        if self._isolated_s is not None:
            self._tick_at(self._world.clock.now)
        link.send_down((WELCOME, self._driver.term))
        for message in self._broken.pop(node, (0.0, [], ""))[1]:
            link.send_down(message)
        self._driver.put(joined)

    def _closed(self, node: str, link: Link) -> None:
        link.close_down()
        if self.links.get(node) is not link:
            return
        del self.links[node]
        now_s = self._world.clock.now
        if node not in self.dismissed and (self.is_isolated or now_s - self._stood_still_s < RETURN_S):
            self._broken[node] = (now_s, [], link.runner.allocation)
            self._tick_at(now_s + SUSPECT_S)
            self._tick_at(now_s + RETURN_S)
        else:
            self._report_lost(node, "the connection to its runner closed", 0.0)

    def _report_lost(self, node: str, reason: str, detect_s: float) -> None:
        self._away.add(node)
        if node not in self.dismissed:
            self._driver.put(NodeLost(node=node, reason=reason, detect_s=round(detect_s, 3)))

    def _tick_at(self, at_s: float) -> None:
        now_s = self._world.clock.now
        if at_s > now_s:
            self._world.clock.at(at_s + _LATER_S, self._tick, False)
        elif not self._is_ticking:
            self._is_ticking = True
            self._world.clock.at(now_s + _LATER_S, self._tick, True)

    def _tick(self, is_soon: bool) -> None:
        if is_soon:
            self._is_ticking = False
        driver, now_s = self._driver, self._world.clock.now
        if not driver.is_awake or driver.is_done:
            return
        if self._may_be_cut_off(now_s):
            return
        for node, (since_s, *_) in list(self._broken.items()):
            if now_s - since_s > RETURN_S:
                del self._broken[node]
                self._report_lost(node, "its connection broke, and it did not come back", 0.0)
        for node, link in list(self.links.items()):
            if link.silent_up_s is not None and now_s - link.silent_up_s > SILENCE_S:
                silent_s = now_s - link.silent_up_s
                del self.links[node]
                self._report_lost(node, f"silent for {silent_s:.1f} s", silent_s)
                link.close_down()
                self._tick_at(now_s + 0.1)  # those that are left may all be heard

    def _may_be_cut_off(self, now_s: float) -> bool:
        silent = sum(
            link.silent_up_s is not None and now_s - link.silent_up_s > SUSPECT_S for link in self.links.values()
        )
        silent += len(self._awaited) if now_s - self._awaited_s > SUSPECT_S else 0
        silent += sum(now_s - since_s > SUSPECT_S for since_s, *_ in self._broken.values())
        if 2 * silent <= len(self.links) + len(self._awaited) + len(self._broken):
            if self._isolated_s is not None:
                self._isolated_s = None
                self._world.folder.update_lease()
                self._driver.put(IsolationChanged(is_isolated=False))
            return False
        if self._isolated_s is None:
            self._isolated_s = now_s
            self._world.folder.update_lease()
            self._world.poke()
            self._tick_at(now_s + ISOLATED_S)
            self._driver.put(IsolationChanged(is_isolated=True))
        if now_s - self._isolated_s < ISOLATED_S:
            return True
        if self._awaited:
            self._awaited.clear()
            self._tick_at(now_s + 0.1)
        return False
