"""Divides a live state into a tree of values and the tensors and arrays that the tree names by key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from ckpt.errors import StateError
from ckpt.format.boxes import Box
from ckpt.format.json_values import Path, encode, name_of, unsupported
from ckpt.format.rank_grid import Spread
from ckpt.worker.lazy_torch import is_dtensor, is_module, is_optimizer, is_tensor
from ckpt.worker.placement import Group, parts_of, replicas_of, spread_of
from ckpt.worker.save.replicas import Proofs, World
from ckpt.worker.tensors import ARRAY, DTENSOR, STATE, TENSOR, Local, check_tensor, is_stateful, local_part, waited


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A tensor on any device, or an array, to stage, and its box in the whole tensor."""

    key: str
    data: Local
    number: int = 0  # number of its value in the state
    index: tuple[Any, ...] = (...,)  # index of the data in the value's local tensor
    shape: tuple[int, ...]
    box: Box
    spread: Spread | None = None  # the ranks over which the tensor is distributed; None if it is this rank's alone
    group: Group | None = None  # the ranks that hold this same box


@dataclass(kw_only=True)
class FlatState:
    tree: Any
    values: list[Any]  # in the order in which the tree was walked
    signature: list[tuple[Any, ...]]  # all that the layout depends on, one entry per value
    keys: list[str]
    groups: list[Group | None]  # of plain tensors: the ranks that hold an equal tensor
    optimizers: list[Any]  # those of torch

    def tensors(self) -> list[Local]:
        """This rank's data of every tensor."""
        return [local_part(value) for value in self.values]

    def stepped(self) -> set[tuple[int, int]]:
        """The address and size of every tensor that changes only in an optimizer's step: parameters and optimizer
        state."""
        found = set()
        for optimizer in self.optimizers:
            kept = [value for state in optimizer.state.values() for value in state.values()]
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            found |= {place_of(local_part(value)) for value in (*kept, *parameters) if is_tensor(value)}
        return found

    def pieces(self) -> list[Piece]:
        """The tensors as boxes of whole tensors. Most tensors are one box, some several, some none."""
        return list(chain.from_iterable(map(self._pieces, range(len(self.values)))))

    def _pieces(self, number: int) -> Iterator[Piece]:
        key, value, group = self.keys[number], self.values[number], self.groups[number]
        spread = None if group is None else Spread(shape=(len(group),), ranks=group, splits=(None,))
        if is_dtensor(value):
            spread, group = spread_of(value), replicas_of(value)
        local, shape = local_part(value), tuple(value.shape)
        for part in parts_of(value, (key,)):
            yield Piece(
                key=key, data=local[part.index], number=number, index=part.index, shape=shape, box=part.box,
                spread=spread, group=group,
            )  # fmt: skip


def take_apart(state: dict[str, Any], world: World | None = None) -> FlatState:
    """Divides a state into a tree of values and its tensors.

    Args:
        state: as described in Checkpointer.
        world: this rank's place, and the tensors declared equal on all ranks; None: a single rank.

    Raises:
        StateError: it contains something that cannot be stored. The message names it.
    """
    walk = _Walk(state, world or World())
    try:
        tree = encode(state, (), walk.extend)
    except RecursionError:
        raise StateError("state: nested too deeply, or it contains itself") from None
    if len(set(walk.keys)) != len(walk.keys):
        doubles = sorted({key for key in walk.keys if walk.keys.count(key) > 1})
        raise StateError(
            f"state: two tensors under one key {doubles[0]!r}; an integer key and its text count as the same key"
        )
    return FlatState(
        tree=tree,
        values=walk.values,
        signature=walk.signature,
        keys=walk.keys,
        groups=walk.groups,
        optimizers=walk.optimizers,
    )


class _Walk:
    """Collects the tensors of a state while its values are encoded."""

    def __init__(self, state: dict[str, Any], world: World) -> None:
        self.values: list[Any] = []
        self.keys: list[str] = []
        self.signature: list[tuple[Any, ...]] = []
        self.groups: list[Group | None] = []
        self.optimizers: list[Any] = []
        self._world = world
        self._proofs = Proofs(state, world)
        self._proven: dict[str, tuple[int, Group]] = {}  # by key: address and group

    def extend(self, value: Any, path: Path) -> Any:
        if is_tensor(value):
            return self._tensor(value, path)
        if isinstance(value, np.ndarray):
            return self._array(value, path)
        if is_stateful(value):
            inner = value.state_dict()
            if not isinstance(inner, dict):
                raise StateError(f"{name_of(path)}: state_dict() returned a {type(inner).__name__}, expected a dict")
            self._prove(value, inner, path)
            return {STATE: encode(inner, path, self.extend)}
        raise unsupported(value, path)

    def _prove(self, value: Any, inner: dict[str, Any], path: Path) -> None:
        """Notes which of an object's tensors are equal on other ranks."""
        if is_module(value):
            proven = self._proofs.of_module(value)
        elif is_optimizer(value):
            self.optimizers.append(value)
            proven = self._proofs.of_optimizer(value, inner)
        else:
            return
        for within, tensor, group in proven:
            self._proven[key_of((*path, *within))] = (tensor.data_ptr(), group)

    def _group(self, key: str, value: Any) -> Group | None:
        """The ranks that hold an equal tensor. The address shows that a tensor is the one whose equality was proven."""
        if self._world.world_size > 1 and self._world.declares(key):
            return self._world.everyone
        address, group = self._proven.get(key, (None, None))
        return group if group is not None and address == value.data_ptr() else None

    def _tensor(self, value: Any, path: Path) -> Any:
        value = waited(value)
        check_tensor(value, path)
        key = key_of(path)
        if is_dtensor(value):
            self._add(key, value, (key, value.dtype, value._local_tensor.shape, value._spec), None)
            return {DTENSOR: key}
        group = self._group(key, value)
        self._add(key, value, (key, value.dtype, value.shape, group), group)
        return {TENSOR: key}

    def _array(self, value: np.ndarray, path: Path) -> Any:
        check_tensor(value, path)
        key = key_of(path)
        native = np.asarray(value, value.dtype.newbyteorder("="))
        group = self._group(key, native)
        self._add(key, native, (key, native.dtype, native.shape, group), group)
        return {ARRAY: key}

    def _add(self, key: str, value: Any, signature: tuple[Any, ...], group: Group | None) -> None:
        self.values.append(value)
        self.groups.append(group)
        self.keys.append(key)
        self.signature.append(signature)


def key_of(path: Path) -> str:
    """A path as one key: its parts joined by '/', with '~' and '/' escaped as in JSON Pointer."""
    return "/".join(str(part).replace("~", "~0").replace("/", "~1") for part in path)


def place_of(tensor: Any) -> tuple[int, int]:
    """The address and the number of bytes."""
    return tensor.data_ptr(), tensor.nbytes
