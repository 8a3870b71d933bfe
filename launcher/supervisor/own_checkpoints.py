"""Follows the checkpoints that a script writes by itself: the files that match the job file's `progress`."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import os
import time
from collections.abc import Callable

from holdfast.base.deadlines import within
from launcher.core.inputs import Input, OwnCheckpointsSeen

LOOK_S = 10.0
REST = 10  # a look through a large folder on a shared file system is followed by a pause of this many times its length


async def follow_own_checkpoints(pattern: str, has_worker_ended: asyncio.Event, put: Callable[[Input], None]) -> None:
    """Gives the core the newest file, now and whenever it has changed. It looks every LOOK_S, and once workers have
    ended: what they wrote last counts for the attempt if it is found before all processes of it are gone.

    Args:
        pattern: a glob pattern; ** stands for any number of folders. A relative one counts from this process' working
            directory, in which the workers run too.
        has_worker_ended: is set when workers have ended.
        put: gives an input to the core.
    """
    pattern = os.path.join(glob.escape(os.getcwd()), pattern)
    known = None
    while True:
        has_worker_ended.clear()
        begun_s = time.monotonic()
        newest = await asyncio.to_thread(_newest, pattern)
        if newest != known:
            known = newest
            put(newest)
        with contextlib.suppress(TimeoutError):
            await within(max(LOOK_S, REST * (time.monotonic() - begun_s)), has_worker_ended.wait())


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
