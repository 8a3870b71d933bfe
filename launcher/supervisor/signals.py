"""Signals to the supervisor, as inputs of the core."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Iterator

from launcher.core import inputs
from launcher.core.inputs import Input
from launcher.runner.step_signals import WARNINGS

log = logging.getLogger(__name__)


@contextlib.contextmanager
def signals_into(inbox: asyncio.Queue[Input]) -> Iterator[None]:
    """Put SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 (the time limit is near) into the inbox. Restores the handlers after."""
    loop = asyncio.get_running_loop()
    given: dict[signal.Signals, Input] = {
        signal.SIGTERM: inputs.Terminated(),
        signal.SIGINT: inputs.CancelAsked(),
    }
    given |= dict.fromkeys(WARNINGS, inputs.TimeWarned())
    before = {
        number: signal.signal(number, lambda *_, found=found: loop.call_soon_threadsafe(inbox.put_nowait, found))
        for number, found in given.items()
    }
    try:
        yield
    finally:  # asyncio's remove_signal_handler() would set the default action, which ends the process, for a moment
        for number, earlier in before.items():
            signal.signal(number, earlier)


def log_signal(given: Input) -> None:
    """Logs an input that is a signal."""
    if isinstance(given, inputs.Terminated):
        log.info("SIGTERM received by %s", given.node or "the supervisor")
    elif isinstance(given, inputs.TimeWarned):
        log.info("Slurm warns that the time limit is near")
