"""The interface of a redundancy scheme: the rule by which members of a redundancy set store data for each other."""

from __future__ import annotations

from ckpt.redundancy.sets import Members


class Scheme:
    """Pure functions of node ranks. All agents get the same results, without messages.

    A scheme stores full copies (`sources`), or parity over stripes of the set (`parity`). This one stores neither:
    every node has only its own shards.
    """

    name = "none"

    def __init__(self, promise: int = 0) -> None:
        """`promise`: number of nodes of a set that may be lost at once, if the set is large enough."""
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
