"""States that scripts have beside plain modules: uncommon dtypes, schedulers, compiled modules, classes of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler
from trainer_kit import Node

from ckpt.errors import StateError

DTYPES = [
    name
    for name in (
        "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "bfloat16",
        "complex32", "uint1", "uint4", "int4", "uint16", "uint32", "uint64",
    )
    if hasattr(torch, name)
]  # fmt: skip


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.stop()


def restored(node: Node, saved: dict[str, Any], live: dict[str, Any]) -> dict[str, Any]:
    with node.start() as ckpt:
        ckpt.save(1, saved)
    with node.start() as ckpt:
        assert ckpt.load(live) == 1
    return live


def test_every_dtype_comes_back_bit_for_bit(node: Node) -> None:
    def of(data: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: data.clone().view(getattr(torch, name)) for name in DTYPES}

    data = torch.arange(240, 256, dtype=torch.uint8)  # NaN in some of them
    found = restored(node, of(data), of(torch.zeros(16, dtype=torch.uint8)))
    assert [name for name in DTYPES if not torch.equal(found[name].view(torch.uint8), data)] == []


def scheduled(*, steps: int) -> dict[str, Any]:
    head = torch.nn.Linear(2, 2, bias=False)
    net = torch.nn.ModuleDict({"embedding": torch.nn.Linear(2, 2, bias=False), "head": head})
    head.weight = net["embedding"].weight
    sgd, lbfgs = torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.LBFGS(net.parameters())
    warm = [lr_scheduler.LinearLR(sgd), lr_scheduler.CosineAnnealingLR(sgd, 5)]
    schedules: list[Any] = [
        lr_scheduler.OneCycleLR(sgd, 0.1, total_steps=10),
        lr_scheduler.CyclicLR(sgd, 0.1, 0.2, scale_fn=lambda x: 1.0),
        lr_scheduler.SequentialLR(sgd, warm, [2]),
    ]

    def loss() -> torch.Tensor:
        lbfgs.zero_grad()
        value = (head(torch.ones(2)) - 3).square().sum()
        value.backward()
        return value

    for _ in range(steps):
        lbfgs.step(loss)
        sgd.step()
        for schedule in schedules:
            schedule.step()
    return {"net": net, "lbfgs": lbfgs, "schedules": schedules}


def test_tied_weights_lbfgs_and_schedulers_come_back(node: Node) -> None:
    saved = scheduled(steps=2)
    live = restored(node, saved, scheduled(steps=0))
    assert live["net"]["head"].weight is live["net"]["embedding"].weight
    assert torch.equal(live["net"]["head"].weight, saved["net"]["head"].weight)
    directions = [next(iter(each["lbfgs"].state.values()))["d"] for each in (live, saved)]
    assert torch.equal(*directions)
    for found, expected in zip(live["schedules"], saved["schedules"], strict=True):
        assert (found.last_epoch, found._last_lr) == (expected.last_epoch, expected._last_lr)


def test_a_compiled_module_and_a_plain_one_are_told_apart_by_their_keys(node: Node) -> None:
    plain = torch.nn.Linear(3, 3)
    before = plain.weight.clone()
    with node.start() as ckpt:
        ckpt.save(1, {"net": torch.compile(torch.nn.Linear(3, 3))})
    with node.start() as ckpt, pytest.raises(StateError, match=r"not in the live state: '_orig_mod\.weight'"):
        ckpt.load({"net": plain})
    assert torch.equal(plain.weight, before)


class Quantised(torch.Tensor):
    """A class of tensors whose bytes alone do not define their values, as torchao's."""


def test_a_class_of_tensors_that_cannot_be_stored_is_refused_by_name(node: Node) -> None:
    value = torch.ones(3).as_subclass(Quantised)
    with node.start() as ckpt, pytest.raises(StateError, match=r"\['exp_avg'\]: cannot store a .*Quantised"):
        ckpt.save(1, {"optimizer": {"exp_avg": value}})
