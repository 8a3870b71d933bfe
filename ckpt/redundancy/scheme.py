"""What a redundancy scheme is: a rule that says what each member of a redundancy set holds for the others."""

from __future__ import annotations

from typing import Protocol

from ckpt.redundancy.sets import Members


class Scheme(Protocol):
    """Pure arithmetic on node ranks: all agents apply it alike, none needs to ask.

    A scheme holds full copies (`sources`), or parity over stripes of the set (`parity`), or neither.
    """

    name: str
    promise: int  # nodes of a set that may be lost at once, where the set is large enough

    def survives(self, members: Members) -> int:
        """How many nodes of a set may be lost at once, whichever they are, without losing a shard."""

    def sources(self, node: int, members: Members) -> Members:
        """The nodes of whose shards `node` holds a copy. Never `node` itself."""

    def parity(self, members: Members) -> int:
        """Parity symbols of each stripe over the set; 0 without parity. See stripes.py for what is where."""


class NoScheme:
    """Every node holds its own shards only."""

    name = "none"
    promise = 0

    def survives(self, members: Members) -> int:
        return 0

    def sources(self, node: int, members: Members) -> Members:
        return ()

    def parity(self, members: Members) -> int:
        return 0
