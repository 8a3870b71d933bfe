"""The batch process: keeps a supervisor running on the batch host, and the job alive while another host supervises it.

Slurm ends a job when its batch script ends. So the supervisor is a child of the batch process. If the supervisor is
killed, the next one starts at once. If another node has taken over, the batch process waits for the outcome.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from launcher.leadership.terms import LeaseWatch, newest_number
from launcher.outcome import Outcome
from launcher.processes import die_with_parent
from launcher.runner.step_signals import WARNINGS

log = logging.getLogger(__name__)

MAX_DEATHS = 5  # number of supervisors in a row that may be killed here before the job ends
_ORPHANED_S = 60.0  # if the lease was not renewed for this time, a supervisor is started here again
_POLL_S = 0.2
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, *WARNINGS)

Work = Callable[[int | None], Outcome]


class BatchProcess:
    """Keeps one job supervised.

    Args:
        work: runs a supervisor to its end. Its argument is the term to take over; None for a first start.
        job_dir: the job's folder.
    """

    def __init__(self, work: Work, job_dir: Path) -> None:
        self._work = work
        self._job_dir = job_dir
        self._child: int | None = None

    def run(self) -> Outcome:
        """Block until the job has an outcome, from this host's supervisor or another one."""
        after: int | None = None
        deaths = 0
        with self._signals():
            while True:
                outcome = self._supervise(after)
                if outcome is None:
                    deaths += 1
                    print(f"holdfast: the supervisor was killed ({deaths} of {MAX_DEATHS} times at most)", flush=True)
                elif outcome.name != "superseded":
                    return outcome
                if outcome is not None or deaths >= MAX_DEATHS:
                    decided = self._await_result()
                    if decided is not None:
                        return decided
                after = newest_number(self._job_dir) or None

    def _supervise(self, after: int | None) -> Outcome | None:
        """Run a supervisor in a child process. Returns None if it was killed."""
        reads, writes = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
        me = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            code = 1
            try:
                die_with_parent(me)
                os.close(reads)
                # A signal before the supervisor has installed its handlers, or after it is done, must not end it.
                # Slurm's SIGTERM comes milliseconds after a requeue, and the outcome would be lost.
                for number in _PASSED_ON:
                    signal.signal(number, signal.SIG_IGN)
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                os.write(writes, _outcome_line(self._work, after))
                code = 0
            finally:
                os._exit(code)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writes)
        with os.fdopen(reads, "rb") as pipe:
            line = pipe.read()
        os.waitpid(self._child, 0)
        self._child = None
        return None if not line else Outcome(**json.loads(line))

    def _await_result(self) -> Outcome | None:
        """Wait for the outcome of another node's supervisor. Returns None if that supervisor is lost too."""
        lease = LeaseWatch(self._job_dir)
        while lease.quiet_s() < _ORPHANED_S:
            if (outcome := Outcome.read(self._job_dir)) is not None:
                return outcome
            time.sleep(_POLL_S)
        return None

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Passes Slurm's signals to the child. Without a child, the supervisor on another node gets them by itself."""

        def pass_on(number: int, frame: object) -> None:
            if self._child:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._child, number)

        before = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _outcome_line(work: Work, after: int | None) -> bytes:
    return json.dumps(asdict(work(after))).encode()
