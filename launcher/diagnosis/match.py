"""Which rule of the table a failure's lines match."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from launcher.diagnosis.rules import EXCEPTION, RULES, UNKNOWN, Rule

_ALL = (*RULES, EXCEPTION)
_FRAMES = ("    ", "  File ", "frame #")
_MOST_READ = 40


def rule_for(lines: Iterable[str]) -> tuple[Rule, str]:
    """The first rule of the table that matches, and the line that proves it.

    Of several lines that match one rule, the last proves it: exceptions end with what was raised.

    Args:
        lines: what is known, oldest first.
    """
    known = list(dict.fromkeys(line.strip() for line in _without_frames(lines)))
    if not known:
        return UNKNOWN, ""
    found = [_place(line) for line in known]
    first = min(found)
    if first == len(_ALL):
        return UNKNOWN, known[-1]
    return _ALL[first], next(
        line for line, place in zip(reversed(known), reversed(found), strict=True) if place == first
    )


def telling(lines: Iterable[str], most: int) -> list[str]:
    """The last lines that a rule of the table knows, oldest first.

    It runs before the next attempt, so only the last lines are read, without the frames of stacks.
    """
    read = [line for line in lines if line.strip() and not line.startswith(_FRAMES)][-_MOST_READ:]
    return [line.strip() for line in read if _place(line.strip()) < len(RULES)][-most:]


def _without_frames(lines: Iterable[str]) -> Iterator[str]:
    """The lines that are not empty, without the frames of a Python stack, which may have any word."""
    is_code = False
    for line in lines:
        if not (is_code and line.startswith("    ")) and not line.startswith('  File "') and line.strip():
            yield line
        is_code = line.startswith('  File "')


@lru_cache(maxsize=8192)
def _place(line: str) -> int:
    """The place in the table of the first rule that matches a line. Thousands of ranks may write the same line."""
    return next((place for place, rule in enumerate(_ALL) if rule.pattern.search(line)), len(_ALL))
