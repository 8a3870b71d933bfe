"""Parity over stripes of a redundancy set: XOR, and Reed-Solomon with any number of parity symbols."""

from __future__ import annotations

from ckpt.redundancy.sets import Members


class Erasure:
    """Survives the loss of any `promise` nodes of a set. Each of n nodes needs promise / (n - promise) of its shards'
    memory for parity.

    XOR is Reed-Solomon with one parity symbol. A set that is too small for the promise survives as many as it can.
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
