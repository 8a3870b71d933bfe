"""Progress of a long operation: a bar or what is waited for on a terminal, else a line of a bar now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from ckpt.cli.output import printable

_SHOW_AFTER_S = 2.0
_LINE_EVERY_S = 10.0


def counted(steps: int) -> str:
    """ "1 step", "2 steps"."""
    return f"{steps} step" if steps == 1 else f"{steps} steps"


class Waiting:
    """Shows on standard error what is waited for, after two seconds and only on a terminal; a context manager.

    Print nothing within it.
    """

    def __init__(self, what: str, *, quiet: bool = False, console: Console | None = None) -> None:
        """
        Args:
            what: what happens, for example "listing s3://bucket/prefix".
            quiet: whether to show nothing, for programs that read the output.
        """
        console = console or Console(stderr=True)
        self._status = console.status(printable(what), spinner="line")
        self._timer = threading.Timer(_SHOW_AFTER_S, self._status.start)
        self._timer.daemon = True
        self._is_shown = console.is_terminal and not quiet

    def __enter__(self) -> Waiting:
        if self._is_shown:
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            self._timer.cancel()
            self._timer.join()
            self._status.stop()


class Bar:
    """Counts bytes; a context manager. Prints on standard error the bytes done, the rate and the time left."""

    def __init__(
        self,
        what: str,
        total_bytes: int,
        *,
        quiet: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            quiet: whether to print nothing, for programs that read the output.
        """
        self._what = what
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._quiet = quiet
        self._console = console or Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._progress = Progress(*columns, TimeRemainingColumn(), console=self._console, transient=True)
        self._task = self._progress.add_task(what, total=total_bytes)
        self._clock = clock
        self._since_s = clock()
        self._said_s = self._since_s + _SHOW_AFTER_S - _LINE_EVERY_S
        self._shown = False

    def advance(self, nbytes: int) -> None:
        """Counts `nbytes` more bytes. May be called from any thread."""
        self._done_bytes += nbytes
        self._progress.advance(self._task, nbytes)
        now = self._clock()
        if self._quiet or now - self._since_s <= _SHOW_AFTER_S:
            return
        if not self._console.is_terminal:
            if now - self._said_s > _LINE_EVERY_S:
                self._said_s = now
                self._console.print(self._line(now - self._since_s), highlight=False, soft_wrap=True)
        elif not self._shown:
            self._shown = True
            self._progress.start()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._progress.stop()

    def _line(self, seconds: float) -> str:
        rate = self._done_bytes / seconds
        left = f", {max(0, self._total_bytes - self._done_bytes) / rate:.0f} s left" if rate else ""
        return (
            f"{self._what}: {decimal(self._done_bytes)} of {decimal(self._total_bytes)}, {decimal(int(rate))}/s{left}"
        )
