"""A runner's part in the succession: which supervisor rules, and, when it is our turn, a standby that takes over."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from pathlib import Path

from ckpt.agent.process.launch import PYTHON
from launcher.disk_read import DiskRead
from launcher.leadership.terms import LEASE_S, RENEW_S, LeaseWatch, Term, newest
from launcher.processes import die_with_parent
from slurm import JobEnvironment, Slurm, SlurmError

log = logging.getLogger(__name__)

STAGGER_S = 2.0  # between one candidate and the next: the first needs so long to be up and seen
_MEETING_S = 1.0  # one that has just begun is connected to first
_READ_TIMEOUT_S = 0.5  # the terms' file system may hang
_MAX_TURN = 8  # from here on nobody waits longer: claiming a term is safe for any number at once
# Of the step that we run in; a supervisor starts steps of its own.
_STEP_VARIABLES = ("SLURM_STEP", "SLURM_TASK", "SLURM_CPU_BIND", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_DISTRIBUTION",
                   "SLURM_PROCID", "SLURM_LOCALID", "SLURM_SRUN", "SLURM_LAUNCH", "SLURM_UMASK", "PMI")  # fmt: skip


class Succession:
    """Follows the terms of one job.

    Args:
        job_dir: the job's folder.
    """

    def __init__(self, job_dir: Path) -> None:
        self._job_dir = job_dir
        self._terms = DiskRead(lambda: newest(job_dir), job_dir / "terms")
        self._ruling: Term | None = None
        self._is_unread = False  # whether they could not be read when that was tried last
        self._standby: asyncio.subprocess.Process | None = None
        self._lost_s: float | None = None
        self._missed = 0  # the term that has been without a supervisor since then
        self._was_closed = False  # whether the supervisor's host closed our connection
        self.term = 0  # the highest that we have obeyed
        self.turn: int | None = None  # our place in the succession; None: there is none

    def welcome(self, term: int, turn: int | None) -> bool:
        """A supervisor has taken us on; False if a higher one has before: we do not obey it."""
        if term < self.term:
            log.warning("supervisor of term %s refused: we obey term %s", term, self.term)
            return False
        self.term, self.turn = term, turn
        self.answered()
        return True

    def answered(self) -> None:
        """The supervisor has sent a message: nobody needs to stand by."""
        self._lost_s, self._was_closed = None, False
        if self._standby is not None and self._standby.stdin is not None:
            self._standby.stdin.close()

    def closed(self) -> None:
        """The supervisor, or its host's kernel, has closed the connection."""
        self._was_closed = True

    async def is_superseded(self) -> bool:
        """Whether a higher term rules than the one that we obey."""
        ruling = await self.ruling()
        return ruling is not None and ruling.number > self.term

    async def ruling(self) -> Term | None:
        """The newest term, or the newest that could be read before."""
        try:
            self._ruling = await self._terms.newest(_READ_TIMEOUT_S)
            self._is_unread = False
        except (OSError, ValueError) as error:
            if not self._is_unread:
                log.warning("terms not read: %s", error)
            self._is_unread = True
        return self._ruling

    async def step_in(self) -> None:
        """Called again and again while the supervisor is missed: starts a standby when our turn has come."""
        if self.turn is None or self._stands_by:
            return
        now_s = time.monotonic()
        ruling = await self.ruling()
        missed = max(self.term, ruling.number if ruling is not None else 0)
        if self._lost_s is None or missed != self._missed:
            self._lost_s, self._missed = now_s, missed
        # Each term since ours has gone to one who came before us.
        turn = max(0, self.turn - (missed - self.term))
        meeting_s = _MEETING_S if missed > self.term else 0.0
        if now_s < self._lost_s + STAGGER_S * min(turn, _MAX_TURN) + meeting_s:
            return
        self._lost_s = now_s  # and again after a while, should this one come to nothing
        me = os.getpid()
        log.info("no supervisor: standing by for term %s", missed + 1)
        self._standby = await asyncio.create_subprocess_exec(
            *(*PYTHON, "-m", "launcher.supervisor.standby", str(self._job_dir), str(missed)),
            "closed" if self._was_closed and missed == self.term else "silent",
            env={name: value for name, value in os.environ.items() if not name.startswith(_STEP_VARIABLES)},
            stdin=asyncio.subprocess.PIPE,  # closed when the supervisor answers again
            start_new_session=True,
            preexec_fn=lambda: _outlive_signals(me),
        )

    async def abandon(self) -> None:
        """Nobody supervises the job, and nobody will: hands it back to Slurm rather than leave it running and empty.

        It is requeued, or cancelled where that is refused or its outcome is written. A node that is cut off does not
        get through to Slurm, or sees that the lease is renewed.
        """
        try:
            lease = LeaseWatch(self._job_dir)
            quiet_s, until_s = 0.0, time.monotonic() + 2 * LEASE_S
            while time.monotonic() < until_s:
                await asyncio.sleep(RENEW_S / 2)
                quiet_s = lease.quiet_s()
            if quiet_s > LEASE_S:
                await asyncio.to_thread(self._hand_back)
        except (SlurmError, OSError) as error:
            log.error("the job has no supervisor and could not be handed back: %s", error)

    async def close(self) -> None:
        """Waits for the supervisor that we started, which ends with us; a standby leaves."""
        self.answered()
        if self._standby is not None:
            await self._standby.wait()

    def _hand_back(self) -> None:
        """Every runner does this at about the same time: whoever comes later finds it done."""
        us, slurm = JobEnvironment.from_env(os.environ), Slurm()

        def is_ours() -> bool:
            job = slurm.job(us.reference)
            if job is None or job.restarts != us.restart_count:
                return False
            return job.state == "RUNNING" or job.has_lost_its_script

        if not is_ours():
            return
        if not (self._job_dir / "result.json").exists():
            try:
                slurm.requeue(us.reference)
                return
            except SlurmError as error:
                if not is_ours():
                    return
                log.warning("the job has no supervisor and could not be requeued: %s; it is cancelled", error)
        slurm.cancel(us.reference)

    @property
    def _stands_by(self) -> bool:
        return self._standby is not None and self._standby.returncode is None


def _outlive_signals(parent_pid: int) -> None:
    """Slurm may be ending the step: a standby that is coming up has to stop and save what runs.

    `scancel --signal=INT` signals every process of a step. A SIGINT cancels the job at the batch script's supervisor
    alone: one that has taken over never gets it.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    die_with_parent(parent_pid)
