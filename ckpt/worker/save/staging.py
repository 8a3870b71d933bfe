"""Stages live state: one copy into a slot that is already mapped and laid out. Training waits only here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ckpt.format.layout import Chunk, Layout, align
from ckpt.format.rank_grid import Spread
from ckpt.memory.arena import Slot
from ckpt.native.memcpy import Move, ParallelCopy
from ckpt.worker.lazy_torch import no_grad, torch
from ckpt.worker.placement import Piece
from ckpt.worker.save.async_copy import Copies, CopyJob, Overlap
from ckpt.worker.save.cuda import Cuda
from ckpt.worker.save.flatten import FlatState, place_of
from ckpt.worker.save.replicas import Share, share_out
from ckpt.worker.tensors import Local, dtype_name, lies_flat, view_array, view_bytes


class Stager:
    """Copies pieces into slots. Layout and mapped views are reused as long as the state keeps its structure."""

    def __init__(self, rank: int = 0, threads: int = 1, device: Cuda | None = None) -> None:
        """`threads`: number of threads that copy; `device`: the accelerator, by default CUDA."""
        self._copies = ParallelCopy(threads)
        self.tokens: dict[str, int] = {}  # of the plan's groups of replicas; see ckpt.worker.save.replicas
        self._rank = rank
        self._shares: dict[int, Share] = {}  # by index of the piece; other pieces are stored whole
        self._cuts: list[tuple[int, Any]] | None = None  # by piece: tensor and index in it; None: one piece a tensor
        self._sharing = True
        self._signature: list[tuple[Any, ...]] | None = None
        self._chunks: tuple[Chunk, ...] = ()
        self._arrays: list[bool] = []  # for each chunk, whether it is a NumPy array
        self._spreads: tuple[Spread, ...] = ()
        self._nbytes = 0
        self._views: dict[int, tuple[Any, list[Local]]] = {}  # by slot index: the mapping and the views of it
        self._device = device or Cuda()
        self._overlap = Overlap(self._device)
        self._pins: dict[int, tuple[Any, Callable[[], None] | None]] = {}  # by slot index: the mapping and its unpin
        self._pinning = threading.Lock()  # for both
        self._is_closed = False

    def store_replicas_everywhere(self) -> None:
        """From now on every rank stores all its tensors, because the ranks disagree on what their replicas are."""
        self._sharing, self._signature = False, None

    def plan(self, state: FlatState) -> int:
        """Computes the layout of a state, unless its structure is unchanged.

        Returns the number of bytes of the shard.
        """
        if (signature := state.signature) != self._signature:
            pieces = list(state.pieces())
            replicas = {number: piece for number, piece in enumerate(pieces) if piece.group is not None}
            self._shares, self.tokens = share_out(replicas if self._sharing else {}, self._rank)
            self._lay_out(pieces)
            whole = [piece.number for piece in pieces if piece.index == (...,)] == list(range(len(state.leaves)))
            self._cuts = None if whole else [(piece.number, piece.index) for piece in pieces]
            self._signature = signature
        return self._nbytes

    def plan_pieces(self, pieces: list[Piece]) -> int:
        """Computes the layout of pieces without a signature. Returns the number of bytes of the shard."""
        self._shares, self.tokens, self._signature, self._cuts = {}, {}, None, None
        self._lay_out(pieces)
        return self._nbytes

    def stage(self, slot: Slot, tensors: list[Local], tree: Any) -> Layout:
        """Copies tensors, in the plan's order, into a reserved slot. Returns when all bytes are copied."""
        self._copy(zip(self._slot_views(slot), self._pieces_of(tensors), strict=True))
        return self._layout(tree)

    def stage_beside(self, slot: Slot, state: FlatState) -> tuple[Layout, Copies | None]:
        """Copies a planned state into a reserved slot.

        Returns:
            Its layout, and the copies from the accelerator that are still running. Later changes by training do not
            reach those copies.

        Raises:
            CopyError: the accelerator refused.
        """
        tensors = state.tensors()
        if not any(map(self._device.holds, tensors)):
            return self.stage(slot, tensors, state.tree), None
        views, pieces, stepped = self._slot_views(slot), self._pieces_of(tensors), state.stepped()
        sources = [number for number, _ in self._cuts] if self._cuts is not None else range(len(tensors))
        beside = [i for i, number in enumerate(sources) if self._device.holds(tensors[number])]
        jobs = [
            CopyJob(
                key=self._chunks[i].key,
                view=views[i],
                tensor=pieces[i],
                stepped=place_of(tensors[sources[i]]) in stepped,
            )
            for i in beside
        ]
        with no_grad():
            copies = self._overlap.start(jobs)
        others = sorted(set(range(len(pieces))) - set(beside))
        self._copy((views[i], pieces[i]) for i in others)
        return self._layout(state.tree), copies

    def pin(self, slot: Slot) -> None:
        """Pins a reserved slot for fast copies from the accelerator, if it is not pinned.

        Slow. May be called from any thread. Does nothing after `close`.
        """
        memory = slot.memory
        if memory is None or self._pinned(slot.index) is memory:
            return  # a save does not wait until another slot is pinned
        with self._pinning:
            if not self._is_closed and self._pinned(slot.index) is not memory:
                self._unpin(slot.index)
                self._pins[slot.index] = (memory, self._device.pin(memory))

    def hold_back(self) -> None:
        """From now on, training waits for running copies before it changes the state."""
        self._overlap.hold_back()

    def close(self) -> None:
        """Releases the mapped memory. No copy may be running."""
        self._overlap.close()
        self._copies.close()
        self._views.clear()
        with self._pinning:
            self._is_closed = True  # what stays pinned cannot be pinned again where the next mapping has its address
            for index in list(self._pins):
                self._unpin(index)

    def _pieces_of(self, tensors: list[Local]) -> list[Local]:
        """The part of the plan's tensors that this rank stores, one for each chunk."""
        if self._cuts is not None:
            tensors = [tensors[number][index] for number, index in self._cuts]
        if self._shares:
            tensors = [self._shares[i].of(tensor) if i in self._shares else tensor for i, tensor in enumerate(tensors)]
        return tensors

    def _copy(self, pairs: Iterable[tuple[Local, Local]]) -> None:
        """Copies data from host memory or a device into views."""
        moves = []
        with no_grad():
            for view, data in pairs:
                if lies_flat(data):
                    moves.append(Move(target=_address(view), source=_address(data), nbytes=view.nbytes))
                elif isinstance(data, np.ndarray):
                    np.copyto(view, data)
                else:
                    view.copy_(data)
        self._copies.run(moves)

    def _layout(self, tree: Any) -> Layout:
        return Layout(chunks=self._chunks, tree=tree, nbytes=self._nbytes, spreads=self._spreads)

    def _lay_out(self, pieces: list[Piece]) -> None:
        chunks, start = [], 0
        spreads: dict[Spread, int] = {}
        for number, piece in enumerate(pieces):
            share = self._shares.get(number)
            box = share.box(piece.box) if share else piece.box
            nbytes = box.elements * piece.data.dtype.itemsize
            chunks.append(
                Chunk(
                    key=piece.key,
                    dtype=dtype_name(piece.data.dtype),
                    shape=piece.shape,
                    offsets=box.offsets,
                    sizes=box.sizes,
                    start=start,
                    nbytes=nbytes,
                    spread=spreads.setdefault(piece.spread, len(spreads)) if piece.spread else None,
                    owners=share.owners if share else None,
                )
            )
            start += align(nbytes)
        self._arrays = [isinstance(piece.data, np.ndarray) for piece in pieces]
        self._chunks, self._nbytes, self._spreads = tuple(chunks), start, tuple(spreads)
        self._views.clear()

    def _slot_views(self, slot: Slot) -> list[Local]:
        memory, views = self._views.get(slot.index, (None, []))
        if memory is not slot.memory or memory is None:
            memory = slot.memory
            views = [
                view_array(memory, c.start, c.dtype, c.sizes)
                if is_array
                else view_bytes(memory, c.start, getattr(torch, c.dtype), c.sizes)
                for c, is_array in zip(self._chunks, self._arrays, strict=True)
            ]
            self._views[slot.index] = (memory, views)
            self.pin(slot)
        return views

    def _pinned(self, index: int) -> Any:
        return self._pins.get(index, (None, None))[0]

    def _unpin(self, index: int) -> None:
        unpin = self._pins.pop(index, (None, None))[1]
        if unpin is not None:
            unpin()


def _address(data: Local) -> int:
    return data.ctypes.data if isinstance(data, np.ndarray) else data.data_ptr()
