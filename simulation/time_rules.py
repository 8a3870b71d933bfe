"""Nothing waits longer than it must: the longest time from one command, event or input of a supervisor to another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from launcher.core import commands as do
from launcher.core import inputs as given
from launcher.core.faults import LOSSES_S
from launcher.core.liveness import CUT_OFF_S
from simulation.journal import Journal

_ENDS = ("kill", "release_agent", "finish_agent")
_NEXT = ("ProbeFolder", "AskWhyTerminated", "ask again", "ask scheduler", "backoff", "Requeue")
STOP_S = 15.0  # until all ranks have stopped at a step boundary
# What begins, what ends it, and the longest time between them: where all nodes stay with the job, and otherwise.
_LONGEST: tuple[tuple[str, tuple[str, ...], float | None, float], ...] = (
    ("ask start", ("ProbeFolder",), 1.0, CUT_OFF_S + 2.0),  # the supervisor's node may be cut off
    ("FolderProbed", ("attempt_start", "fault", "Requeue"), 10.5, float("inf")),
    ("attempt_start", ("StartWorkers", "kill"), 0.5, 0.5),
    ("StartWorkers", ("workers_started", *_ENDS, "ask agents_failed"), 45.0, 45.0),  # agents may be late, perhaps twice
    ("stop_requested", ("stop", "attempt_end", "ProbeFolder", *_ENDS), 1.1, 1.1),
    ("stop", _ENDS, None, STOP_S),
    ("resize", ("stop", *_ENDS), 0.5, 0.5),
    ("dump", ("fault", "problem", *_ENDS), 12.5, 12.5),
    ("failed", ("fault", *_ENDS), None, 0.7),
    ("ask agents_failed", ("fault", *_ENDS), 1.0, 1.0),
    ("release_agent", ("kill",), 30.0, 30.0),  # agents may be coming up
    ("kill", ("attempt_end",), 1.0, 30.0),  # most nodes may be silent
    ("attempt_end", _NEXT, 0.1, 3 * LOSSES_S),  # each loss may be followed by another
    ("backoff", ("ProbeFolder",), 60.5, 60.5),
    ("Requeue", ("EndJob",), 1.0, 1.0),
)


class Times:
    """The waits of one supervisor."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}

    def ended(
        self, journal: Journal, message: Any, todo: Iterable[do.Command], now_s: float
    ) -> Iterator[tuple[str, bool, bool]]:
        """Gives each wait that the decision ends, and whether it was too long: where all nodes stay; elsewhere."""
        names = [_name(journal, thing) for thing in (message, *todo)]
        for begin, ends, longest_s, most_s in _LONGEST:
            for name in names:
                since_s = self._since_s.get(begin)
                if since_s is not None and name in (*ends, "EndJob"):
                    del self._since_s[begin]
                    lasted_s = now_s - since_s
                    is_long = longest_s is not None and lasted_s > longest_s
                    yield f"{lasted_s:.1f} s from {begin} to {name}", is_long, lasted_s > most_s
                elif name == begin:
                    self._since_s.setdefault(begin, now_s)


def _name(journal: Journal, thing: Any) -> str:
    """Of an input or a command."""
    match thing:
        case do.Send() if not journal.runs or journal.number != thing.attempt or do.Order.KILL in journal.orders:
            return ""  # to a node that has connected again
        case do.Record(event="stop_requested") if journal.is_ending:
            return ""
        case given.WorkersEnded(ok=False, attempt=journal.number) if _is_at_work(journal):
            return "failed"
        case do.Record():
            return thing.event
        case do.Send():
            return thing.order.value
        case do.AskUnusable():
            return f"ask {thing.purpose.value}"
        case _:
            return type(thing).__name__


def _is_at_work(journal: Journal) -> bool:
    is_over = journal.stop is not None or journal.is_ending or "fault" in journal.seen
    return not is_over and journal.started.issuperset(journal.nodes)
