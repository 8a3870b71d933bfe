"""The partner scheme: each node holds a full copy of the shards of the node before it in the set's ring."""

from __future__ import annotations

from ckpt.redundancy.sets import Members


class Partner:
    """Survives any one node of a set, and more when no two of those lost are neighbours; doubles the memory needed."""

    name = "partner"

    def survives(self, members: Members) -> int:
        return 1 if len(members) > 1 else 0

    def sources(self, node: int, members: Members) -> Members:
        if len(members) < 2:
            return ()
        return (members[members.index(node) - 1],)
