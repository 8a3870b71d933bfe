"""Controls the warm process and the workers that it forks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ckpt.agent.process.launch import PYTHON
from holdfast.base.environment import Variable
from holdfast.base.processes import descendants, end_all, session_pids
from launcher.runner.script import ENDING_SIGNALS

log = logging.getLogger(__name__)

_LINE_BYTES = 1 << 24  # enough for many workers' tracebacks

Report = Callable[[dict[str, Any]], None]


class Workers:
    """Starts the workers of one attempt at a time and ends them with certainty.

    Call order: run() as a task for as long as the runner lives; then start() and kill() for each attempt.

    Args:
        report: called with {"event": "warm"}, {"event": "started", attempt, pids},
            {"event": "ended", attempt, ok, failures, reason} and {"event": "broken", reason, environment}, where
            `environment` is whether the job's Python is the cause.

    Attributes:
        warm: whether attempts can start at once.
        has_learned: whether the modules that the workers load were tried in this process's life.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._warm_process: asyncio.subprocess.Process | None = None
        self._task: dict[str, Any] | None = None  # the running attempt
        self._session: asyncio.Future[int | None] | None = None  # of the attempt's processes; None: not forked
        self._unfit = ""  # reason of the warm process's "unfit"
        self.warm = self.has_learned = False

    async def run(
        self,
        preload: Sequence[str] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
        learned: Path | None = None,
    ) -> None:
        """Keeps a warm process running. Returns only if that is impossible, after reporting "broken".

        Args:
            preload: the script's folder, and modules to load in addition to torch.
            variables: the job's own, which torch and other modules may read when they are imported.
            learned: the file for modules that the script loads by itself; see `launcher.runner.learned`.
        """
        while True:
            # A script that asks submitit for its job must not find the one from which this job was submitted.
            environment = {name: value for name, value in os.environ.items() if not name.startswith("SUBMITIT_")}
            environment |= {**variables, Variable.RUNNER_PID: str(os.getpid())}
            environment.setdefault("OMP_NUM_THREADS", "1")
            before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)  # until the process ignores them
            try:
                self._warm_process = process = await asyncio.create_subprocess_exec(
                    *(*PYTHON, "-m", "launcher.runner.warm", str(learned or ""), *preload),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    env=environment,
                    limit=_LINE_BYTES,
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            await self._follow(process)
            code = await process.wait()
            was_warm, self.warm = self.warm, False
            why = f": {self._unfit}" if self._unfit else "; its output is in this runner's log"
            reason = f"the warm process ended with code {code}{why}"
            log.error("%s", reason)
            if self._session is not None and not self._session.done():
                self._session.set_result(None)
            if self._task is not None and self._session is not None:
                self._end({"event": "ended", "attempt": self._task["attempt"], "ok": False, "failures": []}, reason)
            if not was_warm:
                self._report({"event": "broken", "reason": reason, "environment": bool(self._unfit)})
                return

    def start(self, task: dict[str, Any]) -> None:
        """Starts an attempt's workers once the process is warm. The previous attempt must have ended."""
        self._task = task
        self._session = None
        if self.warm:
            self._send()

    def learn(self, loaded: Path, environment: Mapping[str, str]) -> None:
        """Tries the modules that a worker has loaded, beside the attempt.

        Args:
            loaded: the worker's list.
            environment: the worker's variables.
        """
        process = self._warm_process
        if self.warm and process is not None and process.stdin is not None:
            process.stdin.write(json.dumps({"learn": str(loaded), "env": dict(environment)}).encode() + b"\n")

    def terminate(self, pids: Iterable[int]) -> None:
        """Sends SIGTERM to some workers of the attempt, and to their elastic agent, which lets each exit by itself."""
        agent = self._session.result() if self._session is not None and self._session.done() else None
        for pid in (*([agent] if agent is not None else []), *pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    async def kill(self, timeout_s: float, on_slow: Callable[[list[int]], float] | None = None) -> list[int]:
        """Ends the attempt's workers and all their children.

        Returns:
            Processes that are alive after that, as in `end_all`.
        """
        self._task = None
        leader = await self._session if self._session is not None else None
        self._session = None
        process = self._warm_process
        if leader is None or process is None:
            return []
        is_there = process.returncode is None  # it adopts its workers' orphans
        return await end_all(lambda: descendants(process.pid) if is_there else session_pids(leader), timeout_s, on_slow)

    async def close(self, timeout_s: float) -> None:
        """Ends the workers and the warm process."""
        await self.kill(timeout_s)
        if self._warm_process is not None and self._warm_process.returncode is None:
            self._warm_process.kill()
            await self._warm_process.wait()

    async def _follow(self, process: asyncio.subprocess.Process) -> None:
        stdout = process.stdout
        while stdout is not None and (line := await stdout.readline()):
            report = json.loads(line)
            if report["event"] == "warm":
                self.warm = True
                self._report(report)
                if self._task is not None:
                    self._send()
            elif report["event"] == "learned":
                self.has_learned = True
                left_out = "".join(f"; without {name}, which {why}" for name, why in report["left_out"].items())
                log.info("preload: %d modules of the script are loaded in advance%s", report["modules"], left_out)
            elif report["event"] == "unfit":
                self._unfit = report["reason"]
            elif report["event"] == "forked":
                if self._session is not None and not self._session.done():
                    self._session.set_result(report["session"])
            elif self._task is None or report["attempt"] != self._task["attempt"]:
                continue  # it is about a killed attempt
            elif report["event"] == "ended":
                self._end(report, report["reason"])
            else:
                self._report(report)

    def _send(self) -> None:
        process = self._warm_process
        if process is not None and process.stdin is not None:
            self._session = asyncio.get_running_loop().create_future()
            process.stdin.write(json.dumps(self._task).encode() + b"\n")

    def _end(self, report: dict[str, Any], reason: str | None) -> None:
        self._task = None
        self._report(report | {"reason": reason})
