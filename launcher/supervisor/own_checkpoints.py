"""Progress of a script that writes its own checkpoints: the newest file that matches the job file's `progress`."""

from __future__ import annotations

import asyncio
import glob
import os
from dataclasses import dataclass

from holdfast.base.deadlines import within

_LOOK_S = 10.0  # a shared file system may hang


@dataclass(frozen=True, kw_only=True)
class Newest:
    """The newest file, and its modification time (s since the epoch); "" and 0 if there is no file."""

    file: str
    modified_s: float


class OwnCheckpoints:
    """Looks for the newest file.

    Args:
        pattern: a glob pattern; ** stands for any number of folders. A relative one counts from this process' working
            directory, in which the workers run too.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = os.path.join(glob.escape(os.getcwd()), pattern)
        self._seen: Newest | None = None

    async def look(self) -> Newest | None:
        """The newest file if it has changed since the previous call. Else None, also if this takes over `_LOOK_S`."""
        try:
            newest = await within(_LOOK_S, asyncio.to_thread(_newest, self._pattern))
        except TimeoutError:
            return None
        if newest == self._seen:
            return None
        self._seen = newest
        return newest


def _newest(pattern: str) -> Newest:
    newest = Newest(file="", modified_s=0.0)
    for file in glob.iglob(pattern, recursive=True):
        try:
            modified_s = os.stat(file).st_mtime
        except OSError:
            continue  # removed meanwhile: scripts keep a few
        if modified_s > newest.modified_s:
            newest = Newest(file=file, modified_s=modified_s)
    return newest
