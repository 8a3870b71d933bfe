"""Fills live state from a saved step: tensors are filled in place, objects load the state that they gave.

First the whole step is compared with the live state, so that a mismatch is refused before a byte changes. Then the
bytes are read. Then objects and values are put in place.

DTensors are combined from all saved ranks that have parts of them. Plain tensors, arrays and values belong to one rank:
rank r loads those of saved rank r, or of r modulo the saved world size.
"""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from ckpt.errors import CheckpointError, StateError
from ckpt.format.json_values import Path, container, decode, items_of, like, name_of, sequence_of, tag_of
from ckpt.worker.lazy_torch import is_module, is_optimizer, no_grad, torch
from ckpt.worker.load.per_rank import Worlds
from ckpt.worker.load.read_plan import TensorReads
from ckpt.worker.load.shard_reader import SavedStep
from ckpt.worker.tensors import ARRAY, DTENSOR, STATE, TAGS, TENSOR, check_target, is_stateful, tag_of_live, waited

Finish = Callable[[], Any]  # returns the value to put in place, once the bytes have been read
Match = Callable[[Any, Any, Path], Finish]  # compares a live value with the saved one
DCP = "#dcp"  # tag of the tree of a step that was saved through ckpt.worker.dcp


class Restoration:
    """One load into one live state. It calls each object's state_dict() once, even if it compares the state twice.

    state_dict() may be a collective, and not every rank prefetches.
    """

    def __init__(self, state: dict[str, Any], rank: int, world_size: int, *, strict: bool = True) -> None:
        """
        Args:
            state: built as for save(), with tensors of the same shapes.
            strict: whether the state must have every saved key; else it may have fewer.
        """
        self._state = state
        self._rank = rank
        self._world_size = world_size
        self._strict = strict
        self._given: dict[Path, Any] = {}  # the results of state_dict(), by path

    def wants(self, saved: SavedStep) -> list[tuple[int, list[int] | None]]:
        """What `fill` would read of a step, in the form of `SavedStep.wants`.

        Nothing is read or changed. Raises as `fill`.
        """
        return saved.wants(self._match(saved)[0].reads)

    def fill(self, saved: SavedStep) -> None:
        """Fills the state in place from a saved step.

        Raises:
            StateError: the state does not match the saved step. The message names every key missing on either side.
            CheckpointError: no source has the bytes intact. The state is then overwritten in part.
        """
        try:
            tensors, finish = self._match(saved)
            with no_grad():
                tensors.check_targets()
        except StateError as error:
            if saved.save is None or not (whose := saved.save.line.whose):
                raise
            raise StateError(f"{error}; step {saved.step} was saved by {whose}") from None
        try:
            with no_grad():
                saved.read(tensors.reads)
                finish()
        except (CheckpointError, RuntimeError) as error:  # load_state_dict() and copy_() raise the latter
            kind = type(error) if isinstance(error, CheckpointError) else CheckpointError
            text = " ".join(str(error).split())
            raise kind(f"{text:.1000}; the state is now overwritten in part: do not go on with it") from error

    def _match(self, saved: SavedStep) -> tuple[TensorReads, Finish]:
        tensors = TensorReads(saved, self._rank % saved.world_size)
        tree = saved.record(tensors.source).layout.tree
        if tag_of(tree) == DCP:
            raise StateError(
                f"step {saved.step} was saved through dcp_writer(): load it with torch.distributed.checkpoint.load "
                "and storage_reader=dcp_reader()"
            )
        worlds = Worlds(saved=saved.world_size, live=self._world_size, state=self._state)
        return tensors, _Match(tensors, worlds, self._strict, self._given).mapping(self._state, tree, ())


