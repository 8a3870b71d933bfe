"""`holdfast usage`: node-hours of each account, own and borrowed, from Slurm's accounting."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Annotated

import typer

from holdfast.blocks import WaitLine, print_json
from launcher.cli.options import Json


def usage(
    since: Annotated[
        str, typer.Option(help="Count from this time on: a number of days, or a date: 2026-11-01.", metavar="TIME")
    ] = "7d",
    as_json: Json = False,
) -> None:
    """Show the node-hours of each Slurm account: of its own jobs, and of boosters, which use what others lend.

    A job counts as a booster by its name, NAME-booster-of-JOB-bN. It needs slurmdbd. A site may show users only their
    own jobs (PrivateData).
    """
    from launcher.history.usage import usage_of
    from slurm import Slurm

    start = _start(since)
    with WaitLine("asking Slurm's accounting"):
        found = usage_of(Slurm().used(start).splitlines())
    if as_json:
        return print_json([asdict(each) for each in found])
    if not found:
        typer.echo(f"no job has run since {since}, as far as Slurm's accounting shows it")
        return None
    from rich.table import Table

    from holdfast.blocks import print_block

    table = Table(box=None, pad_edge=False)
    for heading in ("account", "own node-h", "borrowed node-h", "jobs", "boosters"):
        table.add_column(heading, justify="left" if heading == "account" else "right")
    for each in found:
        hours = (f"{each.own_node_h:.1f}", f"{each.borrowed_node_h:.1f}")
        table.add_row(each.account, *hours, str(each.jobs), str(each.boosters))
    print_block(table)
    return None


def _start(text: str) -> str:
    """sacct's --starttime."""
    from launcher.errors import UsageError

    if days := re.fullmatch(r"(\d{1,4})d", text):
        return f"now-{days[1]}days"
    if re.fullmatch(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d)?)?", text):
        return text
    raise UsageError(f"--since: got {text!r:.40}, expected a number of days (7d) or a date (2026-11-01)")
