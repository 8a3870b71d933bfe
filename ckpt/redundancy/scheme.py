"""Redundancy schemes: the rules by which the members of a redundancy set store data for each other."""

from __future__ import annotations

from ckpt.redundancy.sets import Members


class Scheme:
    """Pure functions of node ranks. All agents get the same results, without messages.

    A scheme stores full copies (`sources`), or parity over stripes of the set (`parity`). This one stores neither:
    every node has only its own shards.
    """

    def __init__(self, name: str = "none", promise: int = 0) -> None:
        """`promise`: number of nodes of a set that may be lost at once, if the set is large enough."""
        self.name = name
        self.promise = promise

    def survives(self, members: Members) -> int:
        """The number of nodes of a set, whichever they are, that may be lost at once without losing a shard."""
        return min(self.promise, len(members) - 1)

    def sources(self, node: int, members: Members) -> Members:
        """The nodes whose shards are copied to `node`; never `node` itself."""
        return ()

    def parity(self, members: Members) -> int:
        """The number of parity symbols in each stripe of the set; 0 without parity. stripes.py has the layout."""
        return 0


class Partner(Scheme):
    """Each node has full copies of the shards of the nodes before it in the set's ring.

    It also survives the loss of more nodes if not all of them are neighbours. Each copy needs as much memory on a node
    as its own shards.
    """

    def sources(self, node: int, members: Members) -> Members:
        position = members.index(node)
        return tuple(members[position - i] for i in range(1, self.survives(members) + 1))


class Erasure(Scheme):
    """Parity: XOR, which is Reed-Solomon with one parity symbol, and Reed-Solomon with any number.

    Each of n nodes needs promise / (n - promise) of its shards' memory for parity.
    """

    def parity(self, members: Members) -> int:
        return self.survives(members)
