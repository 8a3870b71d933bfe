"""Tables and lines for people: as wide as the terminal; elsewhere one line each, without blanks at their ends.

Names and reasons may be a stranger's. No markup in them is followed, and what a terminal obeys is shown as an escape.
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
    """Prints it.

    Args:
        block: what rich can print.
        out: where to; None is standard output.
    """
    out = out or sys.stdout
    if out.isatty():
        return console_on(out).print(_Escaped(block))
    text = io.StringIO()
    console_on(text).print(_Escaped(block))
    out.write("".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()))
    return None


def print_json(facts: Any) -> None:
    """Prints facts as JSON: keys as the code spells them, two blanks for each level."""
    print(json.dumps(facts, indent=2, default=str))


def console_on(out: IO[str]) -> Console:
    """Colours on a terminal; elsewhere plain lines, wide enough not to be folded. No markup."""
    from rich.console import Console

    return Console(file=out, width=None if out.isatty() else _WIDE, markup=False, emoji=False, highlight=False)


def printable(text: str) -> str:
    """Text on one line, with an escape for each character that a terminal would obey."""
    return text if text.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


@dataclass(frozen=True)
class _Escaped:
    """A block whose text is made printable once it is laid out."""

    block: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        from rich.segment import Segment

        for segment in console.render(self.block, options):
            text = segment.text if segment.text == "\n" else printable(segment.text)
            yield segment if segment.control else Segment(text, segment.style)
