"""Judges the connections to runners: which is connected, in doubt or lost, and whether this host itself is cut off.

Slurm may give a booster a node that an earlier booster is leaving. Then the runners of both are connected. The second
is heard only after the first has gone.

The caller has the sockets and the clock. It passes what happens with its time, and carries out the actions that it
gets, in order. Connections and the simulator both do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from launcher.core.inputs import IsolationChanged, NodeLost, StoodStill

SUSPECT_S = 1.25  # a supervisor or a runner that is silent for this time (over two heartbeats) may be lost
SILENCE_S = 2.5  # heartbeats come every 0.5 s
ISOLATED_S = 20.0  # if most nodes are silent at once: time for another supervisor to take over before they are lost
RETURN_S = 6.0  # time to reconnect for a runner whose connection broke perhaps because of us; it tries twice a second
PAUSE_S = 2.0  # a supervisor that was stopped for longer reads the waiting messages before it judges workers
CUT_OFF_S = 20.0  # so long a supervisor that reaches no other node takes this for its own trouble
TICK_S = 0.1  # between two calls of tick()


def may_be_cut_off(asked: Iterable[str], own: str | None, unreached: Collection[str]) -> bool:
    """Whether this host may be at fault, because it reaches none of the nodes that it was asked about.

    Args:
        asked: the nodes. One other node says nothing about this host.
        own: the node of this host.
        unreached: those of them to which no connection comes about; a refused one shows that the host is reached.
    """
    others = {*asked} - {own}
    return len(others) > 1 and others.issubset(unreached)


class Peer:
    """One connection of a runner.

    Attributes:
        node: the runner's node.
        allocation: the Slurm job that the runner belongs to.
        heard_s: time of the last message. The caller updates it.
    """

    __slots__ = ("allocation", "heard_s", "node")

    def __init__(self, node: str, allocation: str, now_s: float) -> None:
        self.node = node
        self.allocation = allocation
        self.heard_s = now_s


P = TypeVar("P", bound=Peer)


@dataclass(frozen=True, kw_only=True, slots=True)
class Drop(Generic[P]):
    """Closes a connection that does not count any more."""

    peer: P


@dataclass(frozen=True, kw_only=True, slots=True)
class Forget:
    """No runner of the node is connected: nothing that it has reported holds any more."""

    node: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Promote(Generic[P]):
    """The second runner of a node takes the place of the first: its hello and its messages since then are read."""

    peer: P


Action = NodeLost | IsolationChanged | StoodStill | Drop[P] | Forget | Promote[P]


class Liveness(Generic[P]):
    """The connections of one supervisor. It changes with each call. Times are those of any steady clock.

    Args:
        nodes: the nodes of the base.
        allocation: the allocation of the base.
        successors: nodes that may take over, in this order.

    Attributes:
        peers: the connected runners, by node.
        seconds: second runners of a node, from another allocation.
    """

    __slots__ = (
        "_allocation",
        "_awaited",
        "_awaited_s",
        "_away",
        "_broken",
        "_dismissed",
        "_is_closed",
        "_isolated_s",
        "_nodes",
        "_stood_still_s",
        "_successors",
        "_turns",
        "peers",
        "seconds",
    )  # fmt: skip

    def __init__(self, nodes: Iterable[str], allocation: str, successors: Iterable[str] = ()) -> None:
        self._nodes = frozenset(nodes)
        self._allocation = allocation
        self._successors = tuple(successors)
        self._turns: dict[str, int] | None = None  # places of the remaining successors; computed when needed
        self.peers: dict[str, P] = {}
        self.seconds: dict[str, P] = {}
        self._broken: dict[str, tuple[P, float]] = {}  # whose connection broke, perhaps because of us, and when
        self._away: set[str] = set()  # nodes that were lost
        self._awaited: set[str] = set()  # nodes whose runners are expected; until they connect they count as silent
        self._awaited_s = 0.0
        self._dismissed: set[tuple[str, str]] = set()  # by node and allocation ("": any)
        self._isolated_s: float | None = None  # since when most nodes have been silent
        self._stood_still_s: float | None = (
            None  # end of the last time in which this process or the network stood still
        )
        self._is_closed = False

    @property
    def is_isolated(self) -> bool:
        """Whether most nodes are silent at once. Then this supervisor's host may be the one that is cut off."""
        return self._isolated_s is not None

    @property
    def boosters(self) -> frozenset[str]:
        """Nodes outside of the base that are connected or in doubt."""
        return frozenset(self.peers.keys() | self._broken.keys()) - self._nodes

    def last(self, node: str) -> P | None:
        """The node's connection, or a broken one whose runner may reconnect."""
        broken = self._broken.get(node)
        return broken[0] if broken is not None else self.peers.get(node)

    def is_broken(self, node: str) -> bool:
        """Whether the node's connection broke and its runner may reconnect."""
        return node in self._broken

    def turn(self, node: str) -> int | None:
        """A node's place in the succession."""
        if self._turns is None:
            base = self._allocation
            left = (name for name in self._successors if not self.is_dismissed(name, base) and name not in self._away)
            self._turns = {name: turn for turn, name in enumerate(left)}
        return self._turns.get(node)

    def is_dismissed(self, node: str, allocation: str) -> bool:
        """Whether the runner of a node in this allocation was dismissed."""
        return self._is_closed or (node, "") in self._dismissed or (node, allocation) in self._dismissed

    def await_return(self, nodes: Iterable[str], now_s: float) -> None:
        """After a take-over: expects the runners of these nodes to connect."""
        base = self._allocation
        self._awaited = {node for node in nodes if node not in self.peers and not self.is_dismissed(node, base)}
        self._awaited_s = now_s

    def dismiss(self, node: str, allocation: str = "") -> list[Action[P]]:
        """The node's runner ends, now or when it reconnects.

        Args:
            node: the node.
            allocation: only the runner of this allocation; "" for any.
        """
        self._dismissed.add((node, allocation))
        last = self.last(node)
        if last is not None and allocation not in ("", last.allocation):
            return []
        self._awaited.discard(node)
        self._turns = None
        return self._promoted(node) if self._broken.pop(node, None) is not None else []

    def close(self) -> None:
        """The job ends: no runner is missed any more."""
        self._is_closed = True

    def join(self, peer: P) -> list[Action[P]]:
        """A runner has connected, which is not dismissed. It is in `seconds` if that of another allocation is there."""
        before = self.last(peer.node)
        is_second = before is not None and before.allocation != peer.allocation
        place = self.seconds if is_second else self.peers
        replaced, place[peer.node] = place.get(peer.node), peer
        if not is_second:
            self._awaited.discard(peer.node)
            self._broken.pop(peer.node, None)
            if peer.node in self._away:
                self._away.discard(peer.node)
                self._turns = None
        return [] if replaced is None else [Drop(peer=replaced)]

    def closed(self, peer: P, now_s: float, ran_s: float) -> list[Action[P]]:
        """A connection has ended. If this process or the network stood still, the node may be healthy.

        Args:
            peer: the connection.
            now_s: the time.
            ran_s: the last time at which this process is known to have run.
        """
        stood_still_s = now_s if now_s - ran_s > SUSPECT_S else self._stood_still_s
        in_doubt = self.is_isolated or (stood_still_s is not None and now_s - stood_still_s < RETURN_S)
        is_first = self.peers.get(peer.node) is peer
        if in_doubt and is_first and not self.is_dismissed(peer.node, peer.allocation):
            del self.peers[peer.node]
            self._broken[peer.node] = (peer, now_s)
            return []
        return self._lose(peer, "the connection to its runner closed", 0.0)

    def tick(self, now_s: float, ran_s: float) -> list[Action[P]]:
        """Judges who is silent. Called every TICK_S.

        Args:
            now_s: the time.
            ran_s: the last time at which this process is known to have run.
        """
        actions: list[Action[P]] = []
        lag_s = now_s - ran_s - TICK_S
        if now_s - ran_s > SUSPECT_S:
            self._stood_still_s = now_s
        if lag_s > TICK_S:  # this process did not run, so messages may have come that it has not read yet
            for peer in self._all():
                peer.heard_s += lag_s
        if lag_s > PAUSE_S:
            actions.append(StoodStill(seconds=lag_s))
        was_isolated = self.is_isolated
        may_be_cut_off = self._may_be_cut_off(now_s)
        if self.is_isolated is not was_isolated:
            actions.append(IsolationChanged(is_isolated=self.is_isolated))
        if may_be_cut_off:
            return actions
        for node, (peer, since_s) in list(self._broken.items()):
            if now_s - since_s > RETURN_S:
                del self._broken[node]
                why = f"its connection broke, and it did not come back in {RETURN_S:g} s"
                actions += self._lost(peer, why, 0.0)
        for peer in list(self._all()):
            silent_s = now_s - peer.heard_s
            if silent_s > SILENCE_S:
                actions += [*self._lose(peer, f"silent for {silent_s:.1f} s", silent_s), Drop(peer=peer)]
        return actions

    def _all(self) -> Iterator[P]:
        yield from self.peers.values()
        yield from self.seconds.values()

    def _may_be_cut_off(self, now_s: float) -> bool:
        """Whether this supervisor's host may be cut off, rather than the nodes. With two nodes this is undecidable.

        Only nodes of the base count: boosters may all end at once, and never take over.
        """
        peers = [peer for node, peer in self.peers.items() if node in self._nodes]
        awaited = self._awaited & self._nodes
        broken_s = [since_s for node, (_, since_s) in self._broken.items() if node in self._nodes]
        silent = sum(now_s - peer.heard_s > SUSPECT_S for peer in peers)
        silent += len(awaited) if now_s - self._awaited_s > SUSPECT_S else 0
        silent += sum(now_s - since_s > SUSPECT_S for since_s in broken_s)
        if 2 * silent <= len(peers) + len(awaited) + len(broken_s):
            self._isolated_s = None
            return False
        if self._isolated_s is None:
            self._isolated_s = now_s
        if now_s - self._isolated_s < ISOLATED_S:
            return True
        self._awaited.clear()
        return False

    def _lose(self, peer: P, reason: str, detect_s: float) -> list[Action[P]]:
        if self.peers.get(peer.node) is peer:
            del self.peers[peer.node]
            return self._lost(peer, reason, detect_s)
        if self.seconds.get(peer.node) is peer:
            del self.seconds[peer.node]
        return []

    def _lost(self, peer: P, reason: str, detect_s: float) -> list[Action[P]]:
        """The node's first runner has gone."""
        node = peer.node
        if node in self._nodes:
            self._away.add(node)
            self._turns = None
        actions: list[Action[P]] = [Forget(node=node)]
        if not self.is_dismissed(node, peer.allocation):
            actions.append(NodeLost(node=node, reason=reason, detect_s=round(detect_s, 3)))
        return actions + self._promoted(node)

    def _promoted(self, node: str) -> list[Action[P]]:
        second = self.seconds.pop(node, None)
        if second is None:
            return []
        self.peers[node] = second
        return [Promote(peer=second)]
