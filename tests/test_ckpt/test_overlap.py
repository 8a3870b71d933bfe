"""Copies from an accelerator go on while training does: nothing that training does meanwhile reaches the checkpoint.

The device here is a thread that copies when the test lets it. CUDA's part is in ckpt/worker/save/cuda.py.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trainer_kit import LIMIT_S, Node

from ckpt import Checkpointer
from ckpt.format.boxes import Box
from ckpt.format.line import Line
from ckpt.memory.arena import Slot
from ckpt.worker.placement import PlacedBox, parts_of
from ckpt.worker.save.gpu_checksums import checksum
from ckpt.worker.save.staging import Stager
from ckpt.worker.save_in_flight import Background
from ckpt.worker.session import Session
from ckpt.worker.slots import Slots


class Lane:
    """A device whose stream is a thread, which does nothing while it is stopped; it holds all of 1000 elements."""

    def __init__(self) -> None:
        self.runs = threading.Event()
        self.runs.set()
        self.error: RuntimeError | None = None
        self.refuses: RuntimeError | None = None
        self.copied: list[bool] = []  # for each tensor, whether beside the compute stream
        self.is_pinning, self.pins = threading.Event(), threading.Event()
        self.pins.set()
        self.pinned: list[Any] = []
        self._changed: list[int] = []
        self._todo: queue.Queue[Callable[[], object]] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.numel() == 1000

    def pin(self, memory: Any) -> Callable[[], None]:
        self.pinned.append(memory)
        self.is_pinning.set()
        assert self.pins.wait(LIMIT_S)
        return lambda: self.pinned.remove(memory)

    def begin(self, tensors: list[torch.Tensor]) -> None:
        if self.refuses:
            raise self.refuses

    def copy(self, views: list[torch.Tensor], tensors: list[torch.Tensor]) -> None:
        for view, tensor in zip(views, tensors, strict=True):
            self.copied.append(False)
            view.copy_(tensor)  # training runs no ahead of its calls here

    def copy_overlapped(self, views: list[torch.Tensor], tensors: list[torch.Tensor]) -> None:
        self._changed = []
        for number, (view, tensor) in enumerate(zip(views, tensors, strict=True)):
            self.copied.append(True)
            self._todo.put(partial(self._copy, number, view, tensor, checksum(tensor), self._changed))

    def _copy(
        self, number: int, view: torch.Tensor, tensor: torch.Tensor, before: torch.Tensor, changed: list[int]
    ) -> None:
        view.copy_(tensor)
        if checksum(tensor) != before:
            changed.append(number)

    def mark(self) -> LaneMark:
        mark = LaneMark(self, self._changed)
        self._todo.put(mark.reached.set)
        return mark

    def _run(self) -> None:
        while True:
            work = self._todo.get()
            self.runs.wait()
            with torch.no_grad():
                work()


class LaneMark:
    def __init__(self, lane: Lane, changed: list[int]) -> None:
        self.reached = threading.Event()
        self._lane = lane
        self._changed = changed

    def hold_back(self) -> None:
        assert self.reached.wait(LIMIT_S)

    def wait(self) -> list[int]:
        assert self.reached.wait(LIMIT_S)
        if self._lane.error:
            raise self._lane.error
        return self._changed


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.stop()


def start(node: Node) -> tuple[Checkpointer, Lane]:
    ckpt, lane = node.start(), Lane()
    ckpt._engine._stager = Stager(device=lane)
    return ckpt, lane


def training() -> tuple[dict[str, Any], torch.optim.Optimizer]:
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.arange(1000.0))
    model.register_buffer("running", torch.zeros(1000))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    model.weight.grad = torch.ones(1000)
    optimizer.step()
    return {
        "model": model,
        "optimizer": optimizer,
        "average": torch.zeros(1000),
        "small": torch.zeros(3),
        "losses": [0.0],
    }, optimizer


class OneForAll(torch.optim.SGD):
    """Keeps a counter for all parameters at the top of its state, as MADGRAD does, a number, and a list of tensors."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=1.0)
        self.state["k"] = torch.zeros(1000)  # type: ignore[index]
        self.state["calls"] = 7  # type: ignore[index]
        self.state["past"] = {"all": [torch.zeros(1000)]}  # type: ignore[index]
        self.state["sparse"] = torch.zeros(1000).to_sparse()  # type: ignore[index]

    def state_dict(self) -> dict[str, Any]:
        found = super().state_dict()
        found["state"].pop("sparse", None)
        return found


