"""Runs a verb of `holdfast ckpt` in this process, as a user would, and keeps what it prints."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from launcher.cli import main

_PROGRESS = re.compile(r"holdfast ckpt: waiting for .*: no answer for |[a-z]+ing .*: .* of .*/s")


@dataclass(frozen=True, kw_only=True)
class Printed:
    """What a verb printed, and its exit code."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr

    @property
    def messages(self) -> list[str]:
        """The lines on standard error, without the progress that a slow storage or a busy machine has it print."""
        return [line for line in self.stderr.splitlines() if not _PROGRESS.match(line)]


def ckpt(*arguments: object) -> Printed:
    """Runs `holdfast ckpt ARGUMENTS`."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["ckpt", *map(str, arguments)])
    return Printed(exit_code=code, stdout=out.getvalue(), stderr=err.getvalue())
