"""Copies from an accelerator that run during training, and what keeps the copied state consistent.

Parameters and optimizer state change only in an optimizer's step. They are copied concurrently with training, and a
hook on every optimizer delays the next step until the copies are complete. On CUDA the GPU waits, not the CPU. All
other tensors may change at any time. Their copies are enqueued in the compute stream, after the work that training has
enqueued so far. If other code changes a parameter before its copy is complete, its checksum shows it, and the save
fails. The parameter's version would not show a change through `.data` or by a CUDA graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ckpt.errors import CopyError
from ckpt.worker.lazy_torch import torch
from ckpt.worker.save.cuda import CopyMark, Cuda


@dataclass(frozen=True, kw_only=True)
class CopyJob:
    key: str
    view: torch.Tensor
    tensor: torch.Tensor
    stepped: bool  # changes only in an optimizer's step


class Copies:
    """The copies of one save, from their start until they are complete."""

    def __init__(self, mark: CopyMark, overlapped: Sequence[CopyJob]) -> None:
        """`overlapped`: the copies that run concurrently with training."""
        self._mark = mark
        self._keys = [job.key for job in overlapped]

    def hold_back(self) -> None:
        """From now on, training waits for the copies before it changes the state."""
        self._mark.hold_back()

    def wait(self) -> None:
        """Returns when all copies are complete.

        Raises:
            CopyError: the device failed, or code other than an optimizer changed a tensor during the copy.
        """
        try:
            changed = self._mark.wait()
        except RuntimeError as error:
            raise CopyError(f"copying from the device failed: {str(error).splitlines()[0]}") from None
        if changed:
            raise CopyError(
                f"{self._keys[changed[0]]} was changed while it was copied, and not by an optimizer's step; "
                "change parameters before save(), or after the next step"
            )


class Overlap:
    """Starts copies, and delays every optimizer's step until the copies started before it are complete."""

    def __init__(self, device: Cuda) -> None:
        self._device = device
        self._hook: Any = None
        self._running: list[Copies] = []

    def start(self, jobs: Sequence[CopyJob]) -> Copies:
        """Enqueues copies of tensors in the device's memory.

        Raises:
            CopyError: the device refused; then no copy is running.
        """
        if self._hook is None:
            from torch.optim.optimizer import register_optimizer_step_pre_hook

            self._hook = register_optimizer_step_pre_hook(lambda *_: self.hold_back())
        try:
            self._device.begin([job.tensor for job in jobs])
            overlapped = [job for job in jobs if job.stepped]
            now = [job for job in jobs if not job.stepped]
            self._device.copy([job.view for job in now], [job.tensor for job in now])
            self._device.copy_overlapped([job.view for job in overlapped], [job.tensor for job in overlapped])
            copies = Copies(self._device.mark(), overlapped)
        except RuntimeError as error:
            with contextlib.suppress(RuntimeError):  # a device that has failed for good writes nothing more
                self._device.mark().wait()
            raise CopyError(f"copying from the device failed: {str(error).splitlines()[0]}") from None
        self._running.append(copies)
        return copies

    def hold_back(self) -> None:
        """Calls `Copies.hold_back` once for each save's copies."""
        running, self._running = self._running, []
        for copies in running:
            copies.hold_back()

    def close(self) -> None:
        """Removes the hook on optimizers."""
        self.hold_back()
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