def test_what_an_optimizer_keeps_for_all_parameters_is_copied_beside_training(node: Node) -> None:
    def state() -> dict[str, Any]:
        return {"optimizer": OneForAll([torch.nn.Parameter(torch.zeros(1000))])}

    saved = state()
    saved["optimizer"].state["k"] += 5
    saved["optimizer"].state["past"]["all"][0] += 6
    ckpt, lane = start(node)
    ckpt.save(1, saved)
    ckpt.close()
    assert lane.copied == [True, True] and ckpt.failed_saves == 0
    found = state()
    with node.start() as ckpt:
        assert ckpt.load(found) == 1
    kept = found["optimizer"].state
    assert kept["k"].eq(5).all() and kept["past"]["all"][0].eq(6).all() and kept["calls"] == 7


def restored(node: Node) -> tuple[int, dict[str, Any]]:
    state, _ = training()
    with node.start() as ckpt:
        return ckpt.load(state), state


def test_training_goes_on_while_copies_run_and_the_next_step_waits_for_them(node: Node) -> None:
    state, optimizer = training()
    model = state["model"]
    saved = model.weight.detach().clone()
    ckpt, lane = start(node)
    with ckpt:
        lane.runs.clear()
        ckpt.save(1, state)  # returns although no byte of the parameters is copied
        assert sorted(lane.copied) == [False, False, True, True]
        model.running += 1  # as a forward does
        state["average"] += 1
        state["small"] += 1
        state["losses"].append(1.0)
        step = threading.Thread(target=optimizer.step)
        step.start()
        step.join(0.2)
        assert step.is_alive() and torch.equal(model.weight, saved), "the step waits for the copies"
        assert ckpt._engine.connect()._sealing.busy
        lane.runs.set()
        step.join(LIMIT_S)
        assert not torch.equal(model.weight, saved)
        ckpt.close()
        assert ckpt.failed_saves == 0
    step_of, found = restored(node)
    assert step_of == 1 and torch.equal(found["model"].weight, saved)
    assert torch.equal(found["optimizer"].state_dict()["state"][0]["momentum_buffer"], torch.ones(1000))
    assert not found["model"].running.any() and not found["average"].any() and not found["small"].any()
    assert found["losses"] == [0.0]


def test_a_second_save_goes_to_another_slot_while_the_first_is_copied(node: Node) -> None:
    state, optimizer = training()
    ckpt, lane = start(node)
    with ckpt:
        lane.runs.clear()
        ckpt.save(1, state)
        state["average"] += 5
        ckpt.save(2, state)
        ckpt.save(3, state)  # no slot is free: skipped, and training goes on
        assert ckpt.failed_saves == 1
        lane.runs.set()
        optimizer.step()
        ckpt.close()
    step, found = restored(node)
    assert step == 2 and found["average"].eq(5).all()


def clamp(weight: torch.nn.Parameter) -> None:
    with torch.no_grad():
        weight.clamp_(max=5)


def swap_data(weight: torch.nn.Parameter) -> None:
    """As for an evaluation with averaged weights; the tensor's version stays."""
    weight.data.copy_(torch.full_like(weight, 99.0))


@pytest.mark.parametrize("change", [clamp, swap_data])
def test_a_parameter_changed_by_other_means_than_a_step_fails_the_save(
    node: Node, caplog: pytest.LogCaptureFixture, change: Callable[[torch.nn.Parameter], None]
) -> None:
    state, optimizer = training()
    ckpt, lane = start(node)
    with ckpt:
        lane.runs.clear()
        ckpt.save(1, state)
        change(state["model"].weight)
        lane.runs.set()
        optimizer.step()
        ckpt._engine.connect().await_saves()
        assert ckpt.failed_saves == 1
        assert "model/weight was changed while it was copied" in caplog.text
        ckpt.save(2, state)
        ckpt.close()
    assert restored(node)[0] == 2


