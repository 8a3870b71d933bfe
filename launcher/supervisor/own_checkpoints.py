"""Follows the checkpoints that a script writes by itself: the files that match the job file's `progress`."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import os
import time
from collections.abc import Callable

from holdfast.base.deadlines import within
from launcher.core.inputs import Input, OwnCheckpointsSeen, WorkersKilled

LOOK_S = 10.0
REST = 10  # a look through a large folder on a shared file system is followed by a pause of this many times its length
LAST_LOOK_S = 2.0


class OwnCheckpoints:
    """Gives the core the newest file, at the start and whenever it has changed."""

    def __init__(self, pattern: str, put: Callable[[Input], None]) -> None:
        """
        Args:
            pattern: a glob pattern; ** stands for any number of folders. A relative one counts from this process'
                working directory, in which the workers run too.
            put: gives an input to the core.
        """
        self._pattern = os.path.join(glob.escape(os.getcwd()), pattern)
        self._put = put
        self._has_ended = asyncio.Event()  # whether an input is held back
        self._held: dict[WorkersKilled, asyncio.TimerHandle] = {}
        self._passed: set[WorkersKilled] = set()

    async def follow(self) -> None:
        """Looks every LOOK_S, and for each input that is held back."""
        known = None
        while True:
            self._has_ended.clear()
            begun_s, held = time.monotonic(), list(self._held)
            newest = await asyncio.to_thread(_newest, self._pattern)
            if newest != known:
                known = newest
                self._put(newest)
            for given in held:
                self._pass(given)
            with contextlib.suppress(TimeoutError):
                await within(max(LOOK_S, REST * (time.monotonic() - begun_s)), self._has_ended.wait())

    def holds_back(self, given: Input) -> bool:
        """Whether an input is given again after a look that begins now, or after LAST_LOOK_S at the latest.

        So what workers wrote last counts for their attempt, which ends as all its processes have.
        """
        if not isinstance(given, WorkersKilled):
            return False
        if given in self._passed:
            self._passed.discard(given)
            return False
        if given not in self._held:
            self._held[given] = asyncio.get_running_loop().call_later(LAST_LOOK_S, self._pass, given)
            self._has_ended.set()
        return True

    def _pass(self, given: WorkersKilled) -> None:
        if (timer := self._held.pop(given, None)) is not None:
            timer.cancel()
            self._passed.add(given)
            self._put(given)


def _newest(pattern: str) -> OwnCheckpointsSeen:
    newest = OwnCheckpointsSeen(file="", modified_s=0.0)
    for file in glob.iglob(pattern, recursive=True):
        try:
            modified_s = os.stat(file).st_mtime
        except OSError:
            continue  # removed meanwhile: scripts keep a few
        if modified_s > newest.modified_s:
            newest = OwnCheckpointsSeen(file=file, modified_s=modified_s)
    return newest
