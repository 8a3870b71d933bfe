"""The calls to CUDA that staging needs."""

from __future__ import annotations

import ctypes
import itertools
import logging
import mmap
from collections.abc import Callable, Sequence
from typing import Any

from ckpt.worker.lazy_torch import in_use, torch

_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}  # by number of bytes

log = logging.getLogger(__name__)


class Cuda:
    """The GPUs of this process. Its compute stream is the stream to which the calling thread's training enqueues work.

    Call `begin`, then `copy` and `copy_beside`, then `mark`. Copies beside the compute stream run on a separate stream
    for each GPU. All calls are cheap if CUDA is not in use.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
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
            self._streams[device].wait_stream(torch.cuda.current_stream(device))

    def copy(self, views: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
        """Enqueues copies in the compute stream, before any later work. Raises RuntimeError.

        Args:
            views: targets in mapped memory, which must stay mapped until the mark is reached.
        """
        for view, tensor in zip(views, tensors, strict=True):
            with torch.cuda.stream(torch.cuda.current_stream(tensor.device)):
                view.copy_(tensor, non_blocking=True)

    def copy_beside(self, views: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
        """Enqueues copies that run concurrently with the compute stream. Arguments and errors as in `copy`.

        Each tensor's checksum is computed twice: in the compute stream, before any later work, and right after the
        copy. They differ if later work has changed the tensor before its copy was complete.
        """
        for device in self._used:
            numbers = [number for number, tensor in enumerate(tensors) if tensor.device == device]
            if not numbers:
                continue
            stream, compute = self._streams[device], torch.cuda.current_stream(device)
            with torch.cuda.stream(compute):
                before = torch.stack([checksum(tensors[number]) for number in numbers])
            with torch.cuda.stream(stream):
                sums = []
                for number in numbers:
                    views[number].copy_(tensors[number], non_blocking=True)
                    sums.append(checksum(tensors[number]))
                    tensors[number].record_stream(stream)  # its memory is not reused before the copy is complete
                stream.wait_stream(compute)
                before.record_stream(stream)
                changed = torch.empty(len(numbers), dtype=torch.bool, pin_memory=True)
                changed.copy_(before != torch.stack(sums), non_blocking=True)
            self._changed.append((numbers, changed))

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
            The numbers of the tensors of `copy_beside` that changed before their copies were complete.
        """
        for _, event in self._events:
            event.synchronize()
        return [
            number for numbers, changed in self._changed for number in itertools.compress(numbers, changed.tolist())
        ]


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor's memory as integers: one number, on the tensor's device.

    The integers are as wide as possible, and the sum wraps. A sum of another width would need a converted copy.
    """
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    nbytes = tensor.itemsize
    if tensor.numel() and tensor.is_contiguous() and (tensor.nbytes | tensor.storage_offset() * nbytes) % 8 == 0:
        tensor, nbytes = tensor.view(-1), 8
    integer = getattr(torch, _INTEGERS[nbytes])
    return tensor.view(integer).sum(dtype=integer).long()
