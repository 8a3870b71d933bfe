"""Redundancy of shards between nodes, so that shards survive the loss of nodes.

sets             redundancy sets: groups of nodes that protect each other
scheme           the schemes: full copies on the next nodes of the set; parity (XOR, Reed-Solomon)
stripes          the layout of parity: the bytes of each parity, and the bytes that rebuild a lost one
parity_record    the record of a node's parity
gf256            the arithmetic of parity
"""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.config import Place
from ckpt.redundancy.scheme import Erasure, Partner, Scheme
from ckpt.redundancy.sets import Members, redundancy_sets, set_of
from ckpt.sections import RedundancySection

__all__ = ["Scheme", "members_at", "scheme_of", "sets_over"]


def scheme_of(redundancy: RedundancySection) -> Scheme:
    """The scheme in a validated configuration."""
    match redundancy.scheme:
        case "partner":
            return Partner("partner", redundancy.copies)
        case "xor":
            return Erasure("xor", 1)
        case "rs":
            return Erasure("rs", redundancy.parity)
    return Scheme()


def sets_over(nodes: int, redundancy: RedundancySection, domains: Sequence[str]) -> tuple[Members, ...]:
    """The redundancy sets of `nodes` nodes. `domains` are the nodes' switches; empty if they are not known."""
    across = domains if redundancy.failure_domain == "switch" else ()
    return redundancy_sets(nodes, redundancy.group_size, max(2, scheme_of(redundancy).promise + 1), across)


def members_at(place: Place, redundancy: RedundancySection) -> Members:
    """The redundancy set of a node; empty if the node does not train."""
    if place.is_holder:
        return ()
    return set_of(place.node_rank, sets_over(len(place.nodes), redundancy, place.domains))