@pytest.mark.parametrize("where", ["error", "refuses"])
def test_a_device_that_fails_fails_the_save_and_not_the_training(
    node: Node, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    state, optimizer = training()
    ckpt, lane = start(node)
    with ckpt:
        setattr(lane, where, RuntimeError("device-side assert\nmore"))
        ckpt.save(1, state)
        optimizer.step()
        ckpt._engine.connect().await_saves()
        assert ckpt.failed_saves == 1
        assert "step 1 is dropped: copying from the device failed: device-side assert" in caplog.text
        setattr(lane, where, None)
        ckpt.save(2, state)
        ckpt.close()
    assert restored(node)[0] == 2


def test_a_drop_that_the_agent_repeats_at_once_is_counted_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    send, heed, repeated = Session._send_drop, Slots.heed, threading.Event()

    def slowly(session: Session, op: str, step: int, line: Line, **reason: str) -> None:
        send(session, op, step, line, **reason)
        assert repeated.wait(LIMIT_S)

    def noting(slots: Slots, event: dict[str, Any]) -> None:
        heed(slots, event)
        if event["event"] == "dropped":
            repeated.set()

    monkeypatch.setattr(Session, "_send_drop", slowly)
    monkeypatch.setattr(Slots, "heed", noting)
    state, optimizer = training()
    ckpt, lane = start(node)
    with ckpt:
        lane.error = RuntimeError("device-side assert")
        ckpt.save(1, state)
        optimizer.step()
        ckpt._engine.connect().await_saves()
        assert ckpt.failed_saves == 1


def test_no_optimizer_waits_for_a_checkpointer_that_is_closed(node: Node) -> None:
    from torch.optim import optimizer as hooks

    before = len(hooks._global_optimizer_pre_hooks)
    state, _ = training()
    ckpt, _ = start(node)
    with ckpt:
        ckpt.save(1, state)
        assert len(hooks._global_optimizer_pre_hooks) == before + 1
    assert len(hooks._global_optimizer_pre_hooks) == before


class TestPinned:
    def test_memory_is_until_its_checkpointer_is_closed(self, node: Node) -> None:
        state, _ = training()
        ckpt, lane = start(node)
        with ckpt:
            ckpt.save(1, state)
            ckpt.save(2, state)
            assert len(lane.pinned) == len(set(map(id, lane.pinned))) == 2, "each slot once"
        assert not lane.pinned

    def test_and_no_save_waits_until_another_slot_is(self, tmp_path: Path) -> None:
        lane, slots = Lane(), [Slot(tmp_path, 0, index) for index in range(2)]
        stager = Stager(device=lane)
        for slot in slots:
            slot.reserve(4096)
        stager.pin(slots[0])
        lane.is_pinning.clear()
        lane.pins.clear()
        pinning = threading.Thread(target=stager.pin, args=slots[1:])
        pinning.start()
        assert lane.is_pinning.wait(LIMIT_S)
        saving = threading.Thread(target=stager.pin, args=slots[:1])
        saving.start()
        saving.join(LIMIT_S / 6)
        has_waited = saving.is_alive()
        lane.pins.set()
        for thread in (pinning, saving):
            thread.join(LIMIT_S)
        stager.close()
        assert not has_waited

    def test_in_the_background_or_not_at_all_once_it_is_closed(self, tmp_path: Path) -> None:
        lane, slots = Lane(), [Slot(tmp_path, 0, index) for index in range(2)]
        stager = Stager(device=lane)
        for slot in slots:
            slot.reserve(4096)
        lane.pins.clear()
        pinning = threading.Thread(target=stager.pin, args=slots[:1])
        pinning.start()
        assert lane.is_pinning.wait(LIMIT_S)
        closing = threading.Thread(target=stager.close)
        closing.start()
        lane.pins.set()
        for thread in (pinning, closing):
            thread.join(LIMIT_S)
        assert not lane.pinned
        stager.pin(slots[1])
        assert not lane.pinned


def test_work_in_the_background_is_done_in_order_and_survives_what_it_raises(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []
    background, gate = Background("ckpt-test"), threading.Event()
    background.do(gate.wait)
    background.do(lambda: done.append(1 // 0))
    background.do(lambda: done.append(2))
    assert background.busy and not background.settle(0.01)
    gate.set()
    assert background.settle(LIMIT_S) and done == [2]
    with caplog.at_level(logging.ERROR):
        assert "ZeroDivisionError" in caplog.text


def test_a_tensor_that_lies_in_several_boxes_is_copied_box_by_box(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a strided shard does; here the second half of a plain tensor comes before the first."""
    swapped = (PlacedBox(Box((600,), (400,)), (slice(0, 400),)), PlacedBox(Box((0,), (600,)), (slice(400, 1000),)))
    saved = torch.arange(1000.0)
    ckpt, lane = start(node)
    with monkeypatch.context() as patch:
        patch.setattr(
            "ckpt.worker.save.flatten.parts_of",
            lambda value, path: swapped if len(value) > 3 else parts_of(value, path),
        )
        ckpt.save(1, {"small": torch.ones(3), "x": saved})
        ckpt.close()
    assert lane.copied == [False, False], "nothing says that only an optimizer's step changes it"
    state = {"small": torch.zeros(3), "x": torch.zeros(1000)}
    with node.start() as ckpt:
        assert ckpt.load(state) == 1
    assert torch.equal(state["x"], saved.roll(600)) and state["small"].all()


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.float8_e4m3fn, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128],
)
@pytest.mark.parametrize("part", [(...,), (slice(1, None), slice(3)), (0, 0), (slice(0), 0)])
def test_a_checksum_shows_a_change_of_any_element(dtype: torch.dtype, part: tuple[Any, ...]) -> None:
    whole = torch.arange(35).reshape(5, 7).to(dtype)
    tensor = torch.nn.Parameter(whole[part], requires_grad=dtype.is_floating_point)
    with torch.no_grad():
        before = checksum(tensor)
        assert before.shape == () and before.dtype == torch.int64 and checksum(tensor) == before
        for index in np.ndindex(*tensor.shape):
            kept = tensor.data[index].clone()
            tensor.data[index] = kept == 0
            assert checksum(tensor) != before
            tensor.data[index] = kept