class _Match:
    """Walks the live state and the saved tree together. Each method returns a function to call after the reads."""

    def __init__(self, tensors: TensorReads, worlds: Worlds, strict: bool, given: dict[Path, Any]) -> None:
        self.tensors = tensors
        self.worlds = worlds
        self.strict = strict
        self.given = given

    def any(self, live: Any, node: Any, path: Path) -> Finish:
        """Compares one value. Everything in the live state must also be saved, in the same shape."""
        if is_stateful(live):
            return self._stateful(live, node, path)
        if tag_of_live(live):
            return self._tensor(live, node, path)
        if not _holds_tensors(live) and not _names_tensors(node):
            value = decode(node)
            _check_plain(live, value, path)
            return lambda: _replace(live, value)
        if isinstance(live, dict) and items_of(node) is not None:
            return self.mapping(live, node, path)
        if isinstance(live, (list, tuple, deque)) and sequence_of(node) is not None:
            return self._sequence(live, node, path)
        raise _mismatch(path, node, type(live).__name__)

    def mapping(self, live: dict[Any, Any], node: Any, path: Path, match: Match | None = None) -> Finish:
        """Compares the values of a dict by `match`; by default with `any`."""
        match = match or self.any
        entries = items_of(node)
        if entries is None:
            raise _mismatch(path, node, "dict")
        _check_keys(live, entries, path, self.strict)
        finishers = {key: match(value, entries[key], (*path, key)) for key, value in live.items()}

        def finish() -> dict[Any, Any]:
            for key, value in finishers.items():
                live[key] = value()
            return live

        return finish

    def _sequence(self, live: list[Any] | tuple[Any, ...] | deque[Any], node: Any, path: Path) -> Finish:
        nodes = sequence_of(node) or []
        if len(nodes) != len(live):
            raise StateError(f"{name_of(path)}: the saved state has {len(nodes)} elements, the live one {len(live)}")
        finishers = [self.any(value, nodes[i], (*path, i)) for i, value in enumerate(live)]

        def finish() -> Any:
            values = [value() for value in finishers]
            if isinstance(live, tuple):
                return like(live, values)
            for i, value in enumerate(values):
                live[i] = value
            return live

        return finish

    def _stateful(self, live: Any, node: Any, path: Path) -> Finish:
        if tag_of(node) != STATE:
            raise _mismatch(path, node, f"{type(live).__name__} with state_dict()")
        if path not in self.given:
            self.given[path] = live.state_dict()
        inner, state = node[STATE], self.given[path]
        if inner is None:  # state_dict() gave nothing to save
            return lambda: live
        if is_module(live):
            finish = self.mapping(state, inner, path, self._of_module)
        elif is_optimizer(live):
            finish = self._optimizer(live, state, inner, path)
        else:
            finish = self._free(state, inner, path, None)
        return lambda: _load(live, finish(), path)

    def _of_module(self, live: Any, node: Any, path: Path) -> Finish:
        """Compares one value of a module's state. Extra states and lists may change their size in training."""
        if isinstance(live, list) or str(path[-1]).endswith("_extra_state"):
            return self._free(live, node, path, None)
        return self.any(live, node, path)

    def _optimizer(self, live: torch.optim.Optimizer, state: Any, node: Any, path: Path) -> Finish:
        """Tensors of an optimizer that has not stepped yet are created like the parameters they belong to."""
        parameters = [parameter for group in live.param_groups for parameter in group["params"]]
        entries = dict(items_of(node) or {})
        saved_states = items_of(entries.pop("state", {})) or {}
        self.worlds.check_optimizer(parameters, {key: self._shapes(item) for key, item in saved_states.items()}, path)
        live_states = state.get("state", {})
        others = {key: self._free(state.get(key), item, (*path, key), None) for key, item in entries.items()}
        states = {}
        for index, item in saved_states.items():
            like = parameters[index] if index in range(len(parameters)) else None
            states[index] = self._free(live_states.get(index), item, (*path, "state", index), like)

        def finish() -> Any:
            result = {key: value() for key, value in others.items()}
            return {**result, "state": {index: value() for index, value in states.items()}}

        return finish

    def _shapes(self, node: Any) -> list[tuple[int, ...]]:
        """The shapes of the plain tensors that an optimizer has kept for one parameter."""
        items = (items_of(node) or {}).values()
        return [self.tensors.kind(item)[0] for item in items if tag_of(item) == TENSOR]

    def _free(self, live: Any, node: Any, path: Path, like: torch.Tensor | None) -> Finish:
        """Builds the saved value, with live tensors where they fit.

        The object's own load_state_dict() checks the rest.
        """
        tag = tag_of(node)
        if tag in TAGS:
            fits = tag_of_live(live) is not None and self.tensors.difference(live, node) is None
            return self._tensor(live if fits else self._new(node, path, like), node, path)
        entries, elements = items_of(node), sequence_of(node)
        if entries is not None:
            known = live if isinstance(live, dict) else {}
            finishers = {key: self._free(known.get(key), item, (*path, key), like) for key, item in entries.items()}
            return lambda: container(node, {key: value() for key, value in finishers.items()})
        if elements is not None:
            given = (
                live
                if isinstance(live, (list, tuple, deque)) and len(live) == len(elements)
                else [None] * len(elements)
            )
            parts = [self._free(given[i], item, (*path, i), like) for i, item in enumerate(elements)]
            return lambda: container(node, [part() for part in parts])
        return lambda: decode(node)

    def _new(self, node: Any, path: Path, like: torch.Tensor | None) -> Any:
        """A new tensor for a saved one without a live counterpart."""
        tag = tag_of(node)
        shape, name = self.tensors.kind(node)
        if tag == ARRAY:
            return np.empty(shape, name)
        dtype = getattr(torch, name)
        if like is not None and tuple(like.shape) == shape and (shape or tag == DTENSOR):
            return torch.empty_like(like, dtype=dtype, requires_grad=False)
        if tag == DTENSOR:
            raise StateError(f"{name_of(path)}: saved as a DTensor, and no live DTensor shows how to distribute it")
        return torch.empty(shape, dtype=dtype)

    def _tensor(self, live: Any, node: Any, path: Path) -> Finish:
        check_target(waited(live), path)
        if tag_of(node) not in TAGS:
            raise _mismatch(path, node, type(live).__name__)
        difference = self.tensors.difference(live, node)
        if difference:
            raise StateError(f"{name_of(path)}: {difference}; build the state as it was saved")
        filled = self.tensors.fill(live, node, path)
        return lambda: filled


def _replace(live: Any, value: Any) -> Any:
    """The new value. Dicts and lists are changed in place, because other code may refer to them."""
    if isinstance(live, dict) and isinstance(value, dict):
        live.clear()
        live.update(value)
        return live
    if type(live) is type(value) is list:
        live[:] = value
        return live
    return value


def _load(live: Any, state: Any, path: Path) -> Any:
    try:
        live.load_state_dict(state)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        text = " ".join(str(error).split())
        raise StateError(
            f"{name_of(path)}: {type(live).__name__}.load_state_dict refused the saved state: {text:.1000}"
        ) from error
    return live


def _check_keys(live: dict[Any, Any], saved: dict[Any, Any], path: Path, strict: bool) -> None:
    extra = [key for key in live if key not in saved]
    missing = [key for key in saved if key not in live] if strict else []
    if not extra and not missing:
        return
    parts = [f"not in the saved state: {', '.join(_with_nearest(key, saved) for key in extra)}"] if extra else []
    parts += [f"not in the live state: {', '.join(map(repr, missing))}"] if missing else []
    advice = "build the state as it was saved"
    advice += "" if extra else ", or load(state, strict=False) to leave out what it does not have"
    raise StateError(f"{name_of(path)}: {'; '.join(parts)}; {advice}")


def _check_plain(live: Any, value: Any, path: Path) -> None:
    """Compares plain values. What a dict of the live state names must be saved; what only the saved one has comes in.

    An empty dict, and one with keys that are no strings, is content: it takes what was saved.
    """
    is_named = type(live) is dict and bool(live) and all(isinstance(key, str) for key in live)
    if is_named and isinstance(value, dict):
        _check_keys(live, value, path, strict=False)
        for key, each in live.items():
            _check_plain(each, value[key], (*path, key))
    elif is_named or (isinstance(value, dict) and live is not None and not isinstance(live, dict)):
        saved, wanted = type(value).__name__, type(live).__name__
        raise StateError(f"{name_of(path)}: saved as a {saved}, live is a {wanted}; build the state as it was saved")


def _with_nearest(key: Any, saved: dict[Any, Any]) -> str:
    near = difflib.get_close_matches(str(key), map(str, saved), n=1)
    return f"{key!r} (nearest: {near[0]!r})" if near else repr(key)


def _holds_tensors(live: Any) -> bool:
    if isinstance(live, dict):
        return any(map(_holds_tensors, live.values()))
    if isinstance(live, (list, tuple, deque)):
        return any(map(_holds_tensors, live))
    return tag_of_live(live) is not None or is_stateful(live)


def _names_tensors(node: Any) -> bool:
    tag = tag_of(node)
    if tag in TAGS or tag == STATE:
        return True
    entries, elements = items_of(node), sequence_of(node)
    return any(map(_names_tensors, elements if elements is not None else (entries or {}).values()))


def _mismatch(path: Path, node: Any, live: str) -> StateError:
    tag = tag_of(node)
    kinds = {TENSOR: "a tensor", DTENSOR: "a DTensor", ARRAY: "a NumPy array", STATE: "an object's state"}
    saved = kinds.get(tag or "", f"a {tag.lstrip('#')}" if tag else type(node).__name__)
    return StateError(f"{name_of(path)}: saved as {saved}, live is a {live}; build the state as it was saved")
