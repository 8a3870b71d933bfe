"""Parity over stripes of a redundancy set: XOR, and Reed-Solomon with any number of parity symbols."""

from __future__ import annotations

from ckpt.redundancy.scheme import Scheme
from ckpt.redundancy.sets import Members


class Erasure(Scheme):
    """Survives the loss of any `promise` nodes of a set. Each of n nodes needs promise / (n - promise) of its shards'
    memory for parity.

    XOR is Reed-Solomon with one parity symbol. A set that is too small for the promise survives as many as it can.
    """

    def __init__(self, name: str, promise: int) -> None:
        super().__init__(promise)
        self.name = name

    def parity(self, members: Members) -> int:
        return self.survives(members)
