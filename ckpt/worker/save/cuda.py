"""The few calls that staging makes of an accelerator, and CUDA's answers to them."""

from __future__ import annotations

import ctypes
import logging
import mmap
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ckpt.worker.lazy_torch import in_use, torch

log = logging.getLogger(__name__)


class CopyMark(Protocol):
    """A point after the copies made so far."""

    def hold_back(self) -> None:
        """What training enqueues from now on runs only after this point. Does not wait, where the device can."""

    def wait(self) -> None:
        """Returns when this point is reached. From any thread.

        Raises:
            RuntimeError: the device has failed.
        """


class Device(Protocol):
    """An accelerator: its compute stream is the one that training enqueues its work on, in the calling thread.

    Call `begin`, `copy` as often as needed, `mark`.
    """

    def holds(self, tensor: Any) -> bool:
        """Whether a tensor, or an array, lies in the device's memory."""

    def pin(self, memory: mmap.mmap) -> Callable[[], None] | None:
        """Makes copies into memory run at full speed and without the CPU; returns what undoes it."""

    def begin(self, tensors: Sequence[torch.Tensor]) -> None:
        """The copies to come wait for all that the compute stream has been given; raises RuntimeError."""

    def copy(self, views: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], *, beside: bool) -> None:
        """Enqueues copies; raises RuntimeError.

        Args:
            views: of mapped memory; must stay mapped until the mark.
            tensors: that the device holds, one for each view.
            beside: beside the compute stream; else in it, so that no later work can come before.
        """

    def mark(self) -> CopyMark:
        """The point after all copies since `begin`; raises RuntimeError."""


class Cuda:
    """CUDA: copies run on a stream of their own, one for each GPU. Costs nothing where CUDA is not in use."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._used: set[torch.device] = set()

    def holds(self, tensor: Any) -> bool:
        return getattr(tensor, "is_cuda", False)

    def pin(self, memory: mmap.mmap) -> Callable[[], None] | None:
        if not in_use() or not torch.cuda.is_initialized():
            return None
        runtime = torch.cuda.cudart()
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        code = int(runtime.cudaHostRegister(address, len(memory), 0))
        if code:
            log.warning("cannot pin %d bytes (CUDA error %d): saves from the GPU will be slower", len(memory), code)
            return None

        def unpin() -> None:
            runtime.cudaHostUnregister(address)

        return unpin

    def begin(self, tensors: Sequence[torch.Tensor]) -> None:
        self._used = {tensor.device for tensor in tensors}
        for device in self._used:
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)
            self._streams[device].wait_stream(torch.cuda.current_stream(device))

    def copy(self, views: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], *, beside: bool) -> None:
        for device in self._used:
            stream = self._streams[device] if beside else torch.cuda.current_stream(device)
            with torch.cuda.stream(stream):
                for view, tensor in zip(views, tensors, strict=True):
                    if tensor.device == device:
                        view.copy_(tensor, non_blocking=True)
                        if beside:
                            tensor.record_stream(stream)  # its memory is not given to others before the copy is done

    def mark(self) -> CopyMark:
        events = []
        for device in self._used:
            stream = self._streams[device]
            stream.wait_stream(torch.cuda.current_stream(device))  # the copies that went there
            event = torch.cuda.Event(blocking=True)  # a waiting thread sleeps
            event.record(stream)
            events.append((device, event))
        return _CudaMark(events)


class _CudaMark:
    def __init__(self, events: list[tuple[torch.device, torch.cuda.Event]]) -> None:
        self._events = events

    def hold_back(self) -> None:
        for device, event in self._events:
            torch.cuda.current_stream(device).wait_event(event)

    def wait(self) -> None:
        for _, event in self._events:
            event.synchronize()
