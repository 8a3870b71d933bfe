"""Runs a program to its end: an argv list, a deadline, captured text. Nothing else in these packages does.

Code that runs programs takes a `CommandRunner`. Tests pass a function that returns recorded output.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a program.

    Attributes:
        argv: the program and its arguments.
        returncode: exit code; negative: the signal that ended it; None if it could not be started.
        stdout: its standard output, decoded, undecodable bytes replaced.
        stderr: its standard error, the same.
        seconds: run time in seconds.
    """

    argv: tuple[str, ...]
    returncode: int | None
    stdout: str
    stderr: str
    seconds: float


class ProgramError(Exception):
    """A program failed, could not be started, or did not end in time.

    Catch it where the failure has a meaning (an unknown job). Otherwise let it propagate: its message is complete.

    Attributes:
        result: the program's result up to its end.
        reason: "exit code 1", "signal SIGKILL", "no answer within 30 s", or why it could not be started.
    """

    def __init__(self, result: Result, reason: str) -> None:
        self.result = result
        self.reason = reason
        printed = " ".join((result.stderr.strip() or result.stdout.strip()).split())
        output = f": {printed[-1000:] or 'it printed nothing'}" if printed or result.returncode is not None else ""
        super().__init__(f"command failed: {shlex.join(result.argv)}: {reason}{output}")

    @property
    def was_started(self) -> bool:
        """False if there is no such program, or it may not be run."""
        return not isinstance(self.__cause__, OSError)


class CommandRunner(Protocol):
    """The signature of `run`."""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 30.0,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        input: str = "",
        check: bool = True,
    ) -> Result: ...


def run(
    argv: Sequence[str],
    *,
    timeout_s: float = 30.0,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    input: str = "",
    check: bool = True,
) -> Result:
    """Run a program to its end.

    Args:
        argv: the program and its arguments; no shell is involved.
        timeout_s: after this time, in seconds, the program and every process of its session are killed. `run` returns
            at most 2 s later, also if the program cannot be killed.
        env: the whole environment of the program; None passes on that of this process.
        cwd: the directory it starts in.
        input: text for its standard input.
        check: whether an exit code other than 0 raises.

    Raises:
        ProgramError: it could not be started, did not end in time, or (with `check`) did not return 0.
    """
    arguments = tuple(str(argument) for argument in argv)
    start_s = time.monotonic()

    def result(returncode: int | None, stdout: bytes = b"", stderr: bytes = b"") -> Result:
        return Result(
            argv=arguments,
            returncode=returncode,
            stdout=stdout.decode(errors="replace"),
            stderr=stderr.decode(errors="replace"),
            seconds=time.monotonic() - start_s,
        )

    try:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        hint = f"; is {arguments[0]} installed here?" if isinstance(error, FileNotFoundError) else ""
        raise ProgramError(result(None), f"could not be started ({error.strerror}){hint}") from error
    try:
        stdout, stderr = process.communicate(input.encode(), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise ProgramError(result(None, *_kill_session(process)), f"no answer within {timeout_s:g} s") from None
    except BaseException:  # KeyboardInterrupt: the program is in a session of its own and would not notice
        _kill_session(process)
        raise
    done = result(process.returncode, stdout, stderr)
    if check and process.returncode != 0:
        raise ProgramError(done, _ending(process.returncode))
    return done


def _kill_session(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Kills a program with its session and returns its output.

    A program that hangs in the kernel, as on a dead mount, cannot be killed: it is left after 2 s. Then the output is
    empty, as it is if a process that left the session still holds the pipes.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.communicate(timeout=2.0)
    except subprocess.TimeoutExpired:
        process.poll()
        for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
            pipe.close()
        return b"", b""


def _ending(returncode: int) -> str:
    if returncode > 0:
        return f"exit code {returncode}"
    try:
        return f"signal {signal.Signals(-returncode).name}"
    except ValueError:
        return f"signal {-returncode}"
