"""The folder of a namespace, held open: what another user puts in its place meanwhile is never written to."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ckpt.errors import NamespaceError

_SQUASHED = 65534  # the uid that NFS gives root (root_squash)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC  # flags of open()


@contextmanager
def own_folder(folder: Path) -> Iterator[Path]:
    """Yields a path that leads to this directory until the end, even if `folder` is renamed or replaced.

    Other users may be allowed to write to its parent, and so to rename what is there. The path is valid in this process
    alone. Errors name `folder`.

    Raises:
        NamespaceError: it belongs to another user, or is a symbolic link that another user has made.
        OSError: it does not exist, or is not a directory.
    """
    descriptor = _open(folder)
    held = f"/proc/self/fd/{descriptor}"
    try:
        _check_user(folder, os.fstat(descriptor).st_uid)
        yield Path(held)
    except OSError as error:
        for name in ("filename", "filename2"):
            if isinstance(path := getattr(error, name), (str, Path)):
                setattr(error, name, str(path).replace(held, str(folder)))
        raise
    finally:
        os.close(descriptor)


def _open(folder: Path) -> int:
    try:
        return os.open(folder, _DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR) or not folder.is_symlink():
            raise
    link = os.open(folder, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        maker = os.fstat(link).st_uid
        if maker not in (0, os.getuid()):
            raise NamespaceError(f"{folder}: is a symbolic link of uid {maker}; remove it, or choose another path")
        return os.open(folder.parent / os.readlink("", dir_fd=link), _DIRECTORY)
    finally:
        os.close(link)


def _check_user(folder: Path, owner: int) -> None:
    """Checks the owner. The mark alone is not enough: any user who may write to the parent could have made it."""
    user = os.getuid()
    if owner != user and not (user == 0 and owner == _SQUASHED):
        raise NamespaceError(f"{folder}: belongs to uid {owner}, we are uid {user}; choose another path")
