"""Parity over stripes of a redundancy set: XOR, and Reed-Solomon with any number of parity symbols."""

from __future__ import annotations

from ckpt.redundancy.sets import Members


class Erasure:
    """Survives any `promise` nodes of a set; takes promise / (n - promise) of a shard's memory on each of n nodes.

    XOR is Reed-Solomon with one parity symbol. A set too small for the promise keeps as much of it as it can.
    """

    def __init__(self, name: str, promise: int) -> None:
        self.name = name
        self.promise = promise

    def survives(self, members: Members) -> int:
        return min(self.promise, len(members) - 1)

    def sources(self, node: int, members: Members) -> Members:
        return ()

    def parity(self, members: Members) -> int:
        return self.survives(members)
