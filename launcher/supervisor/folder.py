"""The job's folder: writes the files that must exist before runners start, and the supervisor's own log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import queue
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from typing import Any

from holdfast.base.files import durable_write
from launcher.errors import LauncherError
from launcher.job.jobfile import JobSpec

_PROBE_BYTES = 64 << 10
_AGAIN_S = 0.5


def make_folders(job_dir: Path) -> None:
    """Make the job's folder and its folder for logs, accessible only to the user.

    Raises:
        LauncherError: a folder cannot be made.
    """
    try:
        job_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        job_dir.chmod(0o700)
        (job_dir / "log").mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise LauncherError(f"{job_dir}: cannot be the job's folder ({error.strerror}); choose another") from None


def prepare(spec: JobSpec, job_dir: Path) -> None:
    """Write the files that runners read. An existing secret is kept; the result of an earlier run is removed."""
    if not (job_dir / "secret").exists():
        durable_write(job_dir / "secret", os.urandom(32).hex().encode())
    write_json(job_dir / "job.json", spec.to_json())
    (job_dir / "result.json").unlink(missing_ok=True)


def read_secret(job_dir: Path) -> bytes:
    """Read the job's secret, which supervisor and runners prove to each other."""
    return bytes.fromhex((job_dir / "secret").read_text())


def probe(directory: Path) -> None:
    """Write a test file, as large as an attempt's first log lines, into a directory. Makes it and its parent.

    Raises:
        OSError: the file system is full, read-only or not available.
    """
    trial = directory / f".probe-{os.getpid()}"
    for path in (directory.parent, directory):  # the job's folder itself is not made, because it may have been removed
        path.mkdir(mode=0o700, exist_ok=True)
    durable_write(trial, bytes(_PROBE_BYTES))
    trial.unlink()


async def until_written(write: Callable[[], None], *, timeout_s: float, give_up: Callable[[], bool]) -> str | None:
    """Repeat a write until it succeeds. The write runs in a thread, because the file system may be slow.

    Returns:
        None on success. Else the last error, when `timeout_s` has passed or `give_up` has returned True.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            await asyncio.to_thread(write)
            return None
        except OSError as error:
            why = f"{error.filename or 'write'}: {error.strerror}"
        if give_up() or time.monotonic() >= deadline_s:
            return why
        await asyncio.sleep(_AGAIN_S)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically."""
    durable_write(path, json.dumps(content, indent=1).encode() + b"\n")


@contextlib.contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Write the launcher's log to a file and to stdout, in a thread, because either file system may hang."""
    logger = logging.getLogger("launcher")
    lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    handlers: list[logging.Handler] = [logging.FileHandler(path), logging.StreamHandler(sys.stdout)]
    level, propagates = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False  # the process may be another program's, whose root logger prints each line again
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    sends, writes = QueueHandler(lines), QueueListener(lines, *handlers)
    logger.addHandler(sends)
    writes.start()
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.propagate = propagates
        logger.removeHandler(sends)
        writes.stop()
        for handler in handlers:
            handler.close()
