"""What was measured, beside what it is compared with in the same run."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured value. The first peer is the one that `ratio` is against: value / peer."""

    name: str
    value: float | None  # None: could not be measured here, `missing` says why
    unit: str
    peers: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # why a peer is not among them

    @property
    def ratio(self) -> float | None:
        first = next(iter(self.peers.values()), 0.0)
        return self.value / first if first and self.value is not None else None

    def to_json(self) -> dict[str, Any]:
        row = {"value": self.value, "unit": self.unit, "peer": self.peers, "ratio": self.ratio}
        return {**row, "missing": self.missing} if self.missing else row


def timed_s(work: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def timed_and_cpu_s(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds that a call takes, and of all cores that this process uses meanwhile."""
    before = time.process_time()
    seconds = timed_s(work)
    return seconds, time.process_time() - before


def median(values: Iterable[float]) -> float:
    """The middle of the repeats; one slow repeat on a busy machine does not count."""
    return statistics.median(values)


def as_json(figures: Iterable[Figure]) -> dict[str, Any]:
    """By name, as other benchmarks print theirs."""
    return {figure.name: figure.to_json() for figure in figures}


def as_table(figures: Iterable[Figure], title: str) -> Table:
    """One line for each value, one below for each peer with the ratio to it."""
    table = Table(title=f"{title}, {os.cpu_count()} cores", title_justify="left")
    table.add_column("measured")
    for column in ("value", "peer's", "ratio"):
        table.add_column(column, justify="right")
    for figure in figures:
        table.add_row(figure.name, _text(figure.value, figure.unit))
        for peer, value in figure.peers.items():
            ratio = f"{figure.value / value:.2f}" if value and figure.value is not None else "-"
            table.add_row(f"  beside {peer}", "", _text(value, figure.unit), ratio)
        for peer, reason in figure.missing.items():
            table.add_row(f"  no {peer}: {reason}")
    return table


def _text(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    digits = {"s": 4, "s/GB": 2}.get(unit, 0)
    return f"{value:,.{digits}f} {unit}".rstrip()
