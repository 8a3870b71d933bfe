"""Reads files of a job's folder safely. The folder may be another user's; a pipe in it must not block the reader."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import IO, Any

_LONGEST_BYTES = 16 << 20


def open_plain(path: Path, most_of_others: int | None = None) -> IO[bytes]:
    """Open a regular file for reading.

    Args:
        path: the file.
        most_of_others: the largest size in bytes of a file that belongs to another user; None for any size.

    Raises:
        OSError: the file is missing, cannot be read, is a pipe, a socket or a device, or is another user's and larger.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        os.close(descriptor)
        raise OSError(0, "not a regular file", str(path))
    if most_of_others is not None and facts.st_uid != os.geteuid() and facts.st_size > most_of_others:
        os.close(descriptor)
        raise OSError(
            errno.EFBIG, f"{facts.st_size} bytes of uid {facts.st_uid}, expected at most {most_of_others}", str(path)
        )
    return os.fdopen(descriptor, "rb")


def read_json(path: Path) -> dict[str, Any]:
    """Read a file with one JSON object.

    Raises:
        OSError: as in open_plain().
        ValueError: the file is not a JSON object, or is larger than 16 MiB.
    """
    with open_plain(path) as file:
        data = file.read(_LONGEST_BYTES + 1)
    if len(data) > _LONGEST_BYTES:
        raise ValueError(f"{path}: longer than {_LONGEST_BYTES >> 20} MiB, expected a JSON object")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({type(error).__name__})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path}: got {type(value).__name__}, expected a JSON object")
    return value
