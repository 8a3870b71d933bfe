"""Writes files durably: after a crash at any moment a reader sees the old file or the new one, never a part."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
from pathlib import Path


def durable_write(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Writes a file of mode 0600 through a temporary name, fsync, rename and fsync of the directory.

    Args:
        path: the final name; an older file is replaced atomically.
        sync: False on memory file systems, where fsync has no effect.

    Raises:
        OSError: the disk is full, read-only or failing; the older file is then untouched.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")  # process ids are not unique between nodes
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes renames and deletions in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Writes a file for all users to read, as durable_write() does.

    Temporary files of killed writers are removed.

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
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _remove_orphans(path.name, directory)
        descriptor, draft = _draft(path.name, directory)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(descriptor, mode)
                os.fsync(descriptor)
                os.replace(draft, path.name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=directory)
            raise
        os.fsync(directory)
    finally:
        os.close(directory)


def _draft(name: str, directory: int) -> tuple[int, str]:
    """A new temporary file, locked while its writer lives, and its name."""
    while True:
        draft = f".{name}.{secrets.token_hex(4)}.tmp"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=directory)
        if _lock(descriptor) is not False and os.fstat(descriptor).st_nlink:
            return descriptor, draft
        os.close(descriptor)  # another writer has found it before it was locked, and removes it


def _remove_orphans(name: str, directory: int) -> None:
    """Removes temporary files of this file whose writers are dead, so that their locks are gone."""
    is_draft = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{8}}\.tmp").fullmatch
    with os.scandir(directory) as entries:
        drafts = [entry.name for entry in entries if is_draft(entry.name) and entry.is_file(follow_symlinks=False)]
    for draft in drafts:
        with contextlib.suppress(OSError):  # it is gone, or belongs to another writer; neither stops this write
            descriptor = os.open(draft, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
            try:
                if _lock(descriptor):
                    os.unlink(draft, dir_fd=directory)
            finally:
                os.close(descriptor)


def _lock(descriptor: int) -> bool | None:
    """Locks a file; False if another process has it, None if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
