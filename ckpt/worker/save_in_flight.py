"""One save of this rank, from its slot to the message `staged`, and the thread that waits for its copies."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ckpt.agent.rpc.client import AgentClient
from ckpt.format.layout import Layout
from ckpt.format.line import Line
from ckpt.memory.arena import Slot
from ckpt.worker.save.async_copy import Copies

log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class SaveInFlight:
    """A save that has a slot with enough memory."""

    step: int
    line: Line
    slot: Slot
    nbytes: int
    message: dict[str, Any]  # the other fields of `staged`
    since_s: float = field(default_factory=time.monotonic)
    copies: Copies | None = None  # those that still run

    def staged(self, layout: Layout, copies: Copies | None = None) -> None:
        """The slot has the shard, once these copies have ended."""
        self.copies = copies
        self.message |= {"slot": self.slot.index, "step": self.step, "layout": layout.to_json()}
        self.message["descent"] = self.line.to_json()

    def send(self, agent: AgentClient) -> None:
        """Passes the shard to the agent once all its bytes are copied. Raises CopyError or AgentError."""
        if self.copies is not None:
            self.copies.wait()
        agent.send("staged", **self.message)


class Background:
    """A thread that runs functions one after another. It starts at the first call of `do`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._todo: queue.Queue[Callable[[], None]] = queue.Queue()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        return self._todo.unfinished_tasks > 0

    def do(self, work: Callable[[], None]) -> None:
        """Runs `work` after all earlier work."""
        self._todo.put(work)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def settle(self, timeout_s: float) -> bool:
        """Whether all work is complete within `timeout_s`."""
        with self._todo.all_tasks_done:
            return self._todo.all_tasks_done.wait_for(lambda: not self.busy, timeout_s)

    def _run(self) -> None:
        while True:
            work = self._todo.get()
            try:
                work()
            except Exception:
                log.exception("%s: unexpected error", self._name)
            finally:
                self._todo.task_done()
