"""Storage that does not answer, such as a mount whose server is down: a warning, and an exit on Ctrl-C.

The kernel blocks a process that accesses such a mount. No Python signal handler runs then, so only _exit ends it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

_SAY_AFTER_S = 3.0
_LOOK_EVERY_S = 0.5
_HELD_LOOKS = 3  # consecutive checks that find the same interrupt pending
_INTERRUPTED = 128 + signal.SIGINT
_SHOW_CURSOR = "\x1b[?25h"


class Heard:
    """Called whenever `where`, a path or URL, has answered."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.last_s = time.monotonic()

    def __call__(self) -> None:
        self.last_s = time.monotonic()

    def turn_to(self, where: str) -> None:
        """Sets the place that is waited for from now on."""
        self.where = where
        self()


@contextmanager
def awaiting(where: str) -> Iterator[Heard]:
    """Prints once on standard error what is waited for, each time it has not answered for some seconds."""
    heard, over = Heard(where), threading.Event()
    threading.Thread(target=_watch, args=(heard, over), daemon=True).start()
    try:
        yield heard
    finally:
        over.set()


def _watch(heard: Heard, over: threading.Event) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # signals go to the main thread
    said_of_s, held_looks = -1.0, 0
    while not over.wait(_LOOK_EVERY_S):
        last_s = heard.last_s
        if last_s != said_of_s and time.monotonic() - last_s > _SAY_AFTER_S:
            said_of_s = last_s
            typer.echo(f"holdfast ckpt: waiting for {heard.where}: no answer for {_SAY_AFTER_S:g} s", err=True)
        held_looks = held_looks + 1 if _is_interrupt_unheard() else 0
        if held_looks == _HELD_LOOKS:
            cursor = _SHOW_CURSOR if sys.stderr.isatty() else ""
            typer.echo(f"{cursor}holdfast ckpt: given up: {heard.where} does not answer; is its server up?", err=True)
            os._exit(_INTERRUPTED)


def _is_interrupt_unheard() -> bool:
    """Whether the main thread has a pending Ctrl-C but is blocked in the kernel."""
    status = Path("/proc/self/status").read_text()
    pending = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(mask >> (signal.SIGINT - 1) & 1 for mask in pending)
