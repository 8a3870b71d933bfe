"""Prints tables and lines: as wide as the terminal; to a file or pipe one line a row, without trailing blanks.

Names and reasons may come from other users. Markup in them is not interpreted, and control characters are escaped.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported when something is printed: that takes a tenth of a second
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

_WAIT_POLL_S = 0.5
_WIDE = 10_000  # a file or a pipe has no lines to break


def print_block(block: RenderableType, out: IO[str] | None = None) -> None:
    """Prints a block.

    Args:
        block: an object that rich can print.
        out: the stream; None is stdout.
    """
    out = out or sys.stdout
    if out.isatty():
        return console_on(out).print(Escaped(block))
    text = io.StringIO()
    console_on(text).print(Escaped(block))
    out.write("".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()))
    return None


def print_json(facts: Any) -> None:
    """Prints data as JSON, with an indent of two spaces."""
    print(json.dumps(facts, indent=2, default=str))


def console_on(out: IO[str]) -> Console:
    """A rich console: colours on a terminal, plain lines without wrapping elsewhere; no markup."""
    from rich.console import Console

    return Console(file=out, width=None if out.isatty() else _WIDE, markup=False, emoji=False, highlight=False)


class WaitLine:
    """A line on stderr that says what is waited for, after two seconds and only on a terminal. A context manager.

    Args:
        what: what happens, for example "checking this node".
        out: the stream; None is stderr.
        shows_by_itself: whether a thread shows the line. Without it, call show(): a process that forks has no threads.
        after_s: how long nothing is shown.
    """

    def __init__(
        self, what: str, out: IO[str] | None = None, *, shows_by_itself: bool = True, after_s: float = 2.0
    ) -> None:
        self._what = what
        self._out = out or sys.stderr
        self._begun_s = time.monotonic()
        self._after_s = after_s
        self._is_shown = False
        self._ends = threading.Event()
        is_terminal = self._out is not None and self._out.isatty()
        self._show: Callable[[str], None] = self._write if is_terminal else lambda _: None
        has_thread = is_terminal and shows_by_itself
        self._thread = threading.Thread(target=self._keep_showing, daemon=True) if has_thread else None

    def __enter__(self) -> WaitLine:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        if self._thread is not None:
            self._thread.join()
        if self._is_shown:
            self._out.write("\r\x1b[K")
            self._out.flush()

    def show(self, progress: str = "") -> None:
        """Show the line, with how far it has come."""
        self._show(progress)

    def _keep_showing(self) -> None:
        while not self._ends.wait(_WAIT_POLL_S):
            self._write("")

    def _write(self, progress: str) -> None:
        seconds = time.monotonic() - self._begun_s
        if seconds >= self._after_s:
            self._is_shown = True
            text = f"{self._what}{f': {progress}' if progress else ''}, {seconds:.0f} s"
            self._out.write(f"\r{text[: shutil.get_terminal_size().columns - 1]}\x1b[K")
            self._out.flush()


def printable(text: str) -> str:
    """Text on one line, with control characters escaped."""
    return text if text.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


@dataclass(frozen=True)
class Escaped:
    """A block whose text is escaped after its layout."""

    block: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        from rich.segment import Segment

        for segment in console.render(self.block, options):
            # A wrapped text without a style is one segment, with its line breaks inside.
            text = "\n".join(map(printable, segment.text.split("\n")))
            yield segment if segment.control else Segment(text, segment.style)
