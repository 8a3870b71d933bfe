"""The layout of parity in a redundancy set: the bytes of each parity, and the bytes that rebuild a lost byte.

The set has n members and m parity symbols for each stripe. A member's stream is its shards, one after another. It is
divided into n - m segments. Stripe s consists of segment d of member s + m + d for each d. Its parity row t is on
member s + t. All indices are modulo n. So every member is in each stripe once, and stores m rows. Streams that are
shorter than the longest count as padded with zeros, which are not stored. All functions here are pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ckpt.errors import CheckpointError
from ckpt.format.layout import align
from ckpt.redundancy.gf256 import combination, multiply, parity_row


class LossError(CheckpointError):
    """More members of a redundancy set are lost than its parity can rebuild. The message names the lost members."""


@dataclass(frozen=True, kw_only=True)
class ByteTerm:
    """A range of bytes on one member, multiplied by a coefficient."""

    member: int  # index in the set
    parity: bool  # whether the range is in the member's parity; else in its stream
    start: int
    nbytes: int  # may be fewer than the sum's bytes; the rest counts as zeros
    coefficient: int


@dataclass(frozen=True, kw_only=True)
class Sum:
    """A byte range as a sum of terms. Terms start after the receiver, so receivers do not all read from the same member
    first."""

    at: int  # first byte of the range in the result
    nbytes: int
    terms: tuple[ByteTerm, ...]


class Stripes:
    """The stripes over one set of one save."""

    def __init__(self, lengths: Sequence[int], parity: int) -> None:
        """`lengths`: bytes of each member's stream, in the set's order."""
        self.members = len(lengths)
        self.parity = parity
        self.data = self.members - parity
        self.lengths = tuple(lengths)
        self.segment_bytes = align(-(-max(lengths) // self.data))

    def parity_bytes(self, member: int) -> int:
        """The number of bytes of a member's parity, which is its rows, one after another."""
        return self._row_start(member, self.parity)

    def encode(self, member: int, row: int) -> Sum:
        """The sum that gives a row of a member's parity. It may have no terms."""
        stripe = (member - row) % self.members
        nbytes, coefficients = self._stripe_bytes(stripe), parity_row(row, self.data, self.parity)
        terms = [self._segment(stripe, d, 0, nbytes, coefficients[d]) for d in range(self.data)]
        return self._sum(member, self._row_start(member, row), nbytes, terms)

    def rebuild(self, member: int, start: int, stop: int, data: Collection[int], parity: Collection[int]) -> list[Sum]:
        """The sums that give a range of a member's lost stream.

        Args:
            start, stop: the range in its stream, in bytes.
            data: the members whose whole stream is available.
            parity: the members whose parity is available.

        Raises:
            LossError: too many members are lost.
        """
        sums = []
        for segment in range(self.data):
            first = max(start, segment * self.segment_bytes)
            last = min(stop, (segment + 1) * self.segment_bytes)
            if first < last:
                offset = first - segment * self.segment_bytes
                terms = self._solve(member, segment, offset, last - first, data, parity)
                sums.append(self._sum(member, first - start, last - first, terms))
        return sums

    def _solve(
        self, member: int, segment: int, offset: int, nbytes: int, data: Collection[int], parity: Collection[int]
    ) -> list[ByteTerm]:
        stripe = (member - self.parity - segment) % self.members
        missing = [d for d in range(self.data) if d == segment or self._data_member(stripe, d) not in data]
        rows = [row for row in range(self.parity) if (stripe + row) % self.members in parity][: len(missing)]
        if len(rows) < len(missing):
            lost = ", ".join(str(self._data_member(stripe, d)) for d in missing)
            raise LossError(
                f"stripe {stripe}: members {lost} of {self.members} are lost, {len(rows)} of {self.parity} "
                "parity blocks are left; expected one for each"
            )
        weights = combination(segment, missing, rows, self.data, self.parity)
        terms = []
        for d in (d for d in range(self.data) if d not in missing):
            coefficient = 0
            for row, weight in weights.items():
                coefficient ^= multiply(weight, parity_row(row, self.data, self.parity)[d])
            terms.append(self._segment(stripe, d, offset, nbytes, coefficient))
        for row, weight in weights.items():
            holder = (stripe + row) % self.members
            begin = self._row_start(holder, row) + offset
            present = max(0, min(nbytes, self._stripe_bytes(stripe) - offset))
            terms.append(ByteTerm(member=holder, parity=True, start=begin, nbytes=present, coefficient=weight))
        return terms

    def _sum(self, target: int, at: int, nbytes: int, terms: Sequence[ByteTerm]) -> Sum:
        ring = sorted(terms, key=lambda term: (term.member - target - 1) % self.members)
        return Sum(at=at, nbytes=nbytes, terms=tuple(term for term in ring if term.nbytes and term.coefficient))

    def _segment(self, stripe: int, d: int, offset: int, nbytes: int, coefficient: int) -> ByteTerm:
        member = self._data_member(stripe, d)
        present = max(0, min(nbytes, self._segment_bytes(member, d) - offset))
        start = d * self.segment_bytes + offset
        return ByteTerm(member=member, parity=False, start=start, nbytes=present, coefficient=coefficient)

    def _data_member(self, stripe: int, d: int) -> int:
        return (stripe + self.parity + d) % self.members

    def _segment_bytes(self, member: int, d: int) -> int:
        return max(0, min(self.segment_bytes, self.lengths[member] - d * self.segment_bytes))

    def _stripe_bytes(self, stripe: int) -> int:
        return max(self._segment_bytes(self._data_member(stripe, d), d) for d in range(self.data))

    def _row_start(self, member: int, row: int) -> int:
        return sum(self._stripe_bytes((member - i) % self.members) for i in range(row))


def extents(lengths: Sequence[int], start: int, nbytes: int) -> list[tuple[int, int, int, int]]:
    """A range of a stream as ranges of the shards it consists of: (index, start in the shard, bytes, at).

    `lengths` are those of the shards; `at` counts from the range's first byte.
    """
    found, first = [], 0
    for index, length in enumerate(lengths):
        begin, end = max(start, first), min(start + nbytes, first + length)
        if begin < end:
            found.append((index, begin - first, end - begin, begin - start))
        first += length
    return found
