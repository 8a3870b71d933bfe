"""A program that a cluster started and answers for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.runner.processes import die_with_parent


class Spawned:
    """A child in a session of its own, which the kernel ends with us. An AgentsHandle."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, argv: Sequence[str], environment: Mapping[str, str], log_path: Path) -> Spawned:
        """Starts a program.

        Args:
            argv: the program and its arguments.
            environment: added to ours.
            log_path: its output is appended there.

        Raises:
            OSError: it cannot be started, or the log cannot be written.
        """
        me = os.getpid()
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                env={**os.environ, **environment},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(me),
            )
        finally:
            os.close(log)
        return cls(process)

    async def wait(self) -> None:
        await self._process.wait()

    async def kill(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    async def end(self, timeout_s: float) -> None:
        """Gives it `timeout_s` to end by itself, then kills it."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._process.wait(), timeout_s)
        await self.kill()
