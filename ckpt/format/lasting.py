"""The steps of a tier that stay besides the newest ones: milestones, and the best by a metric.

A script gives the metrics of a save; its manifest has them. Only finite numbers count, so a save whose metric is
missing, infinite or not a number is never among the best.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from ckpt.errors import CorruptError

NUMBER = "n"  # the key of `keep_best` with the number of steps
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,99}")
_MOST_METRICS = 64

Metrics = Mapping[str, float]
Given = tuple[Any, ...]  # a metric's name, a rank, its value; see `merged_metrics`


@dataclass(frozen=True, kw_only=True)
class Best:
    """The metric of `keep_best`, and the number of steps that stay by it."""

    metric: str
    mode: Literal["min", "max"]
    n: int = 1

    @classmethod
    def from_mapping(cls, value: Mapping[str, Any]) -> Best:
        """The rule in a mapping such as `{loss: min, n: 3}`. Raises ValueError that says what is expected."""
        metrics = [(name, mode) for name, mode in value.items() if name != NUMBER]
        n = value.get(NUMBER, 1)
        if len(metrics) != 1 or metrics[0][1] not in ("min", "max") or not is_metric_name(metrics[0][0]):
            raise ValueError("one metric with min or max, and n, such as {loss: min, n: 3}")
        if type(n) is not int or n < 1:
            raise ValueError(f"n, the number of steps, to be a whole number of at least 1, got {n!r:.40}")
        return cls(metric=metrics[0][0], mode=metrics[0][1], n=n)

    def to_mapping(self) -> dict[str, Any]:
        return {self.metric: self.mode, NUMBER: self.n}

    def rank(self, metrics: Metrics) -> float | None:
        """A number that is smaller for a better save; None if the save has no such metric."""
        value = metrics.get(self.metric)
        return None if value is None else value if self.mode == "min" else -value

    def __str__(self) -> str:
        return f"{'lowest' if self.mode == 'min' else 'highest'} {self.metric}"


@dataclass(frozen=True, kw_only=True)
class Lasting:
    """What stays in a tier besides its newest steps: multiples of `every_steps`, and the best ones."""

    every_steps: int | None = None
    best: Best | None = None

    @classmethod
    def from_json(cls, value: Any) -> Lasting:
        """Raises CorruptError if it is malformed. Unknown fields are ignored."""
        try:
            every_steps, best = value.get("keep_every_steps"), value.get("keep_best")
            if every_steps is not None and (type(every_steps) is not int or every_steps < 1):
                raise ValueError(f"keep_every_steps is {every_steps!r:.40}")
            return cls(every_steps=every_steps, best=None if best is None else Best.from_mapping(best))
        except (AttributeError, TypeError, ValueError) as error:
            raise CorruptError(f"rules of retention: malformed: {error}") from None

    def to_json(self) -> dict[str, Any]:
        return {"keep_every_steps": self.every_steps, "keep_best": self.best.to_mapping() if self.best else None}

    def of(self, saves: Iterable[_Scored]) -> dict[_Scored, str]:
        """The saves that stay, each with the reason in a word or two.

        Of several saves of one step only the first counts, and of equal ones the later step is better.

        Args:
            saves: those of one descent, newest first.
        """
        first: dict[int, _Scored] = {}
        for save in saves:
            first.setdefault(save.step, save)
        why = {save: "milestone" for step, save in first.items() if self.every_steps and step % self.every_steps == 0}
        if self.best:
            for place, save in enumerate(best_first(self.best, first.values())[: self.best.n]):
                word = f"best {self.best.metric}" if not place else f"best {self.best.metric}, no. {place + 1}"
                why[save] = f"{why[save]}, {word}" if save in why else word
        return why


class Scored(Protocol):
    """A save with its metrics. Saves must be hashable."""

    @property
    def step(self) -> int: ...

    @property
    def metrics(self) -> Metrics: ...


_Scored = TypeVar("_Scored", bound=Scored)
NOTHING_ELSE = Lasting()


def best_first(best: Best, saves: Iterable[_Scored]) -> list[_Scored]:
    """The saves that have the metric, the best one first; of equal ones the later step."""
    ranked = [(rank, -save.step, save) for save in saves if (rank := best.rank(save.metrics)) is not None]
    return [save for _, _, save in sorted(ranked, key=lambda one: one[:2])]


def merged_metrics(given: Iterable[Given]) -> list[Given]:
    """A row for each metric: its name, the lowest rank that has given it, and the value. If another rank has given
    another value, that rank and its value follow.
    """
    rows: dict[str, Given] = {}
    for name, rank, value, *other in sorted(given, key=lambda row: row[1]):
        row = rows.setdefault(name, (name, rank, value))
        if len(row) == 3 and value != row[2]:
            rows[name] = (*row, rank, value)
        elif len(row) == 3 and other:
            rows[name] = (*row, *other)
    return list(rows.values())


def is_metric_name(name: Any) -> bool:
    """Whether a text can name a metric."""
    return isinstance(name, str) and name != NUMBER and _NAME.fullmatch(name) is not None


def parse_metrics(value: Any) -> dict[str, float]:
    """The metrics in their JSON form. Raises CorruptError unless they are names with finite numbers."""
    if not isinstance(value, dict) or len(value) > _MOST_METRICS:
        raise CorruptError(f"metrics: got {value!r:.80}, expected at most {_MOST_METRICS} names with numbers")
    for name, number in value.items():
        if not is_metric_name(name) or type(number) not in (int, float) or not math.isfinite(number):
            raise CorruptError(f"metrics: got {name!r:.40}: {number!r:.40}, expected a name with a finite number")
    return {name: float(number) for name, number in value.items()}
