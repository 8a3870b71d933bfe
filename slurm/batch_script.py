"""Writes batch scripts. An SBATCH_* variable beats the script's line of its option; the command line beats both."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence

_LINES = re.compile(r"^#SBATCH\s+--([a-z0-9-]+)", re.MULTILINE)
# Variables whose option has another name (sbatch(1), 25.05). All others are SBATCH_ and the option's name.
_OPTIONS = {
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_REQ_SWITCH": "switches",
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_WAIT4SWITCH": "switches",
}
_ALTERNATIVES = (
    {"mem", "mem-per-cpu", "mem-per-gpu"},
    {"requeue", "no-requeue"},
    {"exclusive", "oversubscribe"},
)


def batch_script(options: Mapping[str, object], commands: Sequence[str]) -> str:
    """A batch script for bash.

    Args:
        options: from the long name of an sbatch option to its value; True for one without a value. What is None, False
            or empty is left out.
        commands: the lines after the options.
    """
    given = {name: value for name, value in options.items() if value is not None and value is not False and value != ""}
    lines = [
        f"#SBATCH --{name}" + ("" if value is True else f"={shlex.quote(str(value))}") for name, value in given.items()
    ]
    return "\n".join(["#!/bin/bash", *lines, *commands, ""])


def overriding(environment: Mapping[str, str], script: str, owned: Collection[str] = ()) -> tuple[str, ...]:
    """The variables that would override a batch script, in alphabetical order. Leave them out of sbatch's environment.

    Other SBATCH_* variables are a site's or a user's defaults for options that the script does not have.

    Args:
        environment: the variables.
        script: the batch script.
        owned: further options, by long name, that no variable may set.
    """
    given = {*_LINES.findall(script), *owned}
    for alternatives in _ALTERNATIVES:
        if alternatives & given:
            given |= alternatives
    return tuple(sorted(name for name in environment if _option(name) in given))


def _option(variable: str) -> str | None:
    """The long name of the option that a variable sets; None for a variable that is not sbatch's."""
    if not variable.startswith("SBATCH_"):
        return None
    return _OPTIONS.get(variable) or variable.removeprefix("SBATCH_").lower().replace("_", "-")
