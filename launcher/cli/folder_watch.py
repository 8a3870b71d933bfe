"""Whether the folder of a running job can be written, for those who follow it: what it reports arrives there."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.blocks import printable

_LOOK_S = 2.0
_PROBE_BYTES = 4096


class FolderWatch:
    """Tries the folder now and then, by a small file.

    Args:
        folder: the job's folder, of this user.
        clock: monotonic clock, in seconds.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._next_s = clock() + _LOOK_S
        self._trouble: str | None = None

    def news(self) -> str | None:
        """A line for the user once the folder can be written no more, or again; else None."""
        if self._clock() < self._next_s:
            return None
        trouble = self._try()
        self._next_s = self._clock() + _LOOK_S
        if trouble == self._trouble:
            return None
        self._trouble = trouble
        return trouble or f"{self._folder} can be written again: what the job has reported meanwhile follows"

    def _try(self) -> str | None:
        trial = self._folder / f".watch-{os.getpid()}"
        try:
            trial.write_bytes(bytes(_PROBE_BYTES))
        except FileNotFoundError:
            return (
                f"{self._folder} is gone. If it was removed, the job ends; its steps stay where they were saved: start "
                "it again. If its file system is not mounted, mount it: the job goes on meanwhile, unseen"
            )
        except OSError as error:
            return (
                f"{self._folder} cannot be written ({printable(str(error.strerror))}). The job goes on, and what "
                "it reports is shown once it can be written; at its end the job waits for that, up to 10 min. Make room"
            )
        finally:
            with contextlib.suppress(OSError):
                trial.unlink()
        return None
