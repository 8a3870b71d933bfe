"""A supervisor's leadership of its job: its term, the lease that it renews, and whether another has taken over."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from launcher.errors import LauncherError
from launcher.leadership.terms import RENEW_S, Term, claim, newest_number, renew

log = logging.getLogger(__name__)

_CHECK_S = 0.2
_LOOKS = 2  # number of checks in a row that must find the folder removed before the job ends


class Superseded(LauncherError):
    """Another supervisor has a higher term. This one must not write or command anything more, and ends."""


class FolderRemovedError(LauncherError):
    """The job's folder, or all its content, was removed. The job ends, because waiting would not help."""


class Leadership:
    """One term of one supervisor. The supervisor checks it before each record and each order that it sends.

    Args:
        job_dir: the job's folder.
        run_id, node, host: of this supervisor; they are written into the term.
    """

    def __init__(self, job_dir: Path, *, run_id: str, node: str | None, host: str) -> None:
        self._job_dir = job_dir
        self._draft = partial(Term, run_id=run_id, node=node, host=host, pid=os.getpid())
        self._device = os.stat(job_dir).st_dev
        self._taken: Term | None = None
        self._checked_s = 0.0
        self._count = 0
        self.term = 0

    def take(self, port: int, after: int | None) -> None:
        """Take the next term.

        Args:
            port: the port on which runners reach this supervisor.
            after: the term that is taken over; only its successor may be taken. None: take the next free term.

        Raises:
            Superseded: another supervisor has taken the term.
            OSError: the folder cannot be written.
        """
        while True:
            number = newest_number(self._job_dir) + 1
            if after is not None and number != after + 1:
                raise Superseded(f"term {after + 1} was taken by another supervisor")
            term = self._draft(number=number, port=port)
            if claim(self._job_dir, term):
                self.term, self._taken = number, term
                with contextlib.suppress(OSError):  # `hold` renews it next
                    renew(self._job_dir, number, 0)
                return

    def check(self) -> None:
        """Check that this term is the highest. If the terms cannot be read, only logs a warning.

        Raises:
            Superseded: there is a higher term.
            FolderRemovedError: as in `confirm`.
        """
        now_s = time.monotonic()
        if not self.term or now_s - self._checked_s < _CHECK_S:
            return
        try:
            number = self._newest()
        except OSError as error:  # events that are written now are ignored by readers if another term is higher
            log.warning("terms of %s not read: %s", self._job_dir, error)
            return
        self._compare(number)
        self._checked_s = now_s

    def confirm(self) -> None:
        """Check that this term is the highest, before an action that cannot be undone.

        Raises:
            Superseded: there is a higher term.
            OSError: the terms cannot be read. This node may be cut off, and another supervisor may have taken over.
            FolderRemovedError: the job's folder, or all its content, was removed.
        """
        self._compare(self._newest())

    async def hold(
        self, is_reached: Callable[[], bool], lost: Callable[[], None], removed: Callable[[FolderRemovedError], None]
    ) -> None:
        """Renew the lease while the runners answer. Returns when this term is superseded or the folder was removed.

        Args:
            is_reached: whether most runners answer. If not, this host may be cut off; the lease then runs out.
            lost: called when another supervisor has taken over.
            removed: called when the folder was removed.
        """
        missing = 0
        while True:
            try:
                await asyncio.to_thread(self.check)
                if is_reached():
                    self._count += 1
                    await asyncio.to_thread(renew, self._job_dir, self.term, self._count)
                missing = 0
            except Superseded:
                lost()
                return
            except FolderRemovedError as error:
                missing += 1
                if missing == _LOOKS:
                    removed(error)
                    return
            except OSError as error:  # training does not need the lease; connected runners do not read it
                log.warning("lease of %s not renewed: %s", self._job_dir, error)
            await asyncio.sleep(RENEW_S)

    def _newest(self) -> int:
        """The highest term. If our term's file was removed from an existing folder, it is written again."""
        number = newest_number(self._job_dir)
        if number >= self.term or self._taken is None:
            return number
        if not (self._job_dir / "secret").exists():
            there = next(path for path in (self._job_dir, *self._job_dir.parents) if path.exists())
            if os.stat(there).st_dev == self._device:
                raise FolderRemovedError(f"{self._job_dir}: removed while the job ran; submit the job again")
            raise OSError(errno.ESTALE, "our term is not there", str(self._job_dir / "terms"))
        log.warning("%s was removed: our term %d is written again", self._job_dir / "terms", self.term)
        claim(self._job_dir, self._taken)
        return newest_number(self._job_dir)

    def _compare(self, number: int) -> None:
        if number > self.term:
            raise Superseded(f"term {number} rules, ours is {self.term}")
