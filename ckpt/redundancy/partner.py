"""The partner scheme: each node holds full copies of the shards of the nodes before it in the set's ring."""

from __future__ import annotations

from ckpt.redundancy.sets import Members


class Partner:
    """Survives the loss of any `copies` nodes of a set, and of more if not all of them are neighbours.

    Each copy needs as much memory on a node as its own shards.
    """

    name = "partner"

    def __init__(self, copies: int) -> None:
        self.promise = copies

    def survives(self, members: Members) -> int:
        return min(self.promise, len(members) - 1)

    def sources(self, node: int, members: Members) -> Members:
        position = members.index(node)
        return tuple(members[position - i] for i in range(1, self.survives(members) + 1))

    def parity(self, members: Members) -> int:
        return 0
