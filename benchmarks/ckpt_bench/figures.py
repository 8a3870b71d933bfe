"""The results: measured values, each with the values of its peers from the same run."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured value, and the same value of other programs or methods (peers)."""

    name: str
    value: float | None  # None: could not be measured; `missing` has the reason
    unit: str
    peers: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # peers without a value, with the reason

    @property
    def ratio(self) -> float | None:
        """The value divided by that of the first peer."""
        first = next(iter(self.peers.values()), 0.0)
        return self.value / first if first and self.value is not None else None

    def to_json(self) -> dict[str, Any]:
        row = {"value": self.value, "unit": self.unit, "peer": self.peers, "ratio": self.ratio}
        return {**row, "missing": self.missing} if self.missing else row


def timed_s(work: Callable[[], Any]) -> float:
    """The seconds that a call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def timed_and_cpu_s(work: Callable[[], Any]) -> tuple[float, float]:
    """The seconds that a call takes, and the CPU seconds that this process uses during the call."""
    before = time.process_time()
    seconds = timed_s(work)
    return seconds, time.process_time() - before


def medians(repeats: Mapping[str, Iterable[float]]) -> dict[str, float]:
    """The median of each name's repeats. A slow repeat on a busy machine has no effect on it."""
    return {name: statistics.median(values) for name, values in repeats.items()}


def as_json(figures: Iterable[Figure]) -> dict[str, Any]:
    """The figures as JSON, by name."""
    return {figure.name: figure.to_json() for figure in figures}


def as_table(figures: Iterable[Figure], title: str) -> Table:
    """A table with a line for each value, and below it a line for each peer with the ratio to it."""
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
