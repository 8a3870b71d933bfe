"""Error messages, exit codes, JSON and tables of all verbs of `holdfast ckpt`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer

from ckpt.errors import CheckpointError, ConfigError, NamespaceError, one_line
from ckpt.tiers.s3_client import AccessError

FAILED, USAGE, UNREAD = 1, 2, 3
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_BAD_INPUT = (ConfigError, NamespaceError, AccessError, FileNotFoundError, NotADirectoryError, PermissionError)


class VerbFailed(Exception):
    """Ends the program. The command line prints the message as one error line and exits with `exit_code`."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def end(message: str, code: int = USAGE) -> NoReturn:
    raise VerbFailed(message, code)


def print_json(facts: Any) -> None:
    """Prints JSON in the form that all verbs of `holdfast` use."""
    typer.echo(json.dumps(facts, indent=2))


@contextmanager
def reported(unread: int = FAILED) -> Iterator[None]:
    """Ends the program on an error: with USAGE for bad input or a wrong credential, else with FAILED.

    Args:
        unread: the exit code if storage fails.
    """
    try:
        yield
    except (CheckpointError, OSError) as error:
        failed = unread if isinstance(error, OSError) else FAILED
        end(one_line(error), USAGE if isinstance(error, _BAD_INPUT) else failed)


def show_table(columns: Sequence[str], pages: Iterable[Iterable[Sequence[str]]], right: Collection[str] = ()) -> None:
    """Prints rows below a heading, page by page, because rich measures every row before it prints the first.

    A column is as wide as its widest cell so far.

    Args:
        pages: pages of rows with a cell for each column; at least one page, which may be empty.
    """
    align = [str.rjust if column in right else str.ljust for column in columns]
    widths = [0] * len(columns)

    def line(cells: Iterable[str]) -> str:
        return "  ".join(set_in(cell, width) for set_in, cell, width in zip(align, cells, widths, strict=True)).rstrip()

    for number, page in enumerate(pages):
        rows = [list(map(printable, row)) for row in page]
        for row in (columns, *rows):
            widths = list(map(max, widths, map(len, row)))
        if number == 0:
            typer.secho(line(columns), bold=True)
        for row in rows:
            typer.echo(line(row))


def printable(text: str) -> str:
    """Text made safe for a terminal. Names and reasons in a tier may come from others and contain control sequences."""
    return text if text.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
