"""The supervisor's side of the runners' connections. launcher.core.liveness judges them, as in the product."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from launcher.core.inputs import IsolationChanged, NodeJoined
from launcher.core.liveness import (
    ISOLATED_S,
    RETURN_S,
    SILENCE_S,
    SUSPECT_S,
    TICK_S,
    Action,
    Drop,
    Forget,
    Liveness,
    Peer,
    Promote,
)
from simulation.network import CLOSE, HELLO, WELCOME, Link

if TYPE_CHECKING:
    from simulation.driver import Driver
    from simulation.world import World

BASE = "job"  # the base's allocation
_LATER_S = 0.011  # from the moment at which something is due to the tick that finds it


class _Peer(Peer):
    """A runner's connection.

    Attributes:
        joined: the input for its hello.
        unread: messages that wait until the runner of the node's earlier allocation has left.
        unsent: messages that wait until the runner has reconnected.
    """

    __slots__ = ("joined", "link", "unread", "unsent")

    def __init__(self, link: Link, joined: NodeJoined, now_s: float) -> None:
        super().__init__(joined.node, joined.allocation, now_s)
        self.link = link
        self.joined = joined
        self.unread: list[Any] = []
        self.unsent: list[Any] = []


class Links:
    """As launcher's Links, without sockets. Times are those of the world.

    Heartbeats are not sent one by one: a connection that is not silent is heard at any time. A tick comes only when
    something may be due.
    """

    __slots__ = ("_driver", "_is_ticking", "_liveness", "_orders", "_world", "turns_known")

    def __init__(self, world: World, driver: Driver, successors: tuple[str, ...]) -> None:
        self._world = world
        self._driver = driver
        self._liveness: Liveness[_Peer] = Liveness(world.job_nodes, BASE, successors)
        self._orders: dict[tuple[str, str], tuple[str, bool]] = {}
        self._is_ticking = False
        self.turns_known = bool(successors)

    @property
    def is_isolated(self) -> bool:
        return self._liveness.is_isolated

    @property
    def links(self) -> dict[str, Link]:
        """The connections over which nodes are heard."""
        return {node: peer.link for node, peer in self._liveness.peers.items()}

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the base, and the connected ones of boosters."""
        return tuple(dict.fromkeys((*self._world.job_nodes, *self._liveness.peers, *self._liveness.seconds)))

    def turn(self, node: str) -> int | None:
        """A node's place in the succession."""
        return self._liveness.turn(node)

    def receive(self, link: Link, message: Any) -> None:
        peer, now_s = self._peer_of(link), self._world.clock.now
        if type(message) is tuple and message[0] == HELLO:
            self._accept(link, message)
        elif message == CLOSE:
            link.close_down()
            if peer is not None:
                self._do(self._liveness.closed(peer, now_s, now_s))
                self._tick_when_due(now_s, SUSPECT_S, RETURN_S)
        elif peer is not None and self._liveness.seconds.get(peer.node) is peer:
            peer.unread.append(message)
        elif peer is not None:
            self._driver.put(message)

    def send(self, node: str, message: Any) -> None:
        peer = self._liveness.last(node)
        if peer is None:
            return
        if self._liveness.is_broken(node):
            peer.unsent.append(message)
        else:
            peer.link.send_down(message)

    def dismiss(self, node: str, *, forget: bool, allocation: str = "") -> None:
        leave = ("leave", forget)
        self._orders[node, allocation] = leave
        for peer in (self._liveness.peers.get(node), self._liveness.seconds.get(node)):
            if peer is not None and allocation in ("", peer.allocation):
                peer.link.send_down(leave)
        self._do(self._liveness.dismiss(node, allocation))
        self._tick_when_due(self._world.clock.now, TICK_S)

    def await_return(self, nodes: tuple[str, ...]) -> None:
        now_s = self._world.clock.now
        self._liveness.await_return(nodes, now_s)
        self._tick_when_due(now_s, SUSPECT_S)

    def changed(self, link: Link) -> None:
        """A runner has fallen silent, or is heard again."""
        self._tick_at(self._world.clock.now)
        peer = self._peer_of(link)
        if peer is not None and link.silent_up_s is not None:
            peer.heard_s = link.silent_up_s
            self._tick_when_due(peer.heard_s, SUSPECT_S, SILENCE_S)

    def woke(self, slept_s: float) -> None:
        """The supervisor did not run: what came meanwhile has not been read yet."""
        now_s = self._world.clock.now
        self._judge(now_s - slept_s)
        for peer in self._connected():
            self._tick_when_due(peer.heard_s, SUSPECT_S, SILENCE_S)

    def abort(self) -> None:
        """Drops every connection."""
        self._liveness.close()
        for peer in self._connected():
            peer.link.close_down()

    def _connected(self) -> list[_Peer]:
        return [*self._liveness.peers.values(), *self._liveness.seconds.values()]

    def _peer_of(self, link: Link) -> _Peer | None:
        return next((peer for peer in self._connected() if peer.link is link), None)

    def _accept(self, link: Link, hello: Any) -> None:
        _, attempt, is_warm, problem, allocation = hello
        node, now_s = link.runner.host.name, self._world.clock.now
        if self._liveness.is_dismissed(node, allocation):
            link.send_down(self._orders.get((node, allocation)) or self._orders[node, ""])
            return
        joined = NodeJoined(node=node, attempt=attempt, is_warm=is_warm, problem=problem, allocation=allocation)
        peer, before = _Peer(link, joined, now_s), self._liveness.last(node)
        self._do(self._liveness.join(peer))
        if self.is_isolated:
            self._tick_at(now_s)
        if link.silent_up_s is not None:
            self._tick_when_due(now_s, SUSPECT_S, SILENCE_S)
        link.send_down((WELCOME, self._driver.term))
        if before is not None and self._liveness.peers.get(node) is peer:
            for message in before.unsent:
                link.send_down(message)
        self._driver.put(joined)

    def _tick_when_due(self, since_s: float, *lasts_s: float) -> None:
        for seconds in lasts_s:
            self._tick_at(since_s + seconds)

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
        if self._driver.is_awake and not self._driver.is_done:
            self._judge(self._world.clock.now)

    def _judge(self, ran_s: float) -> None:
        """
        Args:
            ran_s: the last time at which the supervisor ran.
        """
        now_s = self._world.clock.now
        for peer in self._connected():
            if peer.link.silent_up_s is None:
                peer.heard_s = now_s
        actions = self._liveness.tick(now_s, ran_s)
        self._do(actions)
        if actions:
            self._tick_when_due(now_s, TICK_S)  # those that are left may all be heard

    def _do(self, actions: Iterable[Action[_Peer]]) -> None:
        world, now_s = self._world, self._world.clock.now
        for action in actions:
            match action:
                case Drop(peer=peer):
                    peer.link.close_down()
                case Forget():
                    pass
                case Promote(peer=peer):
                    self._driver.put(replace(peer.joined, is_warm=peer.link.runner.is_warm))
                    for message in peer.unread:
                        self._driver.put(message)
                    peer.unread.clear()
                case IsolationChanged(is_isolated=is_isolated):
                    world.folder.update_lease()
                    if is_isolated:
                        world.poke()
                        self._tick_when_due(now_s, ISOLATED_S, ISOLATED_S + TICK_S)
                    self._driver.put(action)
                case _:
                    self._driver.put(action)
