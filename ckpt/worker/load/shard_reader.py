"""The shards of a saved step, opened through the node's agent. Every byte is verified before it is used."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ckpt.errors import AgentError, CheckpointError, CorruptError
from ckpt.format.atomic_files import map_regular
from ckpt.format.boxes import Box
from ckpt.format.checksums import block_count, blocks_of_range
from ckpt.format.layout import Chunk
from ckpt.format.shard_record import SaveId, ShardRecord
from ckpt.worker.load.verified_copy import Region, copy_verified
from ckpt.worker.tensors import chunk_box, torch_dtype, view_array, view_bytes

_TRIES = 6  # own memory, a partner's copy, three lower tiers, and one spare

Mapped = Callable[[str, int], "memoryview | None"]  # the first bytes of a file, if this process has mapped them

log = logging.getLogger(__name__)


class ShardSource(Protocol):
    """The part of the connection to the agent that a load needs; ckpt.agent.rpc.client.AgentClient has it."""

    def request(self, op: str, *, timeout_s: float, **fields: Any) -> dict[str, Any]: ...


@dataclass(frozen=True, kw_only=True)
class Read:
    """A part of a chunk, and its target."""

    rank: int  # of the shard
    chunk: Chunk
    part: Box  # box inside the chunk's box
    target: Callable[[Any], Any]  # called with a tensor over the mapped bytes, of the part's sizes; must copy it
    flat: np.ndarray | None = None  # the target's bytes, if they are one contiguous copy of the chunk's
    as_array: bool = False  # whether the target is called with a NumPy array instead

    @property
    def itemsize(self) -> int:
        elements = chunk_box(self.chunk).elements
        return self.chunk.nbytes // elements if elements else 0


@dataclass(frozen=True, kw_only=True)
class Offer:
    """Where the agent says that a shard can be read."""

    path: str
    base: int  # the shard's first byte in the file
    record: ShardRecord
    whole: bool  # whether all of it is there, whatever blocks were asked for


class SavedStep:
    """A step that the agents have agreed to restore. It gives its shards' records and bytes."""

    def __init__(
        self, agent: ShardSource, *, step: int, world_size: int, node: str, open_s: float, threads: int = 1,
        save: SaveId | None = None,
        mapped: Mapped = lambda path, nbytes: None, tier: str = "",
    ) -> None:  # fmt: skip
        """
        Args:
            world_size: that of the run that saved the step.
            save: its id; None: a plan that may still change.
            mapped: returns the bytes of a file that this process has already mapped.
            tier: the lowest tier that the step needs, for messages.
        """
        self.tier = tier
        self.step = step
        self.save = save
        self.world_size = world_size
        self.bytes_read = 0
        self._agent = agent
        self._node = node
        self._open_s = open_s
        self._threads = threads
        self._mapped = mapped
        self._records: dict[int, ShardRecord] = {}
        self._offers: dict[int, Offer] = {}  # whole shards that came with a record, each to be read once

    def record(self, rank: int) -> ShardRecord:
        """The record of a saved rank's shard. Its bytes are not fetched."""
        if rank not in self._records:
            offer = self._open(rank, [])
            self._records[rank] = offer.record
            if offer.whole:
                self._offers[rank] = offer
        return self._records[rank]

    def records(self, first: int) -> Iterator[ShardRecord]:
        """The records of all saved ranks, one by one, starting with `first`."""
        for i in range(self.world_size):
            yield self.record((first + i) % self.world_size)

    def read(self, reads: Iterable[Read]) -> None:
        """Fetches and verifies parts and copies them to their targets, shard by shard.

        Raises:
            CheckpointError: no source has the bytes intact. The message names the step.
        """
        for rank, wanted in _by_rank(reads).items():
            self._read_shard(rank, wanted)

    def wants(self, reads: Iterable[Read]) -> list[tuple[int, list[int] | None]]:
        """The ranks whose shards have the parts, each with the blocks that are needed; None for all blocks."""
        found = []
        for rank, wanted in _by_rank(reads).items():
            blocks = _blocks(wanted)
            found.append((rank, None if self._is_all(rank, blocks) else blocks))
        return found

    def _is_all(self, rank: int, blocks: list[int]) -> bool:
        return len(blocks) == block_count(self.record(rank).layout.nbytes)

    def _read_shard(self, rank: int, wanted: list[Read]) -> None:
        blocks = _blocks(wanted)
        if not blocks:
            return
        everything = self._is_all(rank, blocks)
        for _ in range(_TRIES):
            offer = self._offers.pop(rank, None) or self._open(rank, None if everything else blocks)
            path, record = offer.path, offer.record
            data = None if offer.base else self._mapped(path, record.layout.nbytes)
            if data is None:
                data = _map(path, offer.base, record.layout.nbytes)
            regions = [Region(start=read.chunk.start, target=read.flat) for read in wanted if read.flat is not None]
            damaged = blocks if data is None else copy_verified(data, record.blocks, blocks, regions, self._threads)
            if not damaged and data is not None:
                for read in wanted:
                    self._hand_out(data, read)
                return
            log.warning(
                "step %d: %d blocks of rank %d are damaged in %s: asking for another source",
                self.step,
                len(damaged),
                rank,
                path,
            )
            self._agent.request("damaged", timeout_s=self._open_s, step=self.step, rank=rank, path=path)
        raise CheckpointError(
            f"step {self.step}: no source has the shard of rank {rank} intact; "
            "start the job again: it will restore an older step"
        )

    def _hand_out(self, data: memoryview, read: Read) -> None:
        chunk = read.chunk
        if read.flat is not None:
            self.bytes_read += chunk.nbytes
            return
        whole: Any
        if read.as_array:
            whole = view_array(data, chunk.start, chunk.dtype, chunk.sizes)
        else:
            whole = view_bytes(data, chunk.start, torch_dtype(chunk), chunk.sizes)
        read.target(whole[read.part.within(chunk_box(chunk))])
        self.bytes_read += read.part.elements * read.itemsize

    def _open(self, rank: int, blocks: list[int] | None) -> Offer:
        try:
            reply = self._agent.request("open", timeout_s=self._open_s, step=self.step, rank=rank, blocks=blocks)
        except AgentError as error:
            raise CheckpointError(
                f"step {self.step}: the agent of node {self._node} has no shard of rank {rank}: {error}"
            ) from None
        record = reply["record"]
        known = self._records.get(rank, record)
        got, expected = (record.save, record.rank, record.layout), (known.save, rank, known.layout)
        if got != expected or record.save.step != self.step:
            raise CorruptError(
                f"step {self.step}: the shard offered for rank {rank} is of rank {record.rank}, {record.save}"
            )
        whole = bool(reply["whole"])
        return Offer(path=str(reply["path"]), base=int(reply["base"]), record=record, whole=whole)


def _by_rank(reads: Iterable[Read]) -> dict[int, list[Read]]:
    found: dict[int, list[Read]] = defaultdict(list)
    for read in reads:
        found[read.rank].append(read)
    return found


def _blocks(reads: list[Read]) -> list[int]:
    """The blocks of a shard that contain the reads."""
    return sorted({block for read in reads for block in blocks_of_range(*_byte_range(read))})


def _byte_range(read: Read) -> tuple[int, int]:
    """Start and length of a part's bytes in the shard."""
    first, end = read.part.span(chunk_box(read.chunk))
    return read.chunk.start + first * read.itemsize, (end - first) * read.itemsize


def _map(path: str, base: int, nbytes: int) -> memoryview | None:
    """The shard's bytes, private to us; None when the file is gone or too short."""
    try:
        return map_regular(Path(path), base, nbytes)
    except (CorruptError, OSError) as error:
        log.warning("%s: %s", path, error)
        return None
