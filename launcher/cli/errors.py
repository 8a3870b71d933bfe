"""Prints the errors of all verbs and chooses the exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence


class Complaints:
    """Prints the error that ends a command line: a line for each problem, or with --json one JSON object, on stderr.

    Args:
        arguments: the command line.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
        self._as_json = "--json" in ours

    def of(self, error: BaseException) -> int | None:
        """Prints an error.

        Returns:
            The exit code; None for a bug in Holdfast, for which nothing is printed.
        """
        from ckpt import CheckpointError
        from lifecycle import LifecycleError
        from slurm import SlurmError

        if isinstance(error, OSError):
            return self._print(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
        if hasattr(error, "format_message"):  # click's, wherever typer keeps it
            return self._usage(error)
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            return self._print("this command needs torch: run it from the environment of your jobs", 1)
        if hasattr(error, "exit_code"):
            return self._print(str(error), error.exit_code)
        if isinstance(error, LifecycleError | SlurmError | CheckpointError):
            return self._print(str(error), 1)
        is_interrupt = type(error).__name__ == "Abort" and not isinstance(error.__cause__, EOFError)
        return self._print("interrupted", 130) if is_interrupt else None

    def _usage(self, error: BaseException) -> int:
        context = getattr(error, "ctx", None)
        if context is not None and type(error).__name__ == "NoArgsIsHelpError":  # a group alone
            print(context.get_help())
            return 0
        help_command = f"{context.command_path if context else 'holdfast'} --help"
        return self._print(f"{error.format_message().rstrip('.')}; see `{help_command}`", 2)  # type: ignore[attr-defined]

    def _print(self, message: str, exit_code: int) -> int:
        """Prints the problems that a message names, each on a line of its own; returns the exit code."""
        from holdfast.blocks import printable

        problems = [printable(" ".join(line.split())) for line in message.splitlines()]
        if self._as_json:
            print(json.dumps({"errors": problems, "exit_code": exit_code}), file=sys.stderr)
            return exit_code
        for problem in problems:
            print(f"holdfast: error: {problem}", file=sys.stderr)
        return exit_code
