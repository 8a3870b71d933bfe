"""Removes a user's directory tree of any depth and size, in small pieces."""

from __future__ import annotations

import os
import time

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str, *, most: int, end_s: float) -> bool:
    """Removes a path with the rights of this process. Follows no link.

    It does not recurse, and has at most two directories open: a directory that is not empty is first moved to the top
    of the tree.

    Args:
        path: a directory or file.
        most: the largest number of entries to visit.
        end_s: the deadline, on the monotonic clock.

    Returns:
        Whether nothing is left. After False, call it again.

    Raises:
        OSError: what is left cannot be removed.
    """
    try:
        top = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return True
    except NotADirectoryError:  # O_NOFOLLOW gives the same for a link
        os.unlink(path)
        return True
    except PermissionError:
        os.chmod(path, 0o700)
        top = os.open(path, _DIRECTORY)
    try:
        is_empty = _Tree(top, most, end_s).empty()
    finally:
        os.close(top)
    if is_empty:
        os.rmdir(path)
    return is_empty


class _Tree:
    """The tree below an open directory."""

    def __init__(self, top: int, most: int, end_s: float) -> None:
        self._top = top
        self._left = most
        self._end_s = end_s
        self._changes = 0
        self._prefix = f".removed-{os.urandom(8).hex()}-"

    def empty(self) -> bool:
        """Empties the tree; whether nothing is left. Each pass also removes what the previous one moved up."""
        while True:
            left, changes = self._left, self._changes
            error = self._pass(self._top)
            if self._left <= 0:
                return False
            if self._left == left:
                return True
            if error is not None and self._changes == changes:
                raise error

    def _pass(self, directory: int) -> OSError | None:
        """Removes the entries of a directory; returns the first error."""
        first = None
        if os.fstat(directory).st_mode & 0o700 != 0o700:
            os.fchmod(directory, 0o700)
        with os.scandir(directory) as entries:
            for entry in entries:
                if self._left <= 0 or time.monotonic() > self._end_s:
                    self._left = 0
                    break
                self._left -= 1
                try:
                    self._remove(entry, directory)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    first = first or error
        return first

    def _remove(self, entry: os.DirEntry[str], above: int) -> None:
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.name, dir_fd=above)
        elif above == self._top:
            self._remove_child(entry.name)
        else:
            self._remove_or_move_up(entry.name, above)
        self._changes += 1

    def _remove_child(self, name: str) -> None:
        """Removes a directory right below the top."""
        try:
            child = os.open(name, _DIRECTORY, dir_fd=self._top)
        except PermissionError:
            os.chmod(name, 0o700, dir_fd=self._top)
            child = os.open(name, _DIRECTORY, dir_fd=self._top)
        try:
            error = self._pass(child)
        finally:
            os.close(child)
        if error is not None:
            raise error
        if self._left > 0:
            os.rmdir(name, dir_fd=self._top)

    def _remove_or_move_up(self, name: str, above: int) -> None:
        try:
            os.rmdir(name, dir_fd=above)
            return
        except OSError:
            pass  # it is not empty
        fresh = f"{self._prefix}{self._changes}"
        try:
            os.rename(name, fresh, src_dir_fd=above, dst_dir_fd=self._top)
        except PermissionError:  # renaming a directory writes its `..` entry, which needs write permission
            os.chmod(name, 0o700, dir_fd=above)
            os.rename(name, fresh, src_dir_fd=above, dst_dir_fd=self._top)
