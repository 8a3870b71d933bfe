"""A storage writer and a storage reader for torch.distributed.checkpoint (DCP). Shards, slots and tiers are those of
Checkpointer.save.

DCP plans which rank writes which part of the state. The parts of a rank are its shard. Objects other than tensors are
stored as JSON, not pickled. A planner may give bytes that it has made of an object (Megatron's does); these are stored
and given back as they are. No metadata file is stored: the reader builds DCP's metadata from the layouts of all
shards. So the world size may change between save and load.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch.distributed.checkpoint import StorageReader, StorageWriter
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ckpt.errors import CheckpointError, StateError
from ckpt.format.boxes import Box
from ckpt.format.json_values import decode, encode, tag_of
from ckpt.format.layout import Chunk
from ckpt.format.shard_record import ShardRecord
from ckpt.worker.engine import Engine
from ckpt.worker.lazy_torch import is_dtensor
from ckpt.worker.load.match import DCP
from ckpt.worker.load.read_plan import TensorReads
from ckpt.worker.load.shard_reader import Read, SavedStep
from ckpt.worker.placement import Piece, parts_of
from ckpt.worker.tensors import DTENSOR, check_target, check_tensor, torch_dtype, waited


class DcpWriter(StorageWriter):
    """The `storage_writer` argument of torch.distributed.checkpoint.save and async_save; one for each step.

    A save that fails for lack of memory or of an agent is logged and counted, as in Checkpointer.save; nothing is
    raised.
    """

    def __init__(self, engine: Engine, step: int, *, flush: bool = False) -> None:
        """
        Args:
            step: greater than the step of the previous save.
            flush: whether to write the step to every lower tier, whatever its cadence.
        """
        self._engine = engine
        self._step = step
        self._flush = flush

    def __reduce__(self) -> NoReturn:
        raise StateError(
            "dcp_writer: works in its own process only; call dcp.async_save with "
            "async_checkpointer_type=AsyncCheckpointerType.THREAD, which is its default"
        )

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Does nothing: a writer serves one step. The id is not used: the step and the namespace give the location."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Does nothing: no rank coordinates the others."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Stages this rank's part.

        Raises:
            StateError: an object cannot be stored as JSON. The message names its key.
        """
        objects, packed, pieces, results = [], [], [], []
        for item in plan.items:
            if item.type is WriteItemType.BYTE_IO:
                value = _object(item, planner)
                if isinstance(value, io.BytesIO) and planner.resolve_data(item) is value:
                    packed.append(item.index.fqn)
                    value = value.getvalue()
                node = encode(value, (item.index.fqn,))
                objects.append([item.index.fqn, node])
                size_bytes = len(str(node))
            else:
                check_one_box(planner, item.index.fqn)
                piece = _piece(item, waited(planner.resolve_data(item)).detach())
                pieces.append(piece)
                size_bytes = piece.data.numel() * piece.data.element_size()
            results.append(WriteResult(index=item.index, size_in_bytes=size_bytes, storage_data=None))
        mappings = encode(plan.planner_data or {}, ("planner_data",))
        tree = {DCP: {"objects": objects, "mappings": mappings} | ({"packed": packed} if packed else {})}
        self._engine.save_pieces(self._step, pieces, tree, flush=self._flush)
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Does nothing: the agents commit the step once all ranks have staged it. The reader builds DCP's metadata."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False


