"""The job's nodes: one table, in which every node has exactly one phase."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from rpds import HashTrieMap


class Phase(Enum):
    """The phase of a member. Exactly one at any time."""

    __hash__ = object.__hash__  # Enum hashes the name, in Python; tables by phase are read in every decision

    JOINING = "joining"  # its runner has not connected yet
    READY = "ready"  # its runner is connected, and the node does not train
    TRAINING = "training"  # it belongs to the attempt
    RETURNING = "returning"  # back after it was lost; processes of its attempt are being ended
    LEAVING = "leaving"  # its booster ends, and others take over its shards
    OUT = "out"


@dataclass(frozen=True, kw_only=True)
class Member:
    """A node of the job.

    Attributes:
        reason: why it is out or leaves.
        is_lost: whether it is out only because it was not reached, so it may come back.
        is_environment: whether it is out because the job's Python cannot be loaded there.
        is_warm: whether its warm process has loaded torch.
        returns: number of times it came back.
        ending: while it is returning, the attempt whose processes it is ending; None if there is none.
        is_judged: while it is returning, whether the scheduler has said that it can be used.
    """

    phase: Phase = Phase.JOINING
    allocation: str = ""
    reason: str = ""
    is_lost: bool = False
    is_environment: bool = False
    is_warm: bool = False
    returns: int = 0
    ending: int | None = None
    is_judged: bool = False


_NO_COUNTS = dict.fromkeys(Phase, 0)


@dataclass(frozen=True)
class Members:
    """All nodes of the job by name.

    Attributes:
        table: each node's member.
        counts: how many members are in each phase.
    """

    table: HashTrieMap[str, Member] = field(default_factory=HashTrieMap)
    counts: Mapping[Phase, int] = field(default_factory=_NO_COUNTS.copy)

    @classmethod
    def joining(cls, nodes: Iterable[str], allocations: Mapping[str, str]) -> Members:
        """Members whose runners have not connected yet."""
        table = HashTrieMap({node: Member(allocation=allocations.get(node, "")) for node in nodes})
        return cls(table, {**_NO_COUNTS, Phase.JOINING: len(table)})

    def __getitem__(self, node: str) -> Member:
        return self.table[node]

    def __contains__(self, node: str) -> bool:
        return node in self.table

    def put(self, node: str, after: Member) -> Members:
        """The members, with another state of one of them."""
        before = self.table[node]
        counts = self.counts
        if after.phase is not before.phase:
            counts = {**counts, before.phase: counts[before.phase] - 1}
            counts[after.phase] += 1
        return Members(self.table.insert(node, after), counts)

    def add(self, node: str, member: Member) -> Members:
        """The members, with a new one."""
        counts = {**self.counts, member.phase: self.counts[member.phase] + 1}
        return Members(self.table.insert(node, member), counts)

    def remove(self, node: str) -> Members:
        """The members, without one of them."""
        phase = self.table[node].phase
        return Members(self.table.discard(node), {**self.counts, phase: self.counts[phase] - 1})

    def out(self) -> dict[str, str]:
        """The nodes that are out with their reasons, including those that are coming back."""
        gone = (Phase.OUT, Phase.RETURNING)
        out = [(node, member.reason) for node, member in self.table.items() if member.phase in gone]
        return dict(sorted(out))  # the table's own order differs from run to run

    @property
    def usable(self) -> int:
        """The number of nodes that train or can train."""
        return self.counts[Phase.READY] + self.counts[Phase.TRAINING]

    @property
    def joining_count(self) -> int:
        """The number of nodes whose runners have not connected yet."""
        return self.counts[Phase.JOINING]


def is_usable(member: Member) -> bool:
    """Whether a node trains or can train."""
    return member.phase in (Phase.READY, Phase.TRAINING)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The nodes of an attempt.

    Attributes:
        nodes: in node-rank order.
        has_shrunk: whether there are fewer nodes than before.
    """

    nodes: tuple[str, ...]
    has_shrunk: bool


@dataclass(frozen=True, kw_only=True)
class Network:
    """The network between the nodes.

    Attributes:
        leaf: the leaf switch of a node; "" if none is known. The nodes of one have the same distance to any other node.
        distance: the distance between two nodes.
    """

    leaf: Callable[[str], str] = lambda node: ""
    distance: Callable[[str, str], int] = lambda one, other: 1


def choose(
    order: Sequence[str],
    members: Members,
    before: tuple[str, ...],
    sizes: Sequence[int],
    network: Network,
    avoid: Collection[str] = (),
) -> Choice | None:
    """The nodes of the next attempt; None if too few are ready.

    A replacement takes the position of the node that it replaces, so that all other ranks stay on the nodes with their
    memory. Each spare replaces the node nearest to it. A node that makes the world larger comes after the node nearest
    to it.

    Args:
        order: the nodes that may train; those that should train come first.
        members: their members.
        before: the previously chosen nodes.
        sizes: the allowed numbers of nodes, the largest first.
        network: the network between them.
        avoid: nodes that train only if there are too few others.
    """
    usable = {node for node in order if is_usable(members[node])}
    size = next((size for size in sizes if size <= len(usable)), None)
    if size is None:
        return None
    taken = frozenset(before)
    spares = sorted((node for node in order if node in usable and node not in taken), key=lambda node: node in avoid)
    place = {node: node for node in before}
    place |= _replace([node for node in before if node not in usable], spares, network)
    placed = frozenset(place.values())
    good = [node for node in spares if node not in avoid and node not in placed]
    bad = [node for node in before if node in usable and node in avoid]
    place |= _replace(bad[: len(usable) - size], good, network)
    there = [place[node] for node in before if place[node] in usable]
    best = frozenset(sorted(there, key=lambda node: node in avoid)[:size])
    kept = [node for node in there if node in best]
    more = [node for node in spares if node not in best][: size - len(kept)]
    nodes = _join(more, kept, network) if kept else more
    return Choice(nodes=tuple(nodes), has_shrunk=size < len(before))


def _join(more: Sequence[str], kept: Sequence[str], network: Network) -> list[str]:
    """The nodes of a larger world. Each further node follows the last of those that it is nearest to, so that ranks
    beside each other are near each other."""
    nodes = list(kept)
    last = {network.leaf(node): at for at, node in enumerate(kept)}  # the last position of each leaf switch
    for node in more:
        at = 1 + min(last.values(), key=lambda at: (network.distance(node, nodes[at]), -at))
        nodes.insert(at, node)
        last = {leaf: was + (was >= at) for leaf, was in last.items()} | {network.leaf(node): at}
    return nodes


def _replace(leaving: Sequence[str], spares: Sequence[str], network: Network) -> dict[str, str]:
    """The spares that take the positions of leaving nodes, the closest pair first. Equal distances keep the order."""
    free: dict[str, deque[tuple[int, str]]] = {}  # the spares of each leaf switch, with their places in the order
    for at, spare in enumerate(spares):
        free.setdefault(network.leaf(spare), deque()).append((at, spare))
    near: dict[str, list[tuple[int, deque[tuple[int, str]]]]] = {}  # seen from each leaf switch: with their distances
    for node in leaving:
        if network.leaf(node) not in near:
            near[network.leaf(node)] = [(network.distance(node, queue[0][1]), queue) for queue in free.values()]
    found: dict[str, str] = {}
    for distance in sorted({distance for seen in near.values() for distance, _ in seen}):
        for node in leaving:
            if node not in found:
                queues = [queue for away, queue in near[network.leaf(node)] if queue and away == distance]
                if queues:
                    found[node] = min(queues, key=lambda queue: queue[0]).popleft()[1]
    return found
