"""Runs Slurm's commands, and the programs of the hooks and of checks: `holdfast.base.programs` with SlurmError's class.

Code that runs programs takes a `CommandRunner`. Tests pass a function that returns recorded output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.base import programs
from holdfast.base.programs import CommandRunner, ProgramError, Result
from slurm.errors import SlurmError

__all__ = ["CommandError", "CommandRunner", "Result", "run"]


class CommandError(ProgramError, SlurmError):
    """A program failed, could not be started, or did not end in time. See ProgramError."""

    def __str__(self) -> str:
        text = super().__str__()
        # Slurm's commands print this on a machine that has no slurm.conf.
        is_unset = "establish a configuration source" in text
        return f"{text}; name the cluster's slurm.conf in SLURM_CONF" if is_unset else text


def run(
    argv: Sequence[str],
    *,
    timeout_s: float = 30.0,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    input: str = "",
    check: bool = True,
) -> Result:
    """Runs a program to its end, as `holdfast.base.programs.run` does. Raises CommandError."""
    try:
        return programs.run(argv, timeout_s=timeout_s, env=env, cwd=cwd, input=input, check=check)
    except ProgramError as error:
        raise CommandError(error.result, error.reason) from error.__cause__
