"""A bar on the terminal for what takes a while; nothing for what is quick, or where nobody looks."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

_SHOW_AFTER_S = 2.0


class Bar:
    """Counts bytes; use as a context. Shown on standard error once it has taken two seconds."""

    def __init__(
        self,
        what: str,
        total_bytes: int,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._progress = Progress(*columns, TimeRemainingColumn(), console=self._console, transient=True)
        self._task = self._progress.add_task(what, total=total_bytes)
        self._clock = clock
        self._since_s = clock()
        self._shown = False

    def advance(self, nbytes: int) -> None:
        """So many more bytes are done."""
        if not self._shown and self._console.is_terminal and self._clock() - self._since_s > _SHOW_AFTER_S:
            self._shown = True
            self._progress.start()
        self._progress.advance(self._task, nbytes)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._progress.stop()
