"""Private directories, and reads that take only regular files. Durable writes are in holdfast.base.files."""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import stat
from pathlib import Path
from typing import Any

from ckpt.errors import ConfigError, CorruptError

MEMORY_ROOT = Path("/dev/shm")


def private_directory(path: Path) -> None:
    """Makes a directory of mode 0700, and its missing parents below `/dev/shm`.

    Raises:
        ConfigError: a directory on the path is not private to this user.
        OSError: a directory cannot be made.
    """
    levels = [path, *path.parents]
    for level in reversed(levels[: levels.index(MEMORY_ROOT)] if MEMORY_ROOT in levels else [path]):
        with contextlib.suppress(FileExistsError):
            level.mkdir(mode=0o700)
        status = os.lstat(level)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise ConfigError(
                f"memory directory {level}: mode {status.st_mode & 0o777:o} of uid {status.st_uid}, "
                f"expected a directory of mode 700 of uid {os.getuid()}; remove it"
            )


def open_regular(path: Path) -> int:
    """A read-only descriptor.

    Raises CorruptError for anything but a regular file, such as a symlink, a pipe or a device.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        if path.is_symlink():
            raise CorruptError(f"{path}: is a symbolic link, expected a regular file") from None
        if error.errno == errno.ENXIO:
            raise CorruptError(f"{path}: is a socket, expected a regular file") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CorruptError(f"{path}: is not a regular file")
    return descriptor


def read_regular(path: Path, most_bytes: int) -> bytes:
    """The content of a small file.

    Raises CorruptError if it is not a regular file or is longer than that, and OSError.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        if (size := os.fstat(file.fileno()).st_size) > most_bytes:  # before it is read: a sparse file costs nothing
            raise CorruptError(f"{path}: got {size} bytes, expected at most {most_bytes}")
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise CorruptError(f"{path}: got more bytes, expected at most {most_bytes}")
    return data


def map_regular(path: Path, start: int, nbytes: int) -> memoryview:
    """A part of a file, mapped; raises CorruptError for what is no regular file or is shorter, OSError."""
    descriptor = open_regular(path)
    try:
        if (size := os.fstat(descriptor).st_size) < start + nbytes:
            raise CorruptError(f"{path}: got {size} bytes, expected at least {start + nbytes}")
        if not nbytes:
            return memoryview(b"")
        first = start - start % mmap.ALLOCATIONGRANULARITY
        # Copy-on-write, and never written: torch warns about read-only memory, and direct I/O refuses it.
        mapped = mmap.mmap(descriptor, start + nbytes - first, access=mmap.ACCESS_COPY, offset=first)
        return memoryview(mapped)[start - first :]
    finally:
        os.close(descriptor)


def dump_json(value: Any) -> bytes:
    """Compact JSON in UTF-8. NaN and infinities are written as Python writes them."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
