"""A runner's part in the succession: follows the supervisor with the highest term, and starts a standby on its turn."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from pathlib import Path

from ckpt.agent.process.launch import PYTHON
from holdfast.base.disk_read import DiskRead
from holdfast.base.processes import die_with_parent
from launcher.errors import LauncherError
from launcher.leadership.requeue import until_answered
from launcher.leadership.terms import LEASE_S, RENEW_S, LeaseWatch, Term, newest
from launcher.scheduler import scheduler_of
from slurm import SlurmError

log = logging.getLogger(__name__)

STAGGER_S = 2.0  # between one candidate and the next: time for a standby to start and to be noticed
MEETING_S = 1.0  # time to connect to a supervisor whose term has just begun
_READ_TIMEOUT_S = 0.5  # the terms' file system may hang
MAX_TURN = 8  # later candidates do not wait longer: any number of them can safely claim a term at once


class Succession:
    """Follows the terms of one job.

    Args:
        job_dir: the job's folder.
        run_id: the id of its run.
    """

    def __init__(self, job_dir: Path, run_id: str) -> None:
        self._job_dir = job_dir
        self._run_id = run_id
        self._terms = DiskRead(lambda: newest(job_dir), job_dir / "terms")
        self._ruling: Term | None = None
        self._is_unread = False  # whether the last attempt to read the terms failed
        self._standby: asyncio.subprocess.Process | None = None
        self._lost_s: float | None = None
        self._missed = 0  # the term whose supervisor has been missing since then
        self._was_closed = False  # whether the supervisor's host closed our connection
        self.term = 0  # the highest term that this runner has accepted
        self.turn: int | None = None  # this node's place in the succession; None: it has none

    def welcome(self, term: int, turn: int | None) -> bool:
        """Accept a supervisor that this runner has connected to. False if its term is lower than an accepted one."""
        if term < self.term:
            log.warning("supervisor of term %s refused: we obey term %s", term, self.term)
            return False
        self.term, self.turn = term, turn
        self.answered()
        return True

    def answered(self) -> None:
        """Note a message of the supervisor. A standby is not needed then."""
        self._lost_s, self._was_closed = None, False
        if self._standby is not None and self._standby.stdin is not None:
            self._standby.stdin.close()

    def closed(self) -> None:
        """Note that the supervisor, or its host's kernel, has closed the connection."""
        self._was_closed = True

    async def is_superseded(self) -> bool:
        """Whether there is a higher term than the one that this runner has accepted."""
        ruling = await self.ruling()
        return ruling is not None and ruling.number > self.term

    async def ruling(self) -> Term | None:
        """The newest term; if the terms cannot be read, the newest one of an earlier read."""
        try:
            self._ruling = await self._terms.newest(_READ_TIMEOUT_S)
            self._is_unread = False
        except (OSError, ValueError) as error:
            if not self._is_unread:
                log.warning("terms not read: %s", error)
            self._is_unread = True
        return self._ruling

    async def step_in(self) -> None:
        """Start a standby when this node's turn has come. Call this repeatedly while the supervisor is missing."""
        if self.turn is None or self._stands_by:
            return
        now_s = time.monotonic()
        ruling = await self.ruling()
        missed = max(self.term, ruling.number if ruling is not None else 0)
        if self._lost_s is None or missed != self._missed:
            self._lost_s, self._missed = now_s, missed
        # Each term since the accepted one went to a candidate before this node.
        turn = max(0, self.turn - (missed - self.term))
        meeting_s = MEETING_S if missed > self.term else 0.0
        if now_s < self._lost_s + STAGGER_S * min(turn, MAX_TURN) + meeting_s:
            return
        self._lost_s = now_s  # if this standby fails, the next one starts after the same wait
        me = os.getpid()
        log.info("no supervisor: standing by for term %s", missed + 1)
        of_the_step = scheduler_of(self._run_id).step_variables  # a supervisor starts its own steps
        self._standby = await asyncio.create_subprocess_exec(
            *(*PYTHON, "-m", "launcher.supervisor.standby", str(self._job_dir), str(missed)),
            "closed" if self._was_closed and missed == self.term else "silent",
            self._run_id,
            env={name: value for name, value in os.environ.items() if not name.startswith(of_the_step)},
            stdin=asyncio.subprocess.PIPE,  # closed when the supervisor answers again
            start_new_session=True,
            preexec_fn=lambda: _outlive_signals(me),
        )

    async def abandon(self) -> None:
        """Give the job back to the scheduler, once it answers, because the job has no supervisor and will get none.

        The job is requeued. If the scheduler refuses, or the outcome is written, it is cancelled. A node that is cut
        off does not do this: it cannot reach the scheduler, or it sees that the lease is renewed.
        """
        try:
            await until_answered(self._hand_back)
        except (LauncherError, SlurmError, OSError) as error:
            log.error("the job has no supervisor and could not be handed back: %s", error)

    async def close(self) -> None:
        """Wait until the supervisor that this runner started has ended. A standby that has not taken over ends."""
        self.answered()
        if self._standby is not None:
            await self._standby.wait()

    def _hand_back(self) -> None:
        """Requeue or cancel the job. All runners do this at about the same time; later ones find it done."""
        if not self._is_lease_quiet():  # each time: this node may have been cut off since the last one
            return
        scheduler_of(self._run_id).hand_back(os.environ, is_over=(self._job_dir / "result.json").exists())

    def _is_lease_quiet(self) -> bool:
        """Watches the lease: whether no supervisor renews it."""
        lease = LeaseWatch(self._job_dir)
        quiet_s, until_s = 0.0, time.monotonic() + 2 * LEASE_S
        while time.monotonic() < until_s:
            time.sleep(RENEW_S / 2)
            quiet_s = lease.quiet_s()
        return quiet_s > LEASE_S

    @property
    def _stands_by(self) -> bool:
        return self._standby is not None and self._standby.returncode is None


def _outlive_signals(parent_pid: int) -> None:
    """Ignore the signals with which Slurm ends a step, because a standby has to stop and save the running workers.

    `scancel --signal=INT` signals every process of a step. SIGINT is to cancel the job only at the supervisor of the
    batch script; a supervisor that has taken over never gets it.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    die_with_parent(parent_pid)
