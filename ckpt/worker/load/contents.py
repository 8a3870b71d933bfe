"""The contents of a saved step without a live state: its values at once, its tensors on demand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ckpt.errors import ConfigError, CorruptError
from ckpt.format.boxes import Box
from ckpt.format.json_values import decode, tag_of
from ckpt.format.parsing import parsing
from ckpt.worker.lazy_torch import no_grad, torch
from ckpt.worker.load.match import DCP
from ckpt.worker.load.read_plan import TensorReads
from ckpt.worker.load.shard_reader import SavedStep
from ckpt.worker.tensors import ARRAY, DTENSOR, STATE, TAGS, named_dtype


@dataclass(frozen=True, kw_only=True)
class Contents:
    """One rank's part of a saved step."""

    step: int
    world_size: int  # that of the run that saved it
    rank: int  # the saved rank of these plain tensors, arrays and values
    state: dict[str, Any]  # as saved, with a StoredTensor for each tensor and array, and a dict for each object


class StoredTensor:
    """A whole tensor of a saved step. Reading it combines the parts from all ranks that have them."""

    def __init__(self, tensors: TensorReads, saved: SavedStep, node: dict[str, str]) -> None:
        self._tensors = tensors
        self._saved = saved
        self._node = node
        self.shape, self.dtype = tensors.kind(node)
        """The name of the torch or NumPy dtype, such as "bfloat16"."""

    def read(self) -> Any:
        """The torch.Tensor on the CPU, or the NumPy array. Every byte of it is verified.

        Raises:
            CheckpointError: no source has the bytes intact.
        """
        return self[()]

    def __getitem__(self, index: Any) -> Any:
        """A part of the tensor. Only that part is read. The index is slices without steps, for the first dimensions."""
        slices = index if isinstance(index, tuple) else (index,)
        if len(slices) > len(self.shape) or any(not isinstance(s, slice) or s.step not in (None, 1) for s in slices):
            raise TypeError(f"{self!r}: index {index!r}, expected at most {len(self.shape)} slices without steps")
        slices += (slice(None),) * (len(self.shape) - len(slices))
        bounds = [s.indices(size)[:2] for s, size in zip(slices, self.shape, strict=True)]
        box = Box(tuple(start for start, _ in bounds), tuple(max(0, end - start) for start, end in bounds))
        with no_grad():
            into = self._empty(box.sizes)
            self._saved.read(self._tensors.part(self._node, box, into))
        return into

    def _empty(self, sizes: tuple[int, ...]) -> Any:
        if tag_of(self._node) == ARRAY:
            return np.empty(sizes, named_dtype(self.dtype, array=True))
        return torch.empty(sizes, dtype=named_dtype(self.dtype))

    def __repr__(self) -> str:
        return f"StoredTensor({next(iter(self._node.values()))!r}, {self.dtype} {list(self.shape)})"


def contents_of(saved: SavedStep, rank: int) -> Contents:
    """Reads the values of a saved rank. Its tensors are read on demand.

    Raises:
        ConfigError: there is no such rank.
        CorruptError: a value names a class that this process has not imported.
    """
    state, mappings = stored_state(saved, rank)
    if mappings is not None:
        from torch.distributed.checkpoint._nested_dict import unflatten_state_dict

        state = unflatten_state_dict(state, {name: (name,) for name in state} | mappings)
    return Contents(step=saved.step, world_size=saved.world_size, rank=rank, state=state)


@parsing("stored state")
def stored_state(saved: SavedStep, rank: int) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The state of a saved rank, with a StoredTensor for each tensor and array; and None.

    For a step that was saved through torch's DCP: the flat state of all ranks, and torch's mappings from name to path.
    Raises:
        ConfigError: there is no such rank.
        CorruptError: a value names a class that this process has not imported.
    """
    if not 0 <= rank < saved.world_size:
        raise ConfigError(f"step {saved.step}: no rank {rank}; it was saved by {saved.world_size} ranks")
    tree = saved.record(rank).layout.tree
    if tag_of(tree) == DCP:
        return _of_dcp(saved, rank)
    tensors = TensorReads(saved, rank)

    def resolve(tag: str, content: Any) -> Any:
        if tag == STATE:
            return decode(content, resolve)
        if tag not in TAGS:
            raise CorruptError(f"step {saved.step}: unknown tag {tag!r:.40}")
        return StoredTensor(tensors, saved, {tag: content})

    return decode(tree, resolve), None


def _of_dcp(saved: SavedStep, rank: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The combined state of all ranks, because torch's planner stores a replica on only one of its ranks."""
    from ckpt.worker.dcp_objects import decode_object  # imports torch

    tensors = TensorReads(saved, rank, everywhere=True)
    flat: dict[str, Any] = {}
    mappings: dict[str, Any] = {}
    for record in saved.records(rank):
        content = record.layout.tree[DCP]
        mappings = decode(content["mappings"]) | mappings
        flat = {name: decode_object(node) for name, node in content["objects"]} | flat
        for chunk in record.layout.chunks:
            if chunk.key not in flat:
                flat[chunk.key] = StoredTensor(tensors, saved, {DTENSOR: chunk.key})
    return flat, mappings
