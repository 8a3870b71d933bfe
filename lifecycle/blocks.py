"""Tables and lines for people: as wide as the terminal; elsewhere one line each, without blanks at their ends."""

from __future__ import annotations

import io
import sys
from typing import IO

from rich.console import Console, RenderableType

_WIDE = 10_000  # a file or a pipe has no lines to break


def print_block(block: RenderableType, out: IO[str] | None = None) -> None:
    """Prints it.

    Args:
        block: what rich can print.
        out: where to; None is standard output.
    """
    out = out or sys.stdout
    if out.isatty():
        return Console(file=out).print(block, highlight=False)
    text = io.StringIO()
    Console(file=text, width=_WIDE).print(block, highlight=False)
    out.write("".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()))
    return None
