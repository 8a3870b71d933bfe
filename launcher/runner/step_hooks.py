"""Measures a worker's steps without a line of the user's: where torch waits for other ranks, and where for data.

A step ends with `optimizer.step()`. Communication is the time for which the rank is blocked: in `Work.wait`, which
every synchronous collective calls, in the wait for a functional collective, and at the end of a backward pass, where
DDP waits for its gradients in C++. Data is the time in a DataLoader's `__next__`. Everything else is compute.

These are times of the host. On a GPU the host runs ahead of it and is not blocked by collectives.
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

from holdfast.base.sections import COMMUNICATION, DATA, Section, finish_step, measure
from launcher.runner.step_times import StepMemory

_Returned = TypeVar("_Returned")


def measure_steps() -> None:
    """From now on, the steps of this thread are measured. Once in a process, before the script begins."""
    measure(StepMemory().write)
    register_optimizer_step_post_hook(lambda *_: finish_step())
    _BaseDataLoaderIter.__next__ = _within(DATA, _BaseDataLoaderIter.__next__)
    if dist.is_available():
        dist.Work.wait = _within(COMMUNICATION, dist.Work.wait)
        functional.wait_tensor = _within(COMMUNICATION, functional.wait_tensor)
    backward = _waiting_at_the_end(graph._engine_run_backward)
    graph._engine_run_backward = torch.autograd._engine_run_backward = backward


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
