"""Reads untrusted data in a child process with limits of processor time and memory.

A pickle of a few hundred bytes can keep C code busy for years, without a moment in which a signal's handler could run.
Only the kernel ends that. The child returns JSON, so that nothing which it has unpickled comes into this process.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import time
import warnings
from collections.abc import Callable
from typing import IO, Any, NoReturn

import ckpt.errors
from ckpt.errors import CheckpointError, CorruptError, one_line
from ckpt.format.atomic_files import dump_json
from ckpt.format.parsing import parsing

LIMIT_S = 60  # of processor time for one part, and one second more for each _BYTES_A_SECOND of the largest file
_BYTES_A_SECOND = 4 << 20
_MEMORY_BYTES = 4 << 30  # and _MEMORY_TIMES the largest file
_MEMORY_TIMES = 16

Advance = Callable[[int], object]  # called with the number of bytes after each part


class Confinement:
    """The limits of this process, which is the child."""

    def __init__(self, pipe: IO[bytes], largest_bytes: int) -> None:
        self._pipe = pipe
        self.part_s = LIMIT_S + largest_bytes // _BYTES_A_SECOND
        self._memory_bytes = _virtual_bytes() + _MEMORY_BYTES + _MEMORY_TIMES * largest_bytes
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        self.allow(0)
        self.advance(0)

    def advance(self, nbytes: int) -> None:
        """Reports a part that has been read. The next one has the whole time again."""
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + self.part_s, hard))
        self._pipe.write(b"%d\n" % nbytes)
        self._pipe.flush()

    def allow(self, nbytes: int) -> None:
        """Allows this memory in addition."""
        self._memory_bytes += nbytes
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = self._memory_bytes if hard == resource.RLIM_INFINITY else min(self._memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def confined(act: Callable[[Confinement], Any], where: str, largest_bytes: int, advance: Advance) -> Any:
    """Calls a function in a child process and returns its result, which is JSON.

    Args:
        act: reads the data. It calls `Confinement.advance` after each part.
        where: the place of the data, for messages.
        largest_bytes: size of the largest file. The limits grow with it.
        advance: called with the number of bytes of each part.

    Raises:
        CorruptError: the data are malformed, or reading them takes more than the limits.
        CheckpointError, OSError: as the function has raised it.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: the child starts none
        child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(act, where, largest_bytes, writing)
    os.close(writing)
    answer: bytes = b""
    try:
        with os.fdopen(reading, "rb") as pipe:
            for answer in pipe:
                if answer[:1] != b"{":
                    advance(int(answer))
    finally:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if answer[:1] != b"{" or not answer.endswith(b"\n"):
        raise CorruptError(f"{where}: {_ended(status, LIMIT_S + largest_bytes // _BYTES_A_SECOND)}")
    with parsing(where):
        found = json.loads(answer)
    if "error" in found:
        kind = getattr(ckpt.errors, found["kind"], OSError)
        raise kind(found["error"])
    return found["result"]


def _answer(act: Callable[[Confinement], Any], where: str, largest_bytes: int, writing: int) -> NoReturn:
    """The child: writes the number of bytes of each part, and at last one JSON object."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the child
        warnings.simplefilter("ignore")
        with os.fdopen(writing, "wb") as pipe:
            try:
                with parsing(where):
                    answer = dump_json({"result": act(Confinement(pipe, largest_bytes))})
            except (CheckpointError, OSError) as error:
                answer = dump_json({"error": one_line(error), "kind": type(error).__name__})
            pipe.write(answer + b"\n")
        code = 0
    finally:
        os._exit(code)


def _ended(status: int, part_s: int) -> str:
    """Why there is no answer."""
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return f"a part of it takes more than {part_s} s of processor time to read; it is damaged, or made to do so"
    ended = (
        f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.waitstatus_to_exitcode(status)}"
    )
    return f"the process that read it ended with {ended}; it is damaged, or this machine has too little memory"


def _virtual_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
