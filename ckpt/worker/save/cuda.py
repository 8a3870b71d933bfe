"""The calls to CUDA that staging needs."""

from __future__ import annotations

import ctypes
import logging
import mmap
from collections.abc import Callable, Sequence
from typing import Any

from ckpt.worker.lazy_torch import in_use, torch

log = logging.getLogger(__name__)


class Cuda:
    """The GPUs of this process. Its compute stream is the stream to which the calling thread's training enqueues work.

    Call `begin`, then `copy` as often as needed, then `mark`. Copies beside the compute stream run on a separate stream
    for each GPU. All calls are cheap if CUDA is not in use.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._used: set[torch.device] = set()

    def holds(self, tensor: Any) -> bool:
        """Whether a tensor or array is in the memory of a GPU."""
        return getattr(tensor, "is_cuda", False)

    def pin(self, memory: mmap.mmap) -> Callable[[], None] | None:
        """Registers memory for fast copies without the CPU. Returns a function that undoes it, or None."""
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
        """Later copies wait for all work enqueued in the compute stream so far. Raises RuntimeError."""
        self._used = {tensor.device for tensor in tensors}
        for device in self._used:
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)
            self._streams[device].wait_stream(torch.cuda.current_stream(device))

    def copy(self, views: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], *, beside: bool) -> None:
        """Enqueues copies. Raises RuntimeError.

        Args:
            views: targets in mapped memory, which must stay mapped until the mark is reached.
            beside: whether to copy concurrently with the compute stream; else in it, before any later work.
        """
        for device in self._used:
            stream = self._streams[device] if beside else torch.cuda.current_stream(device)
            with torch.cuda.stream(stream):
                for view, tensor in zip(views, tensors, strict=True):
                    if tensor.device == device:
                        view.copy_(tensor, non_blocking=True)
                        if beside:
                            tensor.record_stream(stream)  # its memory is not reused before the copy is complete

    def mark(self) -> CopyMark:
        """The point after all copies since `begin`. Raises RuntimeError."""
        events = []
        for device in self._used:
            stream = self._streams[device]
            stream.wait_stream(torch.cuda.current_stream(device))  # also wait for the copies in the compute stream
            event = torch.cuda.Event(blocking=True)  # a waiting thread sleeps instead of spinning
            event.record(stream)
            events.append((device, event))
        return CopyMark(events)


class CopyMark:
    """The point after all copies enqueued so far."""

    def __init__(self, events: list[tuple[torch.device, torch.cuda.Event]]) -> None:
        self._events = events

    def hold_back(self) -> None:
        """Work that training enqueues from now on runs after this point. Does not block the CPU."""
        for device, event in self._events:
            torch.cuda.current_stream(device).wait_event(event)

    def wait(self) -> None:
        """Returns when this point is reached. May be called from any thread. Raises RuntimeError if a GPU fails."""
        for _, event in self._events:
            event.synchronize()
