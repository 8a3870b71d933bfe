"""What rank 0 says of saves and loads: on its console, and in one file per namespace that outlives the job."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

_SHORT_S = 0.001
_FORM = "%(asctime)s %(levelname)s %(message)s"
_root = logging.getLogger("ckpt")
log = logging.getLogger(__name__)


class Journal:
    """Handlers on the logger `ckpt`, from the first Checkpointer of rank 0 to its end."""

    def __init__(self, namespace: str, env: Mapping[str, str]) -> None:
        self._handlers: list[logging.Handler] = []
        self._level = _root.level
        if not _root.hasHandlers():  # a program that has set up logging decides by itself what its console shows
            self._add(logging.StreamHandler(sys.stderr))
        folder = log_folder(env)
        if folder is not None:
            path = folder / f"{namespace}_checkpointing.log"
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
                self._add(_Closing(os.fdopen(os.open(path, flags, 0o600), "w")))
            except OSError as error:
                log.warning("no log file %s: %s", path, error.strerror)
        if _root.getEffectiveLevel() > logging.INFO:
            _root.setLevel(logging.INFO)

    def close(self) -> None:
        """Takes the handlers away again. May be called twice."""
        for handler in self._handlers:
            _root.removeHandler(handler)
            handler.close()
        if self._handlers:
            _root.setLevel(self._level)
        self._handlers.clear()

    def _add(self, handler: logging.Handler) -> None:
        handler.setFormatter(logging.Formatter(_FORM))
        _root.addHandler(handler)
        self._handlers.append(handler)


class _Closing(logging.StreamHandler):
    """Closes its stream; one write for each line, so that runs that share a file never mix within one."""

    def close(self) -> None:
        self.stream.close()
        super().close()


def log_folder(env: Mapping[str, str]) -> Path | None:
    """$HOLDFAST_LOG_DIR, or holdfast/log in the user's state folder; None when the environment names neither."""
    if env.get("HOLDFAST_LOG_DIR"):
        return Path(env["HOLDFAST_LOG_DIR"])
    if env.get("XDG_STATE_HOME"):
        return Path(env["XDG_STATE_HOME"]) / "holdfast" / "log"
    return Path(env["HOME"]) / ".local" / "state" / "holdfast" / "log" if env.get("HOME") else None


def rate(nbytes: int, seconds: float) -> str:
    """Bytes, seconds and MB/s, the same in every line; no speed where the time is too short to tell it."""
    if seconds < _SHORT_S:
        return f"{nbytes} bytes in under {_SHORT_S * 1000:g} ms"
    megabytes_s = nbytes / 1e6 / seconds
    return f"{nbytes} bytes in {seconds:.3f} s, {megabytes_s:.{0 if megabytes_s >= 10 else 2}f} MB/s"
