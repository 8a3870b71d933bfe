"""How errors of every verb are printed, and the exit code that goes with each."""

from __future__ import annotations

import sys
from typing import Any


def complain(message: str, exit_code: int) -> int:
    """Prints an error, one line for each problem that it names; returns its exit code."""
    from lifecycle.blocks import printable

    for problem in message.splitlines():
        print(f"holdfast: error: {printable(' '.join(problem.split()))}", file=sys.stderr)
    return exit_code


def help_command(error: Any) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context else 'holdfast'} --help"
