"""Redundancy sets: groups of nodes of an attempt that protect each other. Each set survives losses of its own."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

Members = tuple[int, ...]  # node ranks, ordered so that neighbours are in different failure domains if possible


def redundancy_sets(nodes: int, group_size: int, smallest: int, domains: Sequence[str] = ()) -> tuple[Members, ...]:
    """Divide the node ranks 0 to nodes-1 into sets of nearly equal size. Every node is in exactly one set.

    Args:
        group_size: number of members that a set should have at most.
        smallest: number of members that a set must have at least. It has priority over `group_size`.
        domains: failure domain of each node. Nodes of one domain are spread over as many sets as possible.
            Empty: each node is its own domain.
    """
    count = max(1, min(-(-nodes // group_size), nodes // smallest))
    domains = domains or [str(node) for node in range(nodes)]
    together = Counter(domains)
    dealt = sorted(range(nodes), key=lambda node: (-together[domains[node]], domains.index(domains[node]), node))
    return tuple(_apart(sorted(dealt[i::count]), domains) for i in range(count))


def set_of(node: int, sets: tuple[Members, ...]) -> Members:
    return next(members for members in sets if node in members)


def most_in_one_domain(members: Members, domains: Sequence[str]) -> int:
    """The largest number of members in one failure domain, which may be lost together."""
    return max(Counter(domains[node] for node in members).values()) if domains else 1


def _apart(members: list[int], domains: Sequence[str]) -> Members:
    """The members in the order: the first of each domain, then the second of each, and so on."""
    seen: dict[str, int] = defaultdict(int)
    turn = {}
    for node in members:
        turn[node] = seen[domains[node]]
        seen[domains[node]] += 1
    return tuple(sorted(members, key=lambda node: (turn[node], members.index(node))))
