"""Files that root publishes for everybody to read: a reader sees the old one or the new one, never a part."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def publish(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Writes a file through a temporary name, fsync, rename and fsync of the directory.

    Args:
        path: the final name; its directory is made (0755, whatever the umask) where it is missing.
        data: the whole content.
        mode: permissions of the file, whatever the umask.

    Raises:
        OSError: the disk is full, read-only or failing; the older file is then untouched.
    """
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o755)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
