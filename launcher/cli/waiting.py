"""One line with a job's state that is redrawn on a terminal, and nothing elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import IO

from rich.live import Live
from rich.text import Text

from holdfast.blocks import Escaped, console_on
from launcher.history.status import JobStatus
from launcher.history.view import standing


class StandingLine:
    """The line. It is removed at the end.

    Args:
        out: the terminal; on another stream nothing is written.
    """

    def __init__(self, out: IO[str]) -> None:
        self._live: Live | None = None
        if out.isatty():
            self._live = Live(
                Text(""),
                console=console_on(out),
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )

    def __enter__(self) -> StandingLine:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, status: JobStatus) -> None:
        if self._live is not None:
            self._live.update(Escaped(standing(status)), refresh=True)