class DcpReader(StorageReader):
    """The `storage_reader` argument of torch.distributed.checkpoint.load.

    It reads `Checkpointer.newest_step`, or a chosen step.
    """

    def __init__(self, engine: Engine, step: int | None) -> None:
        self._engine = engine
        self._since_s = time.monotonic()
        self._saved: SavedStep = engine.saved_step(step, "dcp_reader")
        self._content(next(self._records()))

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Does nothing; the id is not used."""

    def read_metadata(self, *args: Any) -> Metadata:
        """Builds DCP's metadata from the layouts of all ranks' shards."""
        objects: dict[str, Any] = {}
        mappings: dict[str, Any] = {}
        for record in self._records():
            content = self._content(record)
            mappings.update(decode(content["mappings"]))
            objects.update({fqn: BytesStorageMetadata() for fqn, _ in content["objects"]})
        tensors = tensor_metadata(chunk for record in self._records() for chunk in record.layout.chunks)
        return Metadata(state_dict_metadata={**objects, **tensors}, planner_data=mappings)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Does nothing: no rank coordinates the others."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Adds the id of the save that this rank reads, because several attempts may have saved the same step."""
        return replace(plan, storage_data=self._saved.record(0).save)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        if len(saves := {plan.storage_data for plan in plans}) > 1:
            raise CheckpointError(f"dcp_reader: ranks found different saves of step {self._saved.step}: {saves}")
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fills the tensors of this rank's plan from the shards of all ranks that have parts of them."""
        stored = TensorReads(self._saved, self._engine.rank % self._saved.world_size, everywhere=True)
        contents = [self._content(record) for record in self._records()]
        objects = {fqn: node for content in contents for fqn, node in content["objects"]}
        packed = {fqn for content in contents for fqn in content.get("packed", ())}
        reads: list[Read] = []
        tensors: list[tuple[ReadItem, torch.Tensor]] = []
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                fqn = item.storage_index.fqn
                value = decode(objects[fqn])
                planner.load_bytes(item, io.BytesIO(value) if fqn in packed else _pickled_in_memory(value))
            else:
                check_one_box(planner, item.dest_index.fqn)
                target = waited(planner.resolve_tensor(item)).detach()
                check_target(target, (item.dest_index.fqn,))
                reads += stored.part({DTENSOR: item.storage_index.fqn}, _wanted(item), target)
                tensors.append((item, target))
        with torch.no_grad():
            self._saved.read(reads)
        for item, target in tensors:
            planner.commit_tensor(item, target)
        self._engine.loaded(self._saved, time.monotonic() - self._since_s)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False

    def _records(self) -> Iterator[ShardRecord]:
        return self._saved.records(self._engine.rank % self._saved.world_size)

    def _content(self, record: ShardRecord) -> Any:
        tree = record.layout.tree
        if tag_of(tree) != DCP:
            step, is_newest = self._saved.step, self._saved.step == self._engine.newest_step
            how = "load it with Checkpointer.load()" if is_newest else f"`holdfast ckpt export --step {step}` gives it"
            raise StateError(f"step {step} was saved with Checkpointer.save(): {how}")
        return tree[DCP]


def check_one_box(planner: SavePlanner | LoadPlanner, fqn: str) -> None:
    """Raises StateError for a DTensor whose local tensor has gaps. DCP plans one box for it, with the wrong rows."""
    live: Any = getattr(planner, "state_dict", {}).get(fqn)
    if is_dtensor(live) and len(parts_of(live, (fqn,))) > 1:
        raise StateError(
            f"{fqn}: a DTensor placed by {live.placements} has gaps between its rows, which torch's planner cannot "
            "describe; redistribute it, or use Checkpointer.save() and load()"
        )


def _object(item: WriteItem, planner: SavePlanner) -> Any:
    lookup = getattr(planner, "lookup_object", None)
    if lookup is None:
        raise StateError(
            f"{type(planner).__name__} has no lookup_object(); use a planner derived from DefaultSavePlanner"
        )
    return lookup(item.index)


def _piece(item: WriteItem, data: torch.Tensor) -> Piece:
    check_tensor(data, (item.index.fqn,))
    if item.tensor_data is None:
        raise StateError(f"{item.index.fqn}: the plan has no tensor_data for it")
    chunk = item.tensor_data.chunk
    box = Box(tuple(chunk.offsets), tuple(chunk.sizes))
    return Piece(key=item.index.fqn, data=data.reshape(box.sizes), shape=tuple(item.tensor_data.size), box=box)


def tensor_metadata(chunks: Iterable[Chunk]) -> dict[str, TensorStorageMetadata]:
    """DCP's metadata of the tensors in the shards of all ranks. A box of which there are replicas is listed once."""
    found: dict[str, TensorStorageMetadata] = {}
    boxes: set[tuple[object, ...]] = set()
    for chunk in chunks:
        if chunk.key not in found:
            properties = TensorProperties(dtype=torch_dtype(chunk))
            found[chunk.key] = TensorStorageMetadata(properties, torch.Size(chunk.shape), [])
        if (box := (chunk.key, chunk.offsets, chunk.sizes)) not in boxes:
            boxes.add(box)
            offsets, sizes = torch.Size(chunk.offsets), torch.Size(chunk.sizes)
            found[chunk.key].chunks.append(ChunkStorageMetadata(offsets=offsets, sizes=sizes))
    return found


def _wanted(item: ReadItem) -> Box:
    """The box of the whole tensor that an item reads."""
    origin = item.storage_index.offset or (0,) * len(item.lengths)
    return Box(tuple(a + b for a, b in zip(origin, item.storage_offsets, strict=True)), tuple(item.lengths))


def _pickled_in_memory(value: Any) -> io.BytesIO:
    """The pickled object that DCP's planners expect. It is pickled here in memory, never read from storage."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer
