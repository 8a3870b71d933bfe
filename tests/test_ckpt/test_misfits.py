"""States that are not as they were saved, and states that cannot be stored: refused by name, before a byte changes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_checkpointer import Net, training
from trainer_kit import Node

from ckpt.errors import CheckpointError, StateError


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.stop()


@pytest.mark.parametrize(
    ("live", "message"),
    [
        ({"a": torch.zeros(3)}, r"state: not in the live state: 'n', 'm'"),
        ({"a": torch.zeros(3), "n": 1, "m": {}, "z": 1}, r"not in the saved state: 'z'"),
        ({"a": torch.zeros(4), "n": 1, "m": {}}, r"state\['a'\]: saved as float32 \[3\], live is float32 \[4\]"),
        ({"a": torch.zeros(3).half(), "n": 1, "m": {}}, r"saved as float32 \[3\], live is float16 \[3\]"),
        ({"a": 1, "n": 1, "m": {}}, r"state\['a'\]: saved as a tensor, live is a int"),
        ({"a": torch.zeros(3), "n": torch.zeros(1), "m": {}}, r"state\['n'\]: saved as int, live is a Tensor"),
        (
            {"a": torch.zeros(3), "n": 1, "m": {"x": torch.zeros(1), "y": torch.zeros(1)}},
            r"state\['m'\]: not in the saved",
        ),
    ],
)
def test_a_state_that_does_not_fit_is_refused_before_a_byte_changes(
    node: Node, live: dict[str, Any], message: str
) -> None:
    with node.start() as ckpt:
        ckpt.save(1, {"a": torch.ones(3), "n": 5, "m": {"x": torch.ones(1)}})
    with node.start() as ckpt, pytest.raises(StateError, match=message):
        ckpt.load(live)
    assert all(not value.any() for value in live.values() if isinstance(value, torch.Tensor))


def test_an_expanded_tensor_is_saved_and_is_no_target(node: Node) -> None:
    with node.start() as ckpt:
        ckpt.save(1, {"a": torch.ones(2), "x": torch.ones(1, 3).expand(2, 3)})
    state = {"a": torch.zeros(2), "x": torch.zeros(1, 3).expand(2, 3)}
    with node.start() as ckpt:
        with pytest.raises(StateError, match=r"an expanded or unfolded tensor, whose elements share memory; clone"):
            ckpt.load(state)
        assert not state["a"].any()
        state["x"] = state["x"].clone()
        assert ckpt.load(state) == 1 and state["x"].all()


def folded(kind: str) -> Any:
    if kind == "array":
        return np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), (3, 2), (4, 4))
    return torch.zeros(4).unfold(0, 2, 1)


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_a_view_whose_elements_share_memory_is_no_target(node: Node, kind: str) -> None:
    table = torch.arange(6.0).view(3, 2)
    with node.start() as ckpt:
        ckpt.save(1, {"x": table.numpy() if kind == "array" else table})
    live = {"x": folded(kind)}
    with node.start() as ckpt, pytest.raises(StateError, match=r"state\['x'\]: .*whose elements share memory; \w+\(\)"):
        ckpt.load(live)
    assert not live["x"].any()


@pytest.mark.parametrize("view", [lambda x: x.t(), lambda x: x[:, 1:], lambda x: x[::2], lambda x: x[None].squeeze()])
def test_views_whose_elements_lie_apart_are_targets(node: Node, view: Any) -> None:
    with node.start() as ckpt:
        ckpt.save(1, {"x": view(torch.arange(12.0).view(3, 4))})
    live = {"x": view(torch.zeros(3, 4))}
    with node.start() as ckpt:
        assert ckpt.load(live) == 1
    assert torch.equal(live["x"], view(torch.arange(12.0).view(3, 4)))


def pair(kind: str, *, tied: bool, value: float = 0.0) -> dict[str, Any]:
    """Two values of a state, which share memory if they are tied."""
    if kind == "buffer and view":
        buffer = torch.full((8,), value)
        return {"a": buffer, "b": buffer[2:5] if tied else torch.full((3,), value)}
    one = np.full(4, value) if kind == "arrays" else torch.full((4,), value)
    return {"a": one, "b": one if tied else one + 1}


KINDS = ["tensors", "arrays", "buffer and view"]


@pytest.mark.parametrize("kind", KINDS)
def test_two_keys_of_one_tensor_do_not_take_two_values(node: Node, kind: str) -> None:
    saved = pair(kind, tied=False, value=1.0)
    saved["b"] += 1
    with node.start() as ckpt:
        ckpt.save(1, saved)
    live = pair(kind, tied=True)
    message = r"state\['a'\] and state\['b'\]: share memory in the live state, and were saved with different values"
    with node.start() as ckpt:
        with pytest.raises(StateError, match=message):
            ckpt.load(live)
        assert not live["a"].any()
        assert ckpt.load({"b": live["b"]}, strict=False) == 1 and (live["b"] == saved["b"]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_two_keys_of_one_tensor_take_the_value_of_both(node: Node, kind: str) -> None:
    with node.start() as ckpt:
        ckpt.save(1, pair(kind, tied=True, value=float("nan")))
    live = pair(kind, tied=True)
    with node.start() as ckpt:
        assert ckpt.load(live) == 1
    assert np.isnan(np.asarray(live["a"])).all()


def test_columns_of_one_matrix_take_values_of_their_own(node: Node) -> None:
    with node.start() as ckpt:
        ckpt.save(1, {"q": torch.ones(3, 2), "k": torch.full((3, 2), 2.0)})
    both = torch.zeros(3, 4)
    with node.start() as ckpt:
        assert ckpt.load({"q": both[:, :2], "k": both[:, 2:]}) == 1
    assert both.tolist() == [[1, 1, 2, 2]] * 3


def test_a_tensor_that_torch_refuses_to_fill_leaves_a_state_that_is_said_to_be_overwritten_in_part(node: Node) -> None:
    with node.start() as ckpt:
        ckpt.save(1, {"x": torch.ones(2, 3)})
    with torch.inference_mode():
        frozen = torch.zeros(3, 2).t()
    with node.start() as ckpt, pytest.raises(CheckpointError, match=r"inference tensor.*overwritten in part"):
        ckpt.load({"x": frozen})


def test_a_state_with_fewer_keys_takes_what_it_has_when_asked_to(node: Node) -> None:
    saved, _ = training(seed=1)
    with node.start() as ckpt:
        ckpt.save(1, saved)
    renamed = Net()
    renamed.layer = renamed.layers
    del renamed.layers
    with node.start() as ckpt:
        with pytest.raises(StateError, match=r"not in the live state: .* or load\(state, strict=False\)"):
            ckpt.load({"seen": {}, "net": Net()})
        with pytest.raises(StateError, match=r"'layer.0.weight' \(nearest: 'layers.0.weight'\)"):
            ckpt.load({"net": renamed}, strict=False)
        net = Net()
        assert ckpt.load({"net": net, "seen": {"tokens": -1}}, strict=False) == 1
    assert all(torch.equal(value, saved["net"].state_dict()[name]) for name, value in net.state_dict().items())


def test_a_load_that_fails_half_way_says_what_the_state_is_worth(node: Node) -> None:
    with node.start() as ckpt:
        ckpt.save(1, {"x": torch.ones(2_000_000)})
    with node.start() as ckpt:
        assert ckpt.newest_step == 1
        with open(node.ram_dir / "own-0-0.data", "r+b") as file:
            file.seek(5_000_000)
            file.write(b"\xff")
        with pytest.raises(CheckpointError, match=r"step 1: .* do not go on with it"):
            ckpt.load({"x": torch.zeros(2_000_000)})


def test_a_module_with_other_keys_is_refused_by_name(node: Node) -> None:
    with node.start() as ckpt:
        ckpt.save(1, {"net": torch.nn.Linear(2, 2)})
    with node.start() as ckpt, pytest.raises(StateError, match=r"state\['net'\]: not in the live state: 'bias'"):
        ckpt.load({"net": torch.nn.Linear(2, 2, bias=False)})


class Counting(torch.nn.Module):
    """A module as of Transformer Engine or torchmetrics, whose extra state and list grow in training."""

    def __init__(self, count: int = 0) -> None:
        super().__init__()
        self.seen = [torch.full((2,), number) for number in range(count)]
        self.history = torch.arange(count)

    def get_extra_state(self) -> Any:
        return self.history

    def set_extra_state(self, state: Any) -> None:
        self.history = state

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}seen"] = self.seen

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        self.seen = state_dict.pop(f"{prefix}seen")
        super()._load_from_state_dict(state_dict, prefix, *args)


@pytest.mark.parametrize("live", [0, 3, 7])
def test_a_modules_extra_state_and_lists_may_have_another_size(node: Node, live: int) -> None:
    with node.start() as ckpt:
        ckpt.save(1, {"net": torch.nn.Sequential(torch.nn.Linear(2, 2), Counting(5))})
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), Counting(live))
    with node.start() as ckpt:
        assert ckpt.load({"net": net}) == 1
    found = net[1]
    assert found.history.tolist() == [0, 1, 2, 3, 4] and [int(seen[1]) for seen in found.seen] == [0, 1, 2, 3, 4]


def test_an_object_that_refuses_its_state_is_a_state_error(node: Node) -> None:
    def optimizer(groups: int) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": [torch.nn.Parameter(torch.ones(2))]} for _ in range(groups)], lr=0.1)

    with node.start() as ckpt:
        ckpt.save(1, {"optimizer": optimizer(2)})
    with node.start() as ckpt, pytest.raises(StateError, match=r"SGD.load_state_dict refused"):
        ckpt.load({"optimizer": optimizer(1)})


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's: they are a prototype
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def looped() -> dict[str, Any]:
    state: dict[str, Any] = {}
    state["self"] = state
    return state


def nested_in_lists(depth: int) -> dict[str, Any]:
    value: Any = 0
    for _ in range(depth - 1):
        value = [value]
    return {"value": value}


def test_a_state_of_two_hundred_levels_comes_back(node: Node) -> None:
    with node.start() as ckpt:
        ckpt.save(1, nested_in_lists(200))
    state = nested_in_lists(1)
    with node.start() as ckpt:
        assert ckpt.load(state) == 1
    assert state == nested_in_lists(200)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"f": {"g": len}}, r"state\['f'\]\['g'\]: cannot store a builtins.builtin_function_or_method"),
        ({"net": {"kind": torch.nn.Linear}}, r"state\['net'\]\['kind'\]: cannot store the class torch.nn.*Linear;"),
        ({"s": torch.zeros(3).to_sparse()}, r"state\['s'\]: a torch.sparse_coo tensor"),
        ({"m": torch.zeros(3, device="meta")}, r"a meta tensor"),
        ({"net": {"n": nested()}}, r"\['n'\]: a nested tensor"),
        ({"o": np.array([object()])}, r"NumPy array of dtype object"),
        ({"o": np.ma.array([1, 2], mask=[0, 1])}, r"\['o'\]: a MaskedArray, a subclass of NumPy's array"),
        ({0: torch.zeros(1), "0": torch.zeros(1)}, r"two tensors under one key '0'"),
        (looped(), r"nested too deeply"),
        (nested_in_lists(201), r"nested too deeply"),
        ([torch.zeros(1)], r"got a list, expected a dict"),
    ],
)
def test_a_state_that_cannot_be_stored_is_refused_by_name(node: Node, state: Any, message: str) -> None:
    with node.start() as ckpt:
        with pytest.raises(StateError, match=message):
            ckpt.save(1, state)
        ckpt.save(2, {"x": torch.zeros(1)})
        assert ckpt.failed_saves == 0


class Idle:
    """An object that has nothing to save yet."""

    def __init__(self, state: Any = None) -> None:
        self.state = state
        self.loaded: list[Any] = []

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.loaded.append(state)


def test_an_object_whose_state_is_none_has_nothing_to_save_and_is_not_loaded(node: Node) -> None:
    with node.start() as ckpt:
        ckpt.save(1, {"idle": Idle(), "x": torch.ones(1)})
    state: dict[str, Any] = {"idle": Idle(), "x": torch.zeros(1)}
    with node.start() as ckpt:
        assert ckpt.read().state["idle"] is None
        assert (
            ckpt.load({"idle": state["idle"], "x": state["x"]}) == 1 and not state["idle"].loaded and state["x"].all()
        )
        with pytest.raises(StateError, match="returned a int, expected a dict, or None for nothing to save"):
            ckpt.save(2, {"idle": Idle(3)})


@pytest.mark.parametrize("live", [Idle(), Idle({"n": 0})])
def test_an_object_without_a_state_of_its_own_takes_the_saved_one(node: Node, live: Idle) -> None:
    with node.start() as ckpt:
        ckpt.save(1, {"object": Idle({"n": 4})})
    with node.start() as ckpt:
        ckpt.load({"object": live})
    assert live.loaded == [{"n": 4}]
