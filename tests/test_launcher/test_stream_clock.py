"""The steps of a rank on an accelerator, whose stream is played here: the host queues work and is not blocked by it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.base.sections import SECTIONS, StepTimes
from launcher.runner import stream_clock
from launcher.runner.step_hooks import _accelerator
from launcher.runner.stream_clock import StreamClock

DATA, _, COMMUNICATION = range(len(SECTIONS))


class Device:
    """One stream of a device, which does its work in order, and the host's time, both in ms."""

    def __init__(self) -> None:
        self.host_ms = self.free_ms = 0.0
        self.stream = "of the script"
        self.is_capturing = False
        self.error = ""
        self.made = 0

    def current_stream(self) -> str:
        return self.stream

    def is_current_stream_capturing(self) -> bool:
        return self.is_capturing

    def Event(self, enable_timing: bool) -> Event:
        assert enable_timing
        self.made += 1
        return Event(self)

    def work(self, ms: float) -> None:
        """The script queues work."""
        self.free_ms = max(self.free_ms, self.host_ms) + ms

    def wait_for_others(self, until_ms: float) -> None:
        """The script queues a collective, which others enter later."""
        self.free_ms = max(self.free_ms, self.host_ms, until_ms)

    def sleep(self, ms: float) -> None:
        """The host does something else."""
        self.host_ms += ms


class Event:
    def __init__(self, device: Device) -> None:
        self._device = device

    def record(self, stream: str) -> None:
        if self._device.error:
            raise RuntimeError(self._device.error)
        self.at_ms = max(self._device.free_ms, self._device.host_ms)

    def query(self) -> bool:
        if self._device.error:
            raise RuntimeError(self._device.error)
        return self.at_ms <= self._device.host_ms

    def elapsed_time(self, later: Event) -> float:
        return later.at_ms - self.at_ms


class Training:
    """A thread that trains, and its steps in ms: data, compute, communication."""

    def __init__(self) -> None:
        self.device = Device()
        self.steps: list[tuple[float, ...]] = []
        self.failures = 0
        self.times = StepTimes(StreamClock(self.device, self._finished, self._failed))

    def _finished(self, *parts_ns: int) -> None:
        self.steps.append(tuple(part / 1e6 for part in parts_ns))

    def _failed(self) -> None:
        self.failures += 1

    def within(self, section: int, call: Callable[..., None], *args: float) -> None:
        self.times.enter(section)
        call(*args)
        self.times.leave()

    def step(self, data_ms: float, work_ms: float, others_ms: float) -> None:
        """The DataLoader takes the host's time; the work and the collective are queued."""
        self.within(DATA, self.device.sleep, data_ms)
        self.device.work(work_ms)
        self.within(COMMUNICATION, self.device.wait_for_others, others_ms)
        self.times.finish_step()


def test_the_wait_of_a_stream_for_others_is_communication_though_the_host_runs_ahead() -> None:
    training = Training()
    training.times.finish_step()
    training.step(1, 40, others_ms=100)
    training.step(1, 40, others_ms=200)
    assert training.device.host_ms == 2 and training.steps == [], "the device has passed nothing yet; nobody waits"
    training.device.sleep(300)
    training.step(0, 40, others_ms=0)
    # The first batch is late for an empty stream. The second comes while the stream is at work.
    assert training.steps == [(1, 40, 59), (0, 40, 60)]


def test_a_stream_that_is_empty_while_the_loader_works_is_starved_by_data() -> None:
    training = Training()
    training.times.finish_step()
    training.step(30, 10, others_ms=0)
    training.step(30, 10, others_ms=0)
    training.device.sleep(50)
    training.step(0, 10, others_ms=0)
    assert training.steps == [(30, 10, 0), (20, 10, 0)]


def test_sections_in_another_stream_are_part_of_what_surrounds_them() -> None:
    """FSDP2 gathers the next layer in a stream of its own, while this one computes."""
    training = Training()
    training.times.finish_step()
    training.device.work(10)
    training.device.stream = "of a library"
    training.within(COMMUNICATION, lambda: None)
    training.device.stream = "of the script"
    training.device.work(10)
    training.times.finish_step()
    training.device.sleep(100)
    training.times.finish_step()
    assert training.steps[0] == (0, 20, 0)


def test_a_graph_is_captured_without_events() -> None:
    training = Training()
    training.times.finish_step()
    training.device.is_capturing = True
    training.step(0, 10, others_ms=0)
    training.device.is_capturing = False
    made = training.device.made
    training.device.sleep(100)
    training.times.finish_step()
    assert made == 1 and len(training.steps) == 1


def test_events_are_used_again_and_never_more_than_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    training.times.finish_step()
    for _ in range(100):
        training.step(0, 10, others_ms=0)
        training.device.sleep(10)
    assert training.device.made < 20 and len(training.steps) == 99
    monkeypatch.setattr(stream_clock, "MOST_MARKS", 50)
    for _ in range(100):
        training.within(COMMUNICATION, lambda: None)
    training.times.finish_step()
    assert training.device.made < 60


def test_an_error_of_the_device_ends_the_measurement_and_not_the_script(caplog: pytest.LogCaptureFixture) -> None:
    training = Training()
    training.times.finish_step()
    training.device.error = "CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE_CUDA_DSA"
    with caplog.at_level(logging.WARNING):
        training.times.finish_step()
    assert training.failures == 1
    assert caplog.messages == ["steps are not measured any more: CUDA error: an illegal memory access was encountered"]


def test_a_thread_of_autograd_enters_sections_for_the_one_that_waits_for_it() -> None:
    training = Training()
    training.times.finish_step()

    def wait_in_a_thread(until_ms: float) -> None:
        wait = (COMMUNICATION, training.device.wait_for_others, until_ms)
        thread = threading.Thread(target=training.within, args=wait)
        thread.start()
        thread.join()

    wait_in_a_thread(30)  # of another thread's own
    training.times.finish_step()
    training.times.acts_for_it = lambda: True
    wait_in_a_thread(60)
    training.times.finish_step()
    training.device.sleep(100)
    training.times.finish_step()
    assert training.steps[:2] == [(0, 30, 0), (0, 0, 30)]


def test_a_device_without_streams_of_this_form_is_measured_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    on = SimpleNamespace(device=SimpleNamespace(type="strange"))
    optimizer: Any = SimpleNamespace(param_groups=[{"params": [on, torch.zeros(1)]}])
    assert _accelerator(optimizer) is None, "torch has no module of that name"
    monkeypatch.setattr(torch, "strange", SimpleNamespace(Event=Event), raising=False)
    assert _accelerator(optimizer) is None
    whole = SimpleNamespace(Event=Event, Stream=object, current_stream=Device.current_stream)
    monkeypatch.setattr(torch, "strange", whole)
    assert _accelerator(optimizer) is whole
