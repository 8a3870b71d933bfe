"""Prints findings, and the list of checks, as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import IO

from rich.table import Table
from rich.text import Text

from holdfast.blocks import print_block, print_json
from lifecycle.health.check import Check
from lifecycle.health.finding import Status
from lifecycle.health.verdict import Verdict
from lifecycle.instance import Expected

_STYLES = {"ok": "green", "warning": "yellow", "critical": "bold red", "unknown": "magenta", "skipped": "dim"}


def print_findings(verdict: Verdict, expected: Expected | None, out: IO[str], brief: bool = False) -> None:
    """Prints a row for each check, the skipped checks by reason, and a summary line.

    Args:
        verdict: the verdict of this run.
        expected: the hardware of the machine's type.
        out: the stream.
        brief: whether to leave out checks that are ok or skipped, for one table of many nodes.
    """
    table = Table("check", "status", "measured", "expected", "advice", box=None, pad_edge=False)
    skipped: dict[str, list[str]] = {}
    for row in verdict.checks:
        if row["status"] == Status.SKIPPED.word:
            skipped.setdefault(row["measured"], []).append(row["name"])
            continue
        if brief and row["status"] == Status.OK.word:
            continue
        style = _STYLES[row["status"]]
        words = (row["measured"], row["expected"], row["advice"])
        table.add_row(row["name"], Text(row["status"], style=style), *(Text(word, overflow="fold") for word in words))
    if table.row_count or not brief:
        print_block(table, out)
    for reason, names in () if brief else skipped.items():
        print_block(Text(f"skipped, {reason}: {' '.join(names)}", style=_STYLES["skipped"]), out)
    counts = Counter(row["status"] for row in verdict.checks)
    told = ", ".join(f"{counts[status.word]} {status.word}" for status in Status if counts[status.word])
    machine = expected.instance if expected else "unknown machine type, nothing to compare with"
    print_block(f"{verdict.node}: {verdict.status.word} ({told}); {machine}", out)


def print_catalog(checks: Sequence[Check], as_json: bool) -> None:
    """Prints every check, the levels that run it, and what holds when it is ok."""
    rows = [
        {
            "name": check.name,
            "levels": [level.word for level in check.levels],
            "limit_s": check.limit_s,
            "promise": check.promise,
        }
        for check in checks
    ]
    if as_json:
        print_json(rows)
        return
    table = Table("check", "level", "limit", "OK means", box=None, pad_edge=False)
    for check in checks:
        table.add_row(check.name, check.levels[0].word, f"{check.limit_s:g} s", Text(check.promise))
    print_block(table)
