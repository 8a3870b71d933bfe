"""From live state to a slot: one copy into memory that is mapped and laid out already. The only time training waits."""

from __future__ import annotations

import ctypes
import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from ckpt.errors import StateError
from ckpt.record.arena import Slot
from ckpt.record.boxes import Box
from ckpt.record.copying import Move, ParallelCopy
from ckpt.record.layout import Chunk, Layout, align
from ckpt.record.values import Path, encode, name_of, unsupported
from ckpt.trainer.leaves import (
    ARRAY,
    DTENSOR,
    STATE,
    TENSOR,
    check_tensor,
    dtype_name,
    is_stateful,
    lies_flat,
    local_box,
    local_part,
    view_bytes,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Bytes to stage: a tensor on any device, and which box of which tensor it is."""

    key: str
    data: torch.Tensor
    shape: tuple[int, ...]
    box: Box


@dataclass(kw_only=True)
class State:
    """A state taken apart: the tree of values, and the tensors that it names by key."""

    tree: Any
    values: list[torch.Tensor]  # in the order in which the tree was walked
    signature: list[tuple[Any, ...]]  # what the layout depends on: one entry per value
    keys: list[str]

    def tensors(self) -> list[torch.Tensor]:
        """This rank's bytes of every tensor."""
        return [local_part(value) for value in self.values]

    def pieces(self) -> list[Piece]:
        """The same, and which box of which tensor each is."""
        return [
            Piece(key=key, data=local_part(value), shape=tuple(value.shape), box=local_box(value))
            for key, value in zip(self.keys, self.values, strict=True)
        ]


def take_apart(state: dict[str, Any]) -> State:
    """Walks a state.

    Raises:
        StateError: it holds something that cannot be stored; names it.
    """
    walk = _Walk()
    try:
        tree = encode(state, (), walk.extend)
    except RecursionError:
        raise StateError("state: nested too deeply, or it contains itself") from None
    if len(set(walk.keys)) != len(walk.keys):
        doubles = sorted({key for key in walk.keys if walk.keys.count(key) > 1})
        raise StateError(
            f"state: two tensors under one key {doubles[0]!r}; an integer key and its text are the same here"
        )
    return State(tree=tree, values=walk.values, signature=walk.signature, keys=walk.keys)


class _Walk:
    """Collects the tensors of a state while its values are encoded."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []
        self.keys: list[str] = []
        self.signature: list[tuple[Any, ...]] = []

    def extend(self, value: Any, path: Path) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if isinstance(value, np.ndarray):
            return self._array(value, path)
        if is_stateful(value):
            inner = value.state_dict()
            if not isinstance(inner, dict):
                raise StateError(f"{name_of(path)}: state_dict() returned a {type(inner).__name__}, expected a dict")
            return {STATE: encode(inner, path, self.extend)}
        raise unsupported(value, path)

    def _tensor(self, value: torch.Tensor, path: Path) -> Any:
        check_tensor(value, path)
        key = key_of(path)
        distributed = isinstance(value, DTensor)
        local = value._local_tensor if isinstance(value, DTensor) else value
        self._add(key, value, (key, local.dtype, local.shape, value._spec if isinstance(value, DTensor) else None))
        return {DTENSOR if distributed else TENSOR: key}

    def _array(self, value: np.ndarray, path: Path) -> Any:
        check_tensor(value, path)
        key = key_of(path)
        native = np.require(value, value.dtype.newbyteorder("="), ["C", "W"])  # a copy only where torch needs one
        tensor = torch.from_numpy(native)
        self._add(key, tensor, (key, tensor.dtype, tensor.shape, None))
        return {ARRAY: key}

    def _add(self, key: str, value: torch.Tensor, signature: tuple[Any, ...]) -> None:
        self.values.append(value)
        self.keys.append(key)
        self.signature.append(signature)


def key_of(path: Path) -> str:
    """A path as one key: parts joined by '/', with '~' and '/' escaped as in JSON Pointer."""
    return "/".join(str(part).replace("~", "~0").replace("/", "~1") for part in path)


class Stager:
    """Copies pieces into slots. Layout and mapped views are kept while the state keeps its structure."""

    def __init__(self, threads: int = 1) -> None:
        """`threads`: how many copy at once."""
        self._copies = ParallelCopy(threads)
        self._signature: list[tuple[Any, ...]] | None = None
        self._chunks: tuple[Chunk, ...] = ()
        self._nbytes = 0
        self._views: dict[int, tuple[Any, list[torch.Tensor]]] = {}  # by slot index: the mapping, and views of it
        self._pins = _Pins()

    def plan(self, state: State) -> int:
        """Lays a state out, unless it has the structure of the one before; returns the shard's bytes."""
        if state.signature != self._signature:
            self._lay_out(state.pieces())
            self._signature = state.signature
        return self._nbytes

    def plan_pieces(self, pieces: list[Piece]) -> int:
        """Lays out pieces that come without a signature; returns the shard's bytes."""
        self._lay_out(pieces)
        self._signature = None
        return self._nbytes

    def stage(self, slot: Slot, tensors: list[torch.Tensor], tree: Any) -> Layout:
        """Copies tensors, in the order of the plan, into a reserved slot; returns when all bytes are there."""
        views = self._slot_views(slot)
        devices = {tensor.device for tensor in tensors if tensor.is_cuda}
        moves = []
        with torch.no_grad():
            for view, tensor in zip(views, tensors, strict=True):
                if lies_flat(tensor):
                    moves.append(Move(target=view.data_ptr(), source=tensor.data_ptr(), nbytes=view.nbytes))
                else:
                    view.copy_(tensor, non_blocking=tensor.is_cuda)
        self._copies.run(moves)
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
        return Layout(chunks=self._chunks, tree=tree, nbytes=self._nbytes)

    def close(self) -> None:
        """Gives the mapped memory up."""
        self._copies.close()
        self._views.clear()
        self._pins.close()

    def _lay_out(self, pieces: list[Piece]) -> None:
        chunks, start = [], 0
        for piece in pieces:
            nbytes = piece.data.numel() * piece.data.element_size()
            chunks.append(
                Chunk(
                    key=piece.key,
                    dtype=dtype_name(piece.data.dtype),
                    shape=piece.shape,
                    offsets=piece.box.offsets,
                    sizes=piece.box.sizes,
                    start=start,
                    nbytes=nbytes,
                )
            )
            start += align(nbytes)
        self._chunks, self._nbytes = tuple(chunks), start
        self._views.clear()

    def _slot_views(self, slot: Slot) -> list[torch.Tensor]:
        memory, views = self._views.get(slot.index, (None, []))
        if memory is not slot.memory or memory is None:
            memory = slot.memory
            views = [view_bytes(memory, c.start, getattr(torch, c.dtype), c.sizes) for c in self._chunks]
            self._views[slot.index] = (memory, views)
            self._pins.pin(slot.index, memory)
        return views


class _Pins:
    """Registers slots with CUDA, where CUDA is in use, so that device copies run at full speed."""

    def __init__(self) -> None:
        self._pinned: dict[int, tuple[Any, int]] = {}  # by slot index: the mapping (kept alive), its address

    def pin(self, index: int, memory: Any) -> None:
        if not torch.cuda.is_initialized() or (index in self._pinned and self._pinned[index][0] is memory):
            return
        self._unpin(index)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        code = int(torch.cuda.cudart().cudaHostRegister(address, len(memory), 0))
        if code:
            log.warning(
                "cannot pin %d bytes of slot %d (CUDA error %d): saves from the GPU will be slower",
                len(memory),
                index,
                code,
            )
            return
        self._pinned[index] = (memory, address)

    def _unpin(self, index: int) -> None:
        if index in self._pinned:
            _, address = self._pinned.pop(index)
            torch.cuda.cudart().cudaHostUnregister(address)

    def close(self) -> None:
        for index in list(self._pinned):
            self._unpin(index)
