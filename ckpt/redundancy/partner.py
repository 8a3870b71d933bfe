"""The partner scheme: each node holds full copies of the shards of the nodes before it in the set's ring."""

from __future__ import annotations

from ckpt.redundancy.sets import Members


class Partner:
    """Survives any `copies` nodes of a set, and more when not all lost are neighbours; one more shard's memory each."""

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
