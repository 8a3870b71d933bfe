"""Prints the findings of `holdfast doctor`, the worst first, each with the next step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lifecycle import Finding, Status

_STYLES = {"ok": "green", "warning": "yellow", "critical": "bold red", "unknown": "magenta", "skipped": "dim"}
_ORDER = (Status.CRITICAL, Status.WARNING, Status.UNKNOWN, Status.OK, Status.SKIPPED)


def page(findings: Sequence[Finding]) -> RenderableType:
    """A row for each finding, and one line with their number by status."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in sorted(findings, key=lambda finding: _ORDER.index(finding.status)):
        word = finding.status.word
        line = finding.measured
        if finding.status is not Status.OK and finding.expected:
            line += f"; expected {finding.expected}"
        text = Text(line)
        if finding.advice:
            text.append(f"\nnext: {finding.advice}", style="bold")
        table.add_row(Text(word, style=_STYLES[word]), Text(finding.check), text)
    counts = Counter(finding.status for finding in findings)
    total = ", ".join(f"{counts[status]} {status.word}" for status in _ORDER if counts[status])
    return Group(table, Text(""), Text(f"{verdict(findings).word}: {total}"))


def verdict(findings: Sequence[Finding]) -> Status:
    """The worst status: critical, then warning, then unknown, then ok."""
    return next((status for status in _ORDER if any(finding.status is status for finding in findings)), Status.OK)
