"""Stages live state: one copy into a slot that is already mapped and laid out. Training waits only here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True, eq=False)
class StagePlan:
    """The layout of a state in a slot, and how its tensors become the layout's chunks."""

    chunks: tuple[Chunk, ...]
    arrays: tuple[bool, ...]  # for each chunk, whether it is a NumPy array
    spreads: tuple[Spread, ...]
    nbytes: int  # of the shard
    shares: Mapping[int, Share]  # by index of the piece; other pieces are stored whole
    tokens: dict[str, int]  # of the groups of replicas; see ckpt.worker.save.replicas
    cuts: tuple[tuple[int, Any], ...] | None  # by piece: tensor and index in it; None: one piece a tensor

    def sources(self, count: int) -> Sequence[int]:
        """The number of the tensor of each chunk, of `count` tensors."""
        return range(count) if self.cuts is None else [number for number, _ in self.cuts]

    def parts_of(self, tensors: list[Local]) -> list[Local]:
        """The part of the state's tensors that this rank stores, one for each chunk."""
        if self.cuts is not None:
            tensors = [tensors[number][index] for number, index in self.cuts]
        if self.shares:
            tensors = [self.shares[i].of(tensor) if i in self.shares else tensor for i, tensor in enumerate(tensors)]
        return tensors

    def layout(self, tree: Any) -> Layout:
        return Layout(chunks=self.chunks, tree=tree, nbytes=self.nbytes, spreads=self.spreads)


class Stager:
    """Copies tensors into slots. Plans and mapped views are reused as long as the state keeps its structure."""

    def __init__(self, rank: int = 0, threads: int = 1, device: Cuda | None = None) -> None:
        """`threads`: number of threads that copy; `device`: the accelerator, by default CUDA."""
        self._copies = ParallelCopy(threads)
        self._rank = rank
        self._sharing = True
        self._planned: tuple[list[tuple[Any, ...]], StagePlan] | None = None  # the last state's signature, and its plan
        self._views: dict[int, tuple[Any, StagePlan, list[Local]]] = {}  # by slot index: the mapping, and views of it
        self._device = device or Cuda()
        self._overlap = Overlap(self._device)
        self._pins: dict[int, tuple[Any, Callable[[], None] | None]] = {}  # by slot index: the mapping and its unpin
        self._pinning = threading.Lock()  # for both
        self._is_closed = False

    def store_replicas_everywhere(self) -> None:
        """From now on every rank stores all its tensors, because the ranks disagree on what their replicas are."""
        self._sharing, self._planned = False, None

    def plan(self, state: FlatState) -> StagePlan:
        """The plan of a state: the same one as long as its structure is unchanged."""
        signature = state.signature
        if self._planned is None or self._planned[0] != signature:
            pieces = list(state.pieces())
            replicas = {number: piece for number, piece in enumerate(pieces) if piece.group is not None}
            shares, tokens = share_out(replicas if self._sharing else {}, self._rank)
            whole = [piece.number for piece in pieces if piece.index == (...,)] == list(range(len(state.leaves)))
            cuts = None if whole else tuple((piece.number, piece.index) for piece in pieces)
            self._planned = signature, _laid_out(pieces, shares, tokens, cuts)
        return self._planned[1]

    def stage(self, slot: Slot, plan: StagePlan, tensors: list[Local], tree: Any) -> Layout:
        """Copies the plan's tensors into a reserved slot. Returns when all bytes are copied."""
        self._copy(zip(self._slot_views(slot, plan), plan.parts_of(tensors), strict=True))
        return plan.layout(tree)

    def stage_overlapped(self, slot: Slot, plan: StagePlan, state: FlatState) -> tuple[Layout, Copies | None]:
        """Copies the plan's state into a reserved slot.

        Returns:
            Its layout, and the copies from the accelerator that are still running. Later changes by training do not
            reach those copies.

        Raises:
            CopyError: the accelerator refused.
        """
        tensors = state.tensors()
        if not any(map(self._device.holds, tensors)):
            return self.stage(slot, plan, tensors, state.tree), None
        views, parts, stepped = self._slot_views(slot, plan), plan.parts_of(tensors), state.stepped()
        sources = plan.sources(len(tensors))
        overlapped = [i for i, number in enumerate(sources) if self._device.holds(tensors[number])]
        jobs = [
            CopyJob(
                key=plan.chunks[i].key,
                view=views[i],
                tensor=parts[i],
                stepped=place_of(tensors[sources[i]]) in stepped,
            )
            for i in overlapped
        ]
        with no_grad():
            copies = self._overlap.start(jobs)
        others = sorted(set(range(len(parts))) - set(overlapped))
        self._copy((views[i], parts[i]) for i in others)
        return plan.layout(state.tree), copies

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

    def _slot_views(self, slot: Slot, plan: StagePlan) -> list[Local]:
        memory, of_plan, views = self._views.get(slot.index, (None, plan, []))
        if memory is not slot.memory or memory is None or of_plan is not plan:
            memory = slot.memory
            views = [
                view_array(memory, c.start, c.dtype, c.sizes)
                if is_array
                else view_bytes(memory, c.start, getattr(torch, c.dtype), c.sizes)
                for c, is_array in zip(plan.chunks, plan.arrays, strict=True)
            ]
            self._views[slot.index] = (memory, plan, views)
            self.pin(slot)
        return views

    def _pinned(self, index: int) -> Any:
        return self._pins.get(index, (None, None))[0]

    def _unpin(self, index: int) -> None:
        unpin = self._pins.pop(index, (None, None))[1]
        if unpin is not None:
            unpin()


def plan_of(pieces: list[Piece]) -> StagePlan:
    """The plan of tensors that are flattened already, all stored by this rank."""
    return _laid_out(pieces, {}, {}, None)


def _laid_out(
    pieces: list[Piece], shares: Mapping[int, Share], tokens: dict[str, int], cuts: tuple[tuple[int, Any], ...] | None
) -> StagePlan:
    chunks, start = [], 0
    spreads: dict[Spread, int] = {}
    for number, piece in enumerate(pieces):
        share = shares.get(number)
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
    return StagePlan(
        chunks=tuple(chunks), arrays=tuple(isinstance(piece.data, np.ndarray) for piece in pieces),
        spreads=tuple(spreads), nbytes=start, shares=shares, tokens=tokens, cuts=cuts,
    )  # fmt: skip


def _address(data: Local) -> int:
    return data.ctypes.data if isinstance(data, np.ndarray) else data.data_ptr()
