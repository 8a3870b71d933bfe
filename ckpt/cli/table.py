"""The tables of `holdfast ckpt`, printed page by page, because rich measures every row before it prints the first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import typer

from ckpt.cli.output import printable


def show_table(columns: Sequence[str], pages: Iterable[Iterable[Sequence[str]]], right: Collection[str] = ()) -> None:
    """Prints rows below a heading. A column is as wide as its widest cell so far.

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
