"""How verbs print: tables and pages, plain in a pipe; JSON in one form."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_PIPE_WIDTH = 10_000


def print_json(facts: Any) -> None:
    typer.echo(json.dumps(facts, indent=2, default=str))


def print_block(block: RenderableType) -> None:
    """As it is on a terminal; elsewhere without the blanks that fill up its lines."""
    console = stdout_console()
    if console.is_terminal:
        return console.print(block)
    with console.capture() as capture:
        console.print(block)
    return typer.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def stdout_console() -> Console:
    """Colours on a terminal; elsewhere plain lines, wide enough not to be folded."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)
