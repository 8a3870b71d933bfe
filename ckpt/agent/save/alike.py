"""Tensors that every rank stores whole although they are equal on all ranks, such as those of an unwrapped DDP model.

Their sealed records show it: the layout has the place of each tensor, and the checksums of the blocks are there. No
byte is read again. A block that lies in a tensor speaks for it. A tensor without such a block is equal if all blocks
that it touches are. Blocks of zeros prove nothing: optimizers start with zeros, which differ after a step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ckpt.format.checksums import BLOCK_BYTES, blocks_of_range, checksum, span_of
from ckpt.format.layout import Chunk
from ckpt.format.shard_record import ShardRecord

LEAST_BYTES = 32 << 20  # of a rank's equal tensors; below it nobody need know
_LARGE_BYTES = 1 << 20  # smaller tensors are not compared
_MOST_ROWS = 4096  # of the largest tensors, in one message
_UNKNOWN = ""  # a digest of content that proves nothing either way

TensorRow = list[Any]  # key, bytes, and a digest of the content; null: not equal, or not to be declared


@dataclass(frozen=True, kw_only=True)
class Alike:
    """What all ranks store, and how to name it."""

    keys: tuple[str, ...]  # of tensors, or of containers without a large tensor that differs
    nbytes: int  # of one rank's tensors

    @property
    def message(self) -> str:
        shown = ", ".join(map(repr, self.keys[:4])) + (f" and {len(self.keys) - 4} more" if len(self.keys) > 4 else "")
        listed = ", ".join(f'"{key}"' for key in self.keys[:4]) + (", ..." if len(self.keys) > 4 else "")
        return (
            f"{shown}: {self.nbytes} bytes are now equal on all ranks, by their checksums, and every rank stores them. "
            f"If they stay equal, give Checkpointer.from_env(replicated=[{listed}]): then each rank stores a part. "
            "A model and its optimizer in DDP need no names if the state has the DDP module itself"
        )


def rows_of(records: Sequence[ShardRecord]) -> list[TensorRow]:
    """The large tensors that are in each of one node's records and not distributed, with digests."""
    return _common([_rows(record) for record in records])


def compare(of_nodes: Iterable[list[TensorRow]]) -> Alike | None:
    """The tensors that are equal on all nodes; None if they are few bytes."""
    rows = _common(list(of_nodes))
    equal = {key: nbytes for key, nbytes, digest in rows if digest}
    if sum(equal.values()) < LEAST_BYTES:
        return None
    differing = [key for key, _, digest in rows if digest is None]
    return Alike(keys=tuple(_shortest(list(equal), differing)), nbytes=sum(equal.values()))


def _rows(record: ShardRecord) -> list[TensorRow]:
    large = [c for c in record.layout.chunks if c.nbytes >= _LARGE_BYTES]
    large.sort(key=lambda chunk: (-chunk.nbytes, chunk.key))
    return [[c.key, c.nbytes, _digest(c, record)] for c in large[:_MOST_ROWS]]


def _digest(chunk: Chunk, record: ShardRecord) -> str | None:
    if chunk.spread is not None:
        return None  # each rank stores its own part already
    touched = blocks_of_range(chunk.start, chunk.nbytes)
    inside = [i for i in touched if _is_inside(span_of(i, record.nbytes), chunk)]
    seen = inside or touched
    if all(record.blocks[i] == _of_zeros(span_of(i, record.nbytes)) for i in seen):
        return None if inside else _UNKNOWN
    sums = ",".join(record.blocks[i] for i in seen)
    return checksum(f"{chunk.dtype} {chunk.shape} {chunk.start % BLOCK_BYTES} {len(inside)} {sums}".encode())


def _is_inside(span: tuple[int, int], chunk: Chunk) -> bool:
    return chunk.start <= span[0] and span[1] <= chunk.start + chunk.nbytes


def _of_zeros(span: tuple[int, int]) -> str:
    return _checksum_of_zeros(span[1] - span[0])


@lru_cache(maxsize=8)
def _checksum_of_zeros(nbytes: int) -> str:
    return checksum(bytes(nbytes))


def _common(all_rows: list[list[TensorRow]]) -> list[TensorRow]:
    """One row for each key of any of them."""
    found: dict[str, list[tuple[int, str | None]]] = defaultdict(list)
    for rows in all_rows:
        for key, nbytes, digest in rows:
            found[key].append((nbytes, digest))
    return [[key, values[0][0], _joined(values, len(all_rows))] for key, values in found.items()]


def _joined(values: list[tuple[int, str | None]], sources: int) -> str | None:
    """The digest that all sources have. Small tensors share their blocks with others, which may be what differs."""
    sizes, digests = {size for size, _ in values}, {digest for _, digest in values}
    if len(values) < sources or len(sizes) > 1 or None in digests:
        return None
    if len(digests) == 1:
        return digests.pop()
    return None if sizes.pop() >= 2 * BLOCK_BYTES else _UNKNOWN


def _shortest(equal: list[str], differing: list[str]) -> list[str]:
    """The containers that have all equal keys and none of the others, as few as possible."""
    taken = {prefix for key in differing for prefix in _prefixes(key)}
    return sorted({next((p for p in _prefixes(key) if p not in taken), key) for key in equal})


def _prefixes(key: str) -> list[str]:
    parts = key.split("/")
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]
