"""The job's folder: what has to be there before anything else of the job can start, and the supervisor's own log."""

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

from ckpt import durable_write
from launcher.errors import LauncherError
from launcher.jobfile import JobSpec

_PROBE_BYTES = 64 << 10
_AGAIN_S = 0.5


def make_folders(job_dir: Path) -> None:
    """Makes the folder and the one for logs, for the job's user alone.

    Raises:
        LauncherError: it cannot be made there.
    """
    try:
        job_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        job_dir.chmod(0o700)
        (job_dir / "log").mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise LauncherError(f"{job_dir}: cannot be the job's folder ({error.strerror}); choose another") from None


def prepare(spec: JobSpec, job_dir: Path) -> None:
    """Writes what runners need to know; a secret that is there already stays, a result does not."""
    if not (job_dir / "secret").exists():
        durable_write(job_dir / "secret", os.urandom(32).hex().encode())
    write_json(job_dir / "job.json", spec.to_json())
    (job_dir / "result.json").unlink(missing_ok=True)


def read_secret(job_dir: Path) -> bytes:
    """What supervisor and runners prove to each other."""
    return bytes.fromhex((job_dir / "secret").read_text())


def probe(directory: Path) -> None:
    """Tries to write into a directory as much as an attempt's first log lines need; makes it, and its parent.

    Raises:
        OSError: the file system is full, read-only or away.
    """
    trial = directory / f".probe-{os.getpid()}"
    for path in (directory.parent, directory):  # not the job's folder itself: somebody may have removed it
        path.mkdir(mode=0o700, exist_ok=True)
    durable_write(trial, bytes(_PROBE_BYTES))
    trial.unlink()


async def until_written(write: Callable[[], None], *, timeout_s: float, give_up: Callable[[], bool]) -> str | None:
    """Repeats a write until it succeeds. The file system may be slow to answer: it is asked in a thread.

    Returns:
        None when it is written; else what stood against it when `timeout_s` had passed, or `give_up` returned True.
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
    """Writes a file for people and programs: whole, or not at all."""
    durable_write(path, json.dumps(content, indent=1).encode() + b"\n")


@contextlib.contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Sends the launcher's log to a file and to stdout, from a thread: either may be on a file system that hangs."""
    logger = logging.getLogger("launcher")
    lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    handlers: list[logging.Handler] = [logging.FileHandler(path), logging.StreamHandler(sys.stdout)]
    level = logger.level
    logger.setLevel(logging.INFO)
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    sends, writes = QueueHandler(lines), QueueListener(lines, *handlers)
    logger.addHandler(sends)
    writes.start()
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(sends)
        writes.stop()
        for handler in handlers:
            handler.close()
