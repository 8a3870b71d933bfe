"""Text of a job's logs, made safe for a terminal: who writes a log is not always who reads it."""

from __future__ import annotations

import re

from holdfast.blocks import printable

# Colours and other renditions of text are kept, and what progress bars and tables need.
_KEPT = re.compile(r"(\x1b\[[0-9;]{0,40}m|[\t\r])")


def log_line(text: str) -> str:
    """A line of a log without control sequences, except for colours, tabs and returns to the line's beginning."""
    if text.isprintable():
        return text
    return "".join(part if index % 2 else printable(part) for index, part in enumerate(_KEPT.split(text)))
