"""The logs of the workers, read for lines that tell something: those of `log_rules`, and those that rules know."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_MOST_BYTES = 1 << 20  # of a log that are read in one look; what a log has grown by beyond them is passed over
_TAIL_BYTES = 16 << 10
_TAIL_S = 1.0
_LINE_CHARS = 500
_LINE_BYTES = 4096  # of a line that are compared; a pattern may take long on a longer one, and nobody else runs then

Rules = Sequence[tuple[str, str, str]]  # title, pattern, action


@dataclass(frozen=True, kw_only=True)
class RuleMet:
    """A line of a rank that a rule of the job file names."""

    rank: int
    rule: str
    action: str
    line: str


@dataclass
class _Log:
    """One rank's log: how far it was read, and the beginning of a line that was not complete."""

    path: Path
    offset: int = 0
    rest: bytes = b""
    met: set[str] = field(default_factory=set)


class LogWatch:
    """Call order: follow() at an attempt's start; look() again and again. Each rule is met once by each rank."""

    def __init__(self) -> None:
        self._rules: tuple[tuple[str, re.Pattern[str], str], ...] = ()
        self._logs: dict[int, _Log] = {}

    def follow(self, rules: Rules, logs: Mapping[int, Path]) -> None:
        self._rules = tuple((title, re.compile(pattern), action) for title, pattern, action in rules)
        self._logs = {rank: _Log(path) for rank, path in logs.items()} if rules else {}

    def look(self) -> list[RuleMet]:
        """The rules that lines met since the last look. Blocks while the logs' file system hangs."""
        return [
            met for rank, log in self._logs.items() for line in _new_lines(log) for met in self._meets(rank, log, line)
        ]

    def _meets(self, rank: int, log: _Log, line: str) -> Iterable[RuleMet]:
        for title, pattern, action in self._rules:
            if title not in log.met and pattern.search(line):
                log.met.add(title)
                yield RuleMet(rank=rank, rule=title, action=action, line=line.strip()[:_LINE_CHARS])


def last_met(rules: Rules, lines: Sequence[str]) -> tuple[str, str] | None:
    """The rule that the last line met that meets one, and its action, unless it only reports."""
    for line in reversed(lines):
        for title, pattern, action in rules:
            if action != "report" and re.search(pattern, line):
                return title, action
    return None


def tail(log: Path) -> list[str]:
    """The last lines of a log; none if its file system does not answer."""
    found: list[str] = []

    def read() -> None:
        with contextlib.suppress(OSError), log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            found.extend(file.read().decode(errors="replace").splitlines())

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(_TAIL_S)
    return list(found)


def _new_lines(log: _Log) -> list[str]:
    try:
        with log.path.open("rb") as file:
            size = file.seek(0, 2)
            begin = max(log.offset, size - _MOST_BYTES)
            file.seek(begin)
            data = file.read(size - begin)
    except OSError:
        return []
    rest = log.rest if begin == log.offset else b""
    *lines, last = (rest + data).replace(b"\r", b"\n").split(b"\n")
    log.rest = last[:_LINE_BYTES]
    log.offset = begin + len(data)
    return [line[:_LINE_BYTES].decode(errors="replace") for line in lines]
