"""What somebody outside asks of a running job: to stop at a step boundary, for now or for good, or to end at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterator

from launcher.runner.step_signals import WARNINGS

log = logging.getLogger(__name__)

HALT = "halt"  # the reason to stop of a user who wants the job to end: nobody requeues it
OURS_TO_REQUEUE = ("time_limit", "preempted", "batch_script_lost")  # reasons to stop after which nobody else does
STARTS_AGAIN = ("requeue", "batch_script_lost")  # after these the job is in the queue again before it has ended


class Requests:
    """Takes the signals and what Slurm says of them.

    Args:
        why_terminated: what a SIGTERM means: `Cluster.why_terminated`. It blocks.
        warned: called when a signal says that the time limit is near.
        told: called at each request with its reason ("cancel", "requeue", HALT or one of OURS_TO_REQUEUE) when it is
            new, and with None when it repeats one.

    Attributes:
        stop: why the job is to stop at a step boundary (requeue, HALT or one of OURS_TO_REQUEUE); None if it is not.
        stop_s: when that was asked (time.monotonic).
        cancelled: whether it is to end at once.
    """

    def __init__(
        self, why_terminated: Callable[[], str], warned: Callable[[], None], told: Callable[[str | None], None]
    ) -> None:
        self.stop: str | None = None
        self.stop_s = 0.0
        self.cancelled = False
        self._halts = False
        self._why_terminated = why_terminated
        self._warned = warned
        self._told = told
        self._judging: asyncio.Task[None] | None = None

    @property
    def any(self) -> bool:
        """Whether anything has been asked."""
        return self.cancelled or self.stop is not None

    @property
    def is_told(self) -> bool:
        """Whether anything has been asked, or is about to be: what a SIGTERM means may not be known yet."""
        return self.any or self._judging is not None

    @property
    def outcome(self) -> str:
        """How the attempt ends that was asked to: cancelled, halted, or stopped to go on when the job starts again.

        What the scheduler starts again in any case ends at its next start: the request to halt is there still.
        """
        if self.cancelled:
            return "cancelled"
        return "halted" if self._halts and self.stop not in STARTS_AGAIN else "stopped"

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Takes SIGTERM, SIGINT, and USR1 and USR2 (the time limit is near); gives them back to whoever had them."""
        loop = asyncio.get_running_loop()
        handlers: dict[signal.Signals, Callable[[], None]] = {
            signal.SIGTERM: lambda: self.judge_sigterm("the supervisor"),
            signal.SIGINT: self.cancel,
        }
        handlers |= dict.fromkeys(WARNINGS, self._warned)
        before = {
            number: signal.signal(number, lambda *_, told=handler: loop.call_soon_threadsafe(told))
            for number, handler in handlers.items()
        }
        try:
            yield
        finally:  # asyncio's own way to give them back lets each end the process for a moment
            for number, earlier in before.items():
                signal.signal(number, earlier)

    def judge_sigterm(self, where: str) -> None:
        """Somebody got a SIGTERM: Slurm requeues, preempts or cancels the job, or a user asks us to stop."""
        if self._judging is None:
            log.info("SIGTERM at %s", where)
            self._judging = asyncio.create_task(self._ask_why_terminated())

    def ask_stop(self, reason: str) -> None:
        """Asks for a stop. To halt is not urgent: any other reason takes its place, with a deadline of its own."""
        self._halts |= reason == HALT
        is_new = self.stop is None or (self.stop == HALT and reason != HALT)
        if is_new:
            self.stop, self.stop_s = reason, time.monotonic()
        self._told(reason if is_new else None)

    def cancel(self) -> None:
        is_new, self.cancelled = not self.cancelled, True
        self._told("cancel" if is_new else None)

    async def settled(self) -> None:
        """Returns when it is known what the SIGTERM means, if there was one."""
        if self._judging is not None:
            await asyncio.wait({self._judging})

    async def _ask_why_terminated(self) -> None:
        why = await asyncio.to_thread(self._why_terminated)
        if why == "cancel":
            self.cancel()
        else:
            self.ask_stop(why)
