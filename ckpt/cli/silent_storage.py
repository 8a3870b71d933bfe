"""Storage that keeps silent, as a mount does whose server is gone: a verb says what it waits for, and Ctrl-C ends it.

The kernel holds whoever asks such a mount: no handler of Python's runs, only the end of the process gets it out.
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
_HELD_LOOKS = 3  # in a row that find the same interrupt unheard
_INTERRUPTED = 128 + signal.SIGINT
_SHOW_CURSOR = "\x1b[?25h"


class Heard:
    """To be called when something was heard of `where`: path or URL, for people."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.last_s = time.monotonic()

    def __call__(self) -> None:
        self.last_s = time.monotonic()

    def turn_to(self, where: str) -> None:
        """Another place is waited for from now on."""
        self.where = where
        self()


@contextmanager
def awaiting(where: str) -> Iterator[Heard]:
    """Says once on standard error what is waited for, each time nothing is heard of it for some seconds."""
    heard, over = Heard(where), threading.Event()
    threading.Thread(target=_watch, args=(heard, over), daemon=True).start()
    try:
        yield heard
    finally:
        over.set()


def _watch(heard: Heard, over: threading.Event) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # it is for the main thread
    said_of_s, held_looks = -1.0, 0
    while not over.wait(_LOOK_EVERY_S):
        last_s = heard.last_s
        if last_s != said_of_s and time.monotonic() - last_s > _SAY_AFTER_S:
            said_of_s = last_s
            typer.echo(f"holdfast ckpt: waiting for {heard.where}: nothing heard for {_SAY_AFTER_S:g} s", err=True)
        held_looks = held_looks + 1 if _is_interrupt_unheard() else 0
        if held_looks == _HELD_LOOKS:
            cursor = _SHOW_CURSOR if sys.stderr.isatty() else ""
            typer.echo(f"{cursor}holdfast ckpt: given up: {heard.where} does not answer; is its server up?", err=True)
            os._exit(_INTERRUPTED)


def _is_interrupt_unheard() -> bool:
    """Whether the main thread has a Ctrl-C to hear of and is held by the kernel."""
    status = Path("/proc/self/status").read_text()
    pending = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(mask >> (signal.SIGINT - 1) & 1 for mask in pending)
