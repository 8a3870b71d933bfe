"""The reads that fill each live tensor: the parts of saved chunks that together cover this rank's boxes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from ckpt.errors import CheckpointError
from ckpt.format.boxes import Box, cover
from ckpt.format.json_values import Path, name_of, tag_of
from ckpt.format.layout import Chunk
from ckpt.worker.load.shard_reader import Read, SavedStep
from ckpt.worker.load.shared_memory import Target, refuse_lost_values
from ckpt.worker.placement import is_elsewhere, parts_of
from ckpt.worker.tensors import DTENSOR, check_array_dtype, chunk_box, dtype_name, flat_bytes, local_part, torch_dtype


class TensorReads:
    """Collects the reads of one load; `SavedStep.read` then performs them."""

    def __init__(self, saved: SavedStep, source: int, *, everywhere: bool = False) -> None:
        """
        Args:
            source: the saved rank whose plain tensors, arrays and values are loaded. It also names the others.
            everywhere: whether every rank may have parts of every tensor.
        """
        self.source = source
        self._everywhere = everywhere
        self.reads: list[Read] = []
        self.targets: list[Target] = []
        self._saved = saved
        self._chunks: dict[int, dict[str, list[Chunk]]] = {}  # by rank and key

    def kind(self, node: Any) -> tuple[tuple[int, ...], str]:
        """The shape and the dtype's name of a saved tensor or array."""
        _, chunk = self._any_chunk(node)
        return chunk.shape, chunk.dtype

    def difference(self, live: Any, node: Any) -> str | None:
        """The reason why a live tensor cannot take the saved one; None if it can."""
        if is_elsewhere(live):
            return None
        _, chunk = self._any_chunk(node)
        saved, now = (chunk.dtype, chunk.shape), (dtype_name(live.dtype), tuple(live.shape))
        return None if saved == now else f"saved as {saved[0]} {list(saved[1])}, live is {now[0]} {list(now[1])}"

    def fill(self, live: Any, node: Any, path: Path) -> Any:
        """Plans the reads that fill a live tensor or array of the saved shape and dtype. Returns the target."""
        if isinstance(live, np.ndarray):
            live = live if live.flags.writeable else np.array(live)
        local = local_part(live)
        for part in parts_of(live, path):
            target = local[part.index]
            self._plan(node, part.box, target, path)
            self.targets.append(Target(data=target, node=node, box=part.box, path=path))
        return live

    def part(self, node: Any, box: Box, target: Any) -> list[Read]:
        """The reads that fill a target with a box of a saved tensor or array."""
        planned, self.reads = self.reads, []
        self._plan(node, box, target, (node[tag_of(node) or ""],))
        found, self.reads = self.reads, planned
        return found

    def check_targets(self) -> None:
        """Raises StateError if targets share memory and were saved with different values. Reads only these."""
        refuse_lost_values(self.targets, self._read_beside)

    def _read_beside(self, target: Target, into: Any) -> None:
        self._saved.read(self.part(target.node, target.box, into))

    def _plan(self, node: Any, wanted: Box, target: Any, path: Path) -> None:
        offers = (
            (chunk_box(chunk), (rank, chunk))
            for rank in self._ranks(node, wanted)
            for chunk in self._by_key(rank).get(node[tag_of(node) or ""], ())
        )
        parts, missing = cover(wanted, offers)
        if missing:
            raise CheckpointError(
                f"step {self._saved.step}: {name_of(path)}: no rank saved the elements from {missing[0].offsets}, "
                f"size {missing[0].sizes}"
            )
        as_array = isinstance(target, np.ndarray)
        for part, _, (rank, chunk) in parts:
            into = target[(*part.within(wanted), ...)]
            is_copy = part == chunk_box(chunk) and dtype_name(into.dtype) == chunk.dtype
            flat = flat_bytes(into) if is_copy else None
            (check_array_dtype if as_array else torch_dtype)(chunk)
            put = partial(np.copyto, into) if as_array else into.copy_
            self.reads.append(Read(rank=rank, chunk=chunk, part=part, target=put, flat=flat, as_array=as_array))

    def _ranks(self, node: Any, wanted: Box) -> Iterator[int]:
        """The saved ranks that may have parts, likely ones first.

        A record is opened only if the earlier ones were not enough.
        """
        yield self.source
        holder, chunk = self._any_chunk(node)
        if chunk.spread is None and not self._everywhere:
            return
        seen = {self.source}
        likely: Iterator[int] = iter(())
        if chunk.spread is not None:
            spread = self._saved.record(holder).layout.spreads[chunk.spread]
            likely = spread.likely(chunk.shape, chunk.owners, wanted, self.source)
        for rank in chain(likely, range(self._saved.world_size)):
            if rank not in seen and rank < self._saved.world_size:
                seen.add(rank)
                yield rank

    def _any_chunk(self, node: Any) -> tuple[int, Chunk]:
        """Any chunk of a saved tensor, for its shape and dtype, and the rank that has it."""
        tag = tag_of(node) or ""
        key = node[tag]
        # A rank outside a DTensor's mesh has no chunk of it.
        others = range(self._saved.world_size) if tag == DTENSOR else ()
        for rank in (self.source, *others):
            if chunks := self._by_key(rank).get(key):
                return rank, chunks[0]
        raise CheckpointError(
            f"step {self._saved.step}: the shard of rank {self.source} names {key!r:.200} but does not contain it"
        )

    def _by_key(self, rank: int) -> dict[str, list[Chunk]]:
        if rank not in self._chunks:
            table: dict[str, list[Chunk]] = {}
            for chunk in self._saved.record(rank).layout.chunks:
                table.setdefault(chunk.key, []).append(chunk)
            self._chunks[rank] = table
        return self._chunks[rank]
