"""Writes each line to hooks.log and to stderr, which slurmd logs.

It does not use `logging`, whose import takes longer than a whole prolog.
"""

from __future__ import annotations

import os
import time

_MOST_BYTES = 4 << 20


class HookLog:
    """The log of a hook. Its methods never raise."""

    def __init__(self) -> None:
        self._name = "hooks"
        self._file = -1

    def open(self, path: str, name: str) -> None:
        """Opens the log file. If it cannot be written, prints that to stderr.

        Args:
            path: the file; a file that is too long is renamed to `<path>.1`.
            name: the hook's name.
        """
        self._name = name
        try:
            self._file = _appended(path)
            if os.fstat(self._file).st_size > _MOST_BYTES:
                os.replace(path, f"{path}.1")
                os.close(self._file)
                self._file = _appended(path)
        except OSError as error:
            self.warning("%s cannot be written: %s", path, error.strerror)

    @property
    def descriptor(self) -> int:
        """Of the file; -1 where there is none."""
        return self._file

    def info(self, text: str, *values: object) -> None:
        self._write("INFO", text, values)

    def warning(self, text: str, *values: object) -> None:
        self._write("WARNING", text, values)

    def error(self, text: str, *values: object) -> None:
        self._write("ERROR", text, values)

    def exception(self, text: str, *values: object) -> None:
        """An error, with the traceback of what is being handled."""
        import traceback

        self._write("ERROR", f"{text}\n%s", (*values, traceback.format_exc().rstrip()))

    def _write(self, level: str, text: str, values: tuple[object, ...]) -> None:
        now_s = time.time()
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now_s))
        message = text % values if values else text
        line = f"{at},{int(now_s * 1000) % 1000:03} {self._name}[{os.getpid()}] {level} {message}\n"
        for descriptor in (2, self._file):
            try:
                os.write(descriptor, line.encode(errors="replace"))
            except OSError:  # the disk or the pipe is full
                pass


def _appended(path: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o644)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, 0o644)


log = HookLog()
"""The log of this process."""
