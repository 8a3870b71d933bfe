"""What a redundancy scheme is: a rule that says what each member of a redundancy set holds for the others."""

from __future__ import annotations

from typing import Protocol

from ckpt.redundancy.sets import Members


class Scheme(Protocol):
    """Pure arithmetic on node ranks: all agents apply it alike, none needs to ask."""

    name: str

    def survives(self, members: Members) -> int:
        """How many nodes of a set may be lost at once, whichever they are, without losing a shard."""

    def sources(self, node: int, members: Members) -> Members:
        """The nodes whose shards `node` needs, to make what it holds for its set. Never `node` itself."""


class NoScheme:
    """Every node holds its own shards only."""

    name = "none"

    def survives(self, members: Members) -> int:
        return 0

    def sources(self, node: int, members: Members) -> Members:
        return ()
