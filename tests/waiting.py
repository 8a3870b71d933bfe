"""How tests wait: for a condition, never for time. The deadline is for failures alone, so it is generous."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], what: str = "the condition", deadline_s: float = 60.0) -> T:
    """The first true value of a condition; an AssertionError after the deadline."""
    end_s = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < end_s, f"waited {deadline_s:g} s for {what}"
        time.sleep(0.01)
    return value
