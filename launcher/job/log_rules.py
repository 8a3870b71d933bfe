"""The section `log_rules` of a job file: what follows a line that a worker writes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.settings.keys import key


@dataclass(frozen=True, kw_only=True)
class LogRule:
    """A pattern for lines of the workers' logs, and what follows the first line of an attempt that has it."""

    pattern: str = key(
        "A regular expression; it may match anywhere in a line.",
        pattern="^.+$",
        expected="a regular expression of Python",
        example="'loss is nan'",
    )
    action: Literal["report", "retry", "swap", "requeue", "stop"] = key(
        "report shows the line as a problem, and training goes on. The others end the attempt: retry starts the "
        "workers again, swap replaces the rank's node by a spare, requeue requeues the job, stop ends it.",
        default="retry",
        example="stop",
    )
    name: str | None = key(
        "The rule's name in messages.", default=None, derived="its pattern", pattern="^.{1,80}$", example="nan"
    )

    def _pattern_compiles(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        try:
            re.compile(self.pattern)
        except re.error as error:
            yield "pattern", f"got {self.pattern!r:.80}, expected a regular expression of Python: {error}"

    rules = (_pattern_compiles,)

    @property
    def title(self) -> str:
        return self.name or self.pattern
