"""The batch process: keeps a supervisor running on the batch host, and the job alive while another host supervises it.

Slurm ends a job when its batch script ends. So the supervisor is a child of the batch process. If the supervisor is
killed, the next one starts at once. If another node has taken over, the batch process waits for the outcome. An
unreadable folder ends neither: it may be unreadable here alone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.base.processes import die_with_parent
from launcher.core.outcomes import JobOutcome
from launcher.history.outcome import Outcome
from launcher.leadership.terms import LeaseWatch, newest_number
from launcher.runner.step_signals import WARNINGS

log = logging.getLogger(__name__)

MAX_DEATHS = 5  # number of supervisors in a row that may be killed or fail here
_LIVED_S = 600.0  # one that has lived for this time is not one more in the row
_ORPHANED_S = 60.0  # if the lease was not renewed for this time, no other node supervises the job
_POLL_S = 0.2
_FAILED = "has failed with the error above"
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
        self._earlier: Outcome | None = None  # of an earlier run in this folder; the first supervisor removes it

    def run(self) -> Outcome:
        """Block until the job has an outcome, from this host's supervisor or another one."""
        after: int | None = None
        deaths = 0
        self._earlier = Outcome.read(self._job_dir)
        with self._signals():
            while True:
                begun_s = time.monotonic()
                ended = self._supervise(after)
                if isinstance(ended, Outcome) and ended.name != "superseded":
                    return ended
                after = self._newest_term()
                if isinstance(ended, str):
                    deaths = deaths + 1 if time.monotonic() - begun_s < _LIVED_S else 1
                    print(f"holdfast: the supervisor {ended} ({deaths} of {MAX_DEATHS} in a row)", flush=True)
                    if deaths < MAX_DEATHS:
                        if ended == _FAILED:
                            time.sleep(2.0**deaths)
                        continue
                decided = self._await_result()
                if decided is not None:
                    return decided
                before, after = after, self._newest_term()
                if isinstance(ended, str) and after == before:  # no other node has taken over
                    return _given_up(f"{MAX_DEATHS} supervisors in a row are lost here, the last one {ended}")
                deaths = 0

    def _supervise(self, after: int | None) -> Outcome | str:
        """Run a supervisor in a child process. Returns how it ended if it has left no outcome."""
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
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writes)
        with os.fdopen(reads, "rb") as pipe:
            line = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])
        self._child = None
        if line:
            return Outcome.from_mapping(json.loads(line))
        return _FAILED if code > 0 else f"was killed by signal {-code}"

    def _newest_term(self) -> int | None:
        """The term to take over; None for a first start. Waits for the folder: the job may go on elsewhere."""
        why = ""
        while True:
            try:
                return newest_number(self._job_dir) or None
            except OSError as error:
                if str(error) != why:
                    why = str(error)
                    print(f"holdfast: no supervisor is started while its folder cannot be read: {why}", flush=True)
            time.sleep(_POLL_S)

    def _await_result(self) -> Outcome | None:
        """Wait for the outcome of another node's supervisor. Returns None if that supervisor is lost too."""
        lease = LeaseWatch(self._job_dir)
        while lease.quiet_s() < _ORPHANED_S:
            if (outcome := Outcome.read(self._job_dir)) is not None and outcome != self._earlier:
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


def _given_up(why: str) -> Outcome:
    reason = f"{why}; see the output of the batch script"
    return Outcome(name=JobOutcome.INTERNAL, step=None, reason=reason, seconds=0.0)


def _outcome_line(work: Work, after: int | None) -> bytes:
    return json.dumps(work(after).to_mapping()).encode()
