"""Divides a live state into a tree of values and the tensors and arrays that the tree names by key."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ckpt.errors import StateError
from ckpt.format.json_values import Path, encode, name_of, unsupported
from ckpt.format.parsing import is_too_deep
from ckpt.format.rank_grid import Spread
from ckpt.worker.lazy_torch import is_dtensor, is_module, is_optimizer, is_tensor
from ckpt.worker.placement import Group, Piece, parts_of, replicas_of, spread_of
from ckpt.worker.save.replicas import Proofs, World
from ckpt.worker.tensors import (
    ARRAY,
    DTENSOR,
    STATE,
    TENSOR,
    Local,
    check_tensor,
    has_plain_data,
    is_stateful,
    local_part,
    waited,
)


class Leaf(NamedTuple):
    """A tensor or array of a state."""

    key: str
    value: Any
    group: Group | None  # of a plain tensor: the ranks that hold an equal tensor
    signature: tuple[Any, ...]  # all that the layout depends on, except key and group


@dataclass(kw_only=True)
class FlatState:
    """A tree of values, and the tensors and arrays in the order in which the tree was walked."""

    tree: Any
    leaves: list[Leaf]
    optimizers: list[Any]  # those of torch

    @property
    def signature(self) -> list[tuple[Any, ...]]:
        """All that the layout depends on."""
        return [(leaf.key, leaf.group, *leaf.signature) for leaf in self.leaves]

    def tensors(self) -> list[Local]:
        return [local_part(leaf.value) for leaf in self.leaves]

    def stepped(self) -> set[tuple[int, int]]:
        """The address and size of every tensor that changes only in an optimizer's step: parameters and optimizer
        state."""
        found = set()
        for optimizer in self.optimizers:
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            values = (*_tensors_in(optimizer.state), *parameters)
            found |= {place_of(value) for value in values if has_plain_data(value)}
        return found

    def pieces(self) -> Iterator[Piece]:
        """The tensors as boxes of whole tensors. Most tensors are one box, some several, some none."""
        for number, (key, value, group, _) in enumerate(self.leaves):
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
        world: this rank's place, and the tensors declared equal on all ranks; None: a single rank.

    Raises:
        StateError: it contains something that cannot be stored. The message names it.
    """
    walk = _Walk(state, world or World())
    try:
        tree = encode(state, (), walk.extend)
    except RecursionError:
        tree = None
    if tree is None or is_too_deep(tree):
        raise StateError("state: nested too deeply, or it contains itself")
    key, count = Counter(leaf.key for leaf in walk.leaves).most_common(1)[0] if walk.leaves else ("", 0)
    if count > 1:
        raise StateError(f"state: two tensors under one key {key!r}; an integer key and its text count as the same key")
    return FlatState(tree=tree, leaves=walk.leaves, optimizers=walk.optimizers)


class _Walk:
    """Collects the tensors of a state while its values are encoded."""

    def __init__(self, state: dict[str, Any], world: World) -> None:
        self.leaves: list[Leaf] = []
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
            if inner is None:  # nothing to save
                return {STATE: None}
            if not isinstance(inner, dict):
                raise StateError(
                    f"{name_of(path)}: state_dict() returned a {type(inner).__name__}, expected a dict, or None for "
                    "nothing to save"
                )
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
            self.leaves.append(Leaf(key, value, None, (value.dtype, value._local_tensor.shape, value._spec)))
            return {DTENSOR: key}
        self.leaves.append(Leaf(key, value, self._group(key, value), (value.dtype, value.shape)))
        return {TENSOR: key}

    def _array(self, value: np.ndarray, path: Path) -> Any:
        check_tensor(value, path)
        key = key_of(path)
        native = np.asarray(value, value.dtype.newbyteorder("="))
        self.leaves.append(Leaf(key, native, self._group(key, native), (native.dtype, native.shape)))
        return {ARRAY: key}


def key_of(path: Path) -> str:
    """A path as one key: its parts joined by '/', with '~' and '/' escaped as in JSON Pointer."""
    key = "/".join(map(str, path))
    if "~" in key or key.count("/") >= len(path):
        return "/".join(str(part).replace("~", "~0").replace("/", "~1") for part in path)
    return key


def _tensors_in(state: Any) -> Iterator[Any]:
    """The tensors that an optimizer keeps, at any depth: some keep one for all parameters at the top of `state`."""
    if is_tensor(state):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from _tensors_in(value)
    elif isinstance(state, (list, tuple, deque)):
        for value in state:
            yield from _tensors_in(value)


def place_of(tensor: Any) -> tuple[int, int]:
    """The address and the number of bytes of a tensor, of a DTensor's local part."""
    local = waited(tensor._local_tensor if is_dtensor(tensor) else tensor)
    return local.data_ptr(), local.nbytes
