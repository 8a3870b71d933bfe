"""Handles for programs that this supervisor has started, or that an earlier supervisor has started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.base.deadlines import within
from holdfast.base.processes import die_with_parent


class ChildProcess:
    """A child process in its own session. Implements AgentsHandle."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._let_go: asyncio.Event | None = None

    @classmethod
    async def start(
        cls, argv: Sequence[str], environment: Mapping[str, str], log_path: Path, *, outlives_us: bool = False
    ) -> ChildProcess:
        """Start a program.

        Args:
            argv: the program and its arguments.
            environment: variables that are added to this process' environment.
            log_path: the file to which its stdout and stderr are appended.
            outlives_us: whether the program continues after this process has died. If not, the kernel kills it then.

        Raises:
            OSError: the program cannot be started, or the log cannot be written.
        """
        me = os.getpid()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        log = await asyncio.to_thread(os.open, log_path, flags, 0o600)  # its file system may hang
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                env={**os.environ, **environment},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=None if outlives_us else lambda: die_with_parent(me),
            )
        finally:
            os.close(log)
        return cls(process)

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    async def wait(self) -> None:
        await self._process.wait()
        if self._let_go is not None:
            await self._let_go.wait()

    def let_go(self) -> None:
        """Kill the launcher (srun) together with its helper process, so that the launched step continues.

        wait() returns only after kill().
        """
        self._let_go = self._let_go or asyncio.Event()
        self._kill_at_once()

    async def kill(self) -> None:
        self._kill_at_once()
        if self._let_go is not None:
            self._let_go.set()
        await self._process.wait()

    def _kill_at_once(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def end(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` until the program has ended by itself, then kill it."""
        with contextlib.suppress(asyncio.TimeoutError):
            await within(timeout_s, self._process.wait())
        await self.kill()


class Adopted:
    """Agents that an earlier supervisor has started, with no process here to wait for. Implements AgentsHandle."""

    def __init__(self) -> None:
        self._let_go = asyncio.Event()

    async def wait(self) -> None:
        await self._let_go.wait()

    async def kill(self) -> None:
        self._let_go.set()
