"""Redundancy sets: which nodes of an attempt protect each other. Losses in different sets do not add up."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

Members = tuple[int, ...]  # node ranks; neighbours in this order share no failure domain where that can be


def redundancy_sets(nodes: int, group_size: int, smallest: int, domains: Sequence[str] = ()) -> tuple[Members, ...]:
    """Cuts the node ranks 0 to nodes-1 into sets of nearly equal size; every node is in exactly one.

    Args:
        nodes: how many there are.
        group_size: members that a set should have at most.
        smallest: members that a set needs; sets become larger than group_size rather than smaller than this.
        domains: each node's failure domain; those of one domain are spread over as many sets as there are.
            Empty: each node is a domain of its own.
    """
    count = max(1, min(-(-nodes // group_size), nodes // smallest))
    domains = domains or [str(node) for node in range(nodes)]
    together = Counter(domains)
    dealt = sorted(range(nodes), key=lambda node: (-together[domains[node]], domains.index(domains[node]), node))
    return tuple(_apart(sorted(dealt[i::count]), domains) for i in range(count))


def set_of(node: int, sets: tuple[Members, ...]) -> Members:
    """The set that a node is in."""
    return next(members for members in sets if node in members)


def most_in_one_domain(members: Members, domains: Sequence[str]) -> int:
    """How many members the loss of one failure domain can take."""
    return max(Counter(domains[node] for node in members).values()) if domains else 1


def _apart(members: list[int], domains: Sequence[str]) -> Members:
    """The first of each domain, then the second of each, and so on."""
    seen: dict[str, int] = defaultdict(int)
    turn = {}
    for node in members:
        turn[node] = seen[domains[node]]
        seen[domains[node]] += 1
    return tuple(sorted(members, key=lambda node: (turn[node], members.index(node))))
