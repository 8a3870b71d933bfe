"""The calls to CUDA that staging needs."""

from __future__ import annotations

import ctypes
import itertools
import logging
import mmap
from collections.abc import Callable, Sequence
from typing import Any

from ckpt.worker.lazy_torch import in_use, torch
from ckpt.worker.save.gpu_checksums import GpuChecksums

log = logging.getLogger(__name__)


class Cuda:
    """The GPUs of this process. Its compute stream is the stream to which the calling thread's training enqueues work.

    Call `begin`, then `copy` and `copy_overlapped`, then `mark`. Overlapped copies run on a separate stream for each
    GPU. All calls are cheap if CUDA is not in use.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._checksums: dict[torch.device, GpuChecksums] = {}
        self._used: set[torch.device] = set()
        self._changed: list[tuple[list[int], torch.Tensor]] = []  # numbers of tensors, and flags in pinned memory

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
        self._used, self._changed = {tensor.device for tensor in tensors}, []
        for device in self._used:
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device, priority=-1)  # checksums precede training's kernels
                self._checksums[device] = GpuChecksums(device)
            self._streams[device].wait_stream(torch.cuda.current_stream(device))

    def copy(self, views: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
        """Enqueues copies in the compute stream, before any later work. Raises RuntimeError.

        Args:
            views: targets in mapped memory, which must stay mapped until the mark is reached.
        """
        for device, numbers in self._by_device(tensors):
            with torch.cuda.stream(torch.cuda.current_stream(device)):
                _copy(views, tensors, numbers)

    def copy_overlapped(self, views: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
        """Enqueues copies that run concurrently with the compute stream. Arguments and errors as in `copy`.

        Each tensor's checksum is computed twice: in the compute stream, before any later work, and after the copies.
        They differ if later work has changed the tensor before all copies were complete.
        """
        for device, numbers in self._by_device(tensors):
            stream, compute = self._streams[device], torch.cuda.current_stream(device)
            copied, checksums = [tensors[number] for number in numbers], self._checksums[device]
            with torch.cuda.stream(compute):
                before = checksums.of(copied)
            with torch.cuda.stream(stream):
                _copy(views, tensors, numbers)
                stream.wait_stream(compute)
                after = checksums.of(copied)
                for tensor in (*copied, before):
                    tensor.record_stream(stream)  # its memory is not reused before this point of the stream
                changed = torch.empty(len(numbers), dtype=torch.bool, pin_memory=True)
                changed.copy_(before != after, non_blocking=True)
            self._changed.append((numbers, changed))

    def _by_device(self, tensors: Sequence[torch.Tensor]) -> list[tuple[torch.device, list[int]]]:
        """The devices in use, each with the numbers of its tensors, of which there are some."""
        found: dict[torch.device, list[int]] = {}
        for number, tensor in enumerate(tensors):
            found.setdefault(tensor.device, []).append(number)
        return list(found.items())

    def mark(self) -> CopyMark:
        """The point after all copies since `begin`. Raises RuntimeError."""
        events = []
        for device in self._used:
            stream = self._streams[device]
            stream.wait_stream(torch.cuda.current_stream(device))  # also wait for the copies in the compute stream
            event = torch.cuda.Event(blocking=True)  # a waiting thread sleeps instead of spinning
            event.record(stream)
            events.append((device, event))
        return CopyMark(events, self._changed)


class CopyMark:
    """The point after all copies enqueued so far."""

    def __init__(
        self, events: list[tuple[torch.device, torch.cuda.Event]], changed: list[tuple[list[int], torch.Tensor]]
    ) -> None:
        self._events = events
        self._changed = changed

    def hold_back(self) -> None:
        """Work that training enqueues from now on runs after this point. Does not block the CPU."""
        for device, event in self._events:
            torch.cuda.current_stream(device).wait_event(event)

    def wait(self) -> list[int]:
        """Returns when this point is reached. May be called from any thread. Raises RuntimeError if a GPU fails.

        Returns:
            The numbers of the tensors of `copy_overlapped` that changed before their copies were complete.
        """
        for _, event in self._events:
            event.synchronize()
        return [
            number for numbers, changed in self._changed for number in itertools.compress(numbers, changed.tolist())
        ]


def _copy(views: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> None:
    """Enqueues the copies of some tensors in the current stream."""
    torch._foreach_copy_([views[i] for i in numbers], [tensors[i] for i in numbers], non_blocking=True)
