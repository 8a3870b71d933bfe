"""Prints tables and lines: as wide as the terminal; to a file or pipe one line a row, without trailing blanks.

Names and reasons may come from other users. Markup in them is not interpreted, and control characters are escaped.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported when something is printed: that takes a tenth of a second
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

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
