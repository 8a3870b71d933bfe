"""The partner scheme: each node holds full copies of the shards of the nodes before it in the set's ring."""

from __future__ import annotations

from ckpt.redundancy.scheme import Scheme
from ckpt.redundancy.sets import Members


class Partner(Scheme):
    """Survives the loss of any `promise` nodes of a set, and of more if not all of them are neighbours.

    Each copy needs as much memory on a node as its own shards.
    """

    name = "partner"

    def sources(self, node: int, members: Members) -> Members:
        position = members.index(node)
        return tuple(members[position - i] for i in range(1, self.survives(members) + 1))
