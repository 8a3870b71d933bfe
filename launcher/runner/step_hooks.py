"""Measures a worker's steps without a line of the user's: where torch waits for other ranks, and where for data.

A step ends with `optimizer.step()`. Communication is the time for which the rank is blocked: in `Work.wait`, which
every synchronous collective calls, in the wait for a functional collective, and at the end of a backward pass, where
DDP waits for its gradients in C++. Data is the time in a DataLoader's `__next__`. Everything else is compute.

On an accelerator these are times of its stream, see launcher.runner.stream_clock: the host is not blocked there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.autograd import graph
from torch.compiler import is_compiling
from torch.distributed import _functional_collectives as functional
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from holdfast.base.sections import COMMUNICATION, DATA, Section, StepTimes, finish_step, measure, stop
from launcher.runner.step_times import StepMemory
from launcher.runner.stream_clock import StreamClock

# Since torch 2.8 a synchronous collective of NCCL runs in the caller's own stream, before `Work.wait`.
_QUEUED = (
    "allreduce", "allreduce_coalesced", "allgather", "allgather_coalesced", "_allgather_base", "all_gather_single",
    "allgather_into_tensor_coalesced", "all_gather_single_coalesced", "reduce_scatter", "_reduce_scatter_base",
    "reduce_scatter_single", "reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced", "alltoall",
    "alltoall_base", "all_to_all_single", "broadcast", "reduce", "gather", "scatter", "barrier", "send", "recv",
    "recv_anysource", "_end_coalescing",
)  # fmt: skip

_Returned = TypeVar("_Returned")


def measure_steps() -> None:
    """From now on, the steps of this thread are measured. Once in a process, before the script begins."""
    memory = StepMemory()
    times = measure(memory.write)
    is_first = True

    def on_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        nonlocal is_first
        device = _accelerator(optimizer) if is_first else None
        is_first = False
        if device is not None:
            _measure_stream(times, device, memory)
        finish_step()

    register_optimizer_step_post_hook(on_step)
    _BaseDataLoaderIter.__next__ = _within(DATA, _BaseDataLoaderIter.__next__)
    if dist.is_available():
        dist.Work.wait = _within(COMMUNICATION, dist.Work.wait)
        functional.wait_tensor = _within(COMMUNICATION, functional.wait_tensor)
    backward = _waiting_at_the_end(graph._engine_run_backward)
    graph._engine_run_backward = torch.autograd._engine_run_backward = backward


def _accelerator(optimizer: torch.optim.Optimizer) -> Any:
    """The module of the device on which the optimizer's parameters are, such as torch.cuda.

    None for the CPU, and for a device without streams and events of this form. There, the host's times are measured.
    """
    kinds = {parameter.device.type for group in optimizer.param_groups for parameter in group["params"]}
    for kind in kinds - {"cpu", "meta"}:
        device = getattr(torch, kind, None)
        if all(hasattr(device, name) for name in ("Event", "Stream", "current_stream")):
            return device
    return None


def _measure_stream(times: StepTimes, device: Any, memory: StepMemory) -> None:
    """From now on, the steps of this thread's work on a device are measured.

    A backward pass on a device is run by a thread of autograd's, while this one waits. Waits for another stream's work
    count as communication: FSDP2 has its collectives in streams of its own.
    """
    times.clock = StreamClock(device, memory.write, stop)
    times.acts_for_it = lambda: torch._C._current_graph_task_id() != -1
    device.Stream.wait_event = _within(COMMUNICATION, device.Stream.wait_event)
    if dist.is_available():
        for name in _QUEUED:
            if (queued := getattr(dist.ProcessGroup, name, None)) is not None:
                setattr(dist.ProcessGroup, name, _within(COMMUNICATION, queued))


def _within(section: Section, call: Callable[..., _Returned]) -> Callable[..., _Returned]:
    @functools.wraps(call)
    def timed(*args: Any, **kwargs: Any) -> _Returned:
        if is_compiling() or not section.enter():  # a compiled graph has no clock
            return call(*args, **kwargs)
        try:
            return call(*args, **kwargs)
        finally:
            section.leave()

    return timed


def _waiting_at_the_end(run_backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward pass whose end is communication, from the last gradient on.

    The engine calls its callbacks after the last gradient, in the order in which they were queued. DDP queues its wait
    for the gradients once all are computed. The callback that is queued with the first gradient comes before it.
    """

    @functools.wraps(run_backward)
    def timed(outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        first = outputs[0] if outputs and dist.is_initialized() else None
        if not isinstance(first, torch.Tensor) or not first.requires_grad:
            return run_backward(outputs, *args, **kwargs)
        is_waiting = False

        def wait() -> None:
            nonlocal is_waiting
            is_waiting = COMMUNICATION.enter()

        hook = first.register_hook(lambda _: torch.autograd.Variable._execution_engine.queue_callback(wait))
        try:
            return run_backward(outputs, *args, **kwargs)
        finally:
            hook.remove()
            if is_waiting:
                COMMUNICATION.leave()

    return timed
