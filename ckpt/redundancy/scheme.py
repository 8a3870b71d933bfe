"""The interface of a redundancy scheme: the rule by which members of a redundancy set store data for each other."""

from __future__ import annotations

from typing import Protocol

from ckpt.redundancy.sets import Members


class Scheme(Protocol):
    """Pure functions of node ranks. All agents get the same results, without messages.

    A scheme stores full copies (`sources`), or parity over stripes of the set (`parity`), or neither.
    """

    name: str
    promise: int  # number of nodes of a set that may be lost at once, if the set is large enough

    def survives(self, members: Members) -> int:
        """The number of nodes of a set, whichever they are, that may be lost at once without losing a shard."""

    def sources(self, node: int, members: Members) -> Members:
        """The nodes whose shards are copied to `node`; never `node` itself."""

    def parity(self, members: Members) -> int:
        """The number of parity symbols in each stripe of the set; 0 without parity. stripes.py has the layout."""


class NoScheme:
    """No redundancy: every node has only its own shards."""

    name = "none"
    promise = 0

    def survives(self, members: Members) -> int:
        return 0

    def sources(self, node: int, members: Members) -> Members:
        return ()

    def parity(self, members: Members) -> int:
        return 0
