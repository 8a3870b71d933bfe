"""Copies from an accelerator that go on while training does, and the gate that keeps the state as it was.

Parameters and optimizer state change in an optimizer's step only: they are copied beside training, and a hook on every
optimizer holds the next step back until they are (on CUDA the GPU waits, not the CPU). All other tensors may change at
any time, so their copies are enqueued between what training has enqueued and what it will. A parameter that something
else changes in place meanwhile is noticed by its version, and the save fails.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ckpt.errors import CopyError
from ckpt.worker.lazy_torch import torch
from ckpt.worker.save.cuda import CopyMark, Device

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CopyJob:
    """One tensor to copy."""

    key: str
    view: torch.Tensor
    tensor: torch.Tensor
    stepped: bool  # changes in an optimizer's step only


class Copies:
    """One save's copies, from their start to the moment they are all there."""

    def __init__(self, mark: CopyMark, stepped: Sequence[CopyJob]) -> None:
        self._mark = mark
        self._versions = [(job.key, job.tensor, job.tensor._version) for job in stepped]
        self._lock = threading.Lock()
        self._held_back = False
        self._changed = ""

    def hold_back(self) -> None:
        """What training does from now on does not reach the copies."""
        with self._lock:
            if not self._held_back:
                self._look()
                self._mark.hold_back()

    def wait(self) -> None:
        """Returns when all bytes are there.

        Raises:
            CopyError: the device failed, or a tensor was changed meanwhile by something other than an optimizer.
        """
        try:
            self._mark.wait()
        except RuntimeError as error:
            raise CopyError(f"copying from the device failed: {str(error).splitlines()[0]}") from None
        with self._lock:
            if not self._held_back:
                self._look()
        if self._changed:
            raise CopyError(
                f"{self._changed} was changed while it was copied, and not by an optimizer's step; "
                "change parameters before save(), or after the next step"
            )

    def _look(self) -> None:
        self._held_back = True
        self._changed = next((key for key, tensor, version in self._versions if tensor._version != version), "")
        self._versions.clear()


class Overlap:
    """Starts copies, and holds every optimizer's step back until those of before are done."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._hook: Any = None
        self._running: list[Copies] = []

    def start(self, jobs: Sequence[CopyJob]) -> Copies:
        """Enqueues copies of tensors that the device holds.

        Raises:
            CopyError: the device refused; nothing is being copied then.
        """
        if self._hook is None:
            from torch.optim.optimizer import register_optimizer_step_pre_hook

            self._hook = register_optimizer_step_pre_hook(lambda *_: self.hold_back())
        try:
            self._device.begin([job.tensor for job in jobs])
            for beside in (False, True):
                now = [job for job in jobs if job.stepped is beside]
                self._device.copy([job.view for job in now], [job.tensor for job in now], beside=beside)
            copies = Copies(self._device.mark(), [job for job in jobs if job.stepped])
        except RuntimeError as error:
            with contextlib.suppress(RuntimeError):  # a device that has failed for good writes nothing any more
                self._device.mark().wait()
            raise CopyError(f"copying from the device failed: {str(error).splitlines()[0]}") from None
        self._running.append(copies)
        return copies

    def hold_back(self) -> None:
        """Holds back what training does next; each save's copies need it once."""
        running, self._running = self._running, []
        for copies in running:
            copies.hold_back()

    def close(self) -> None:
        """No optimizer waits for us any more."""
        self.hold_back()
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


class Background:
    """A thread that does one thing after the other, started when it is first needed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._todo: queue.Queue[Callable[[], None]] = queue.Queue()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        return self._todo.unfinished_tasks > 0

    def do(self, work: Callable[[], None]) -> None:
        """Does it after what was asked for before."""
        self._todo.put(work)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def settle(self, timeout_s: float) -> bool:
        """Whether all that was asked for is done within a time."""
        with self._todo.all_tasks_done:
            return self._todo.all_tasks_done.wait_for(lambda: not self.busy, timeout_s)

    def _run(self) -> None:
        while True:
            work = self._todo.get()
            try:
                work()
            except Exception:
                log.exception("%s: this should not happen", self._name)
            finally:
                self._todo.task_done()
