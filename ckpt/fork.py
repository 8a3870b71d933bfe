"""Closes Holdfast's descriptors in processes that are forked from a worker, such as those of a DataLoader.

If a forked process kept them open, they would outlive the worker. Agents of a program without a launcher would then
serve the dead worker for ever, and the lock of a directory would refuse the next start.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from pathlib import Path
from typing import Protocol


class Inherited(Protocol):
    """An object whose descriptors a forked process must not keep."""

    def let_go(self) -> None:
        """Close the descriptors. Called once in the forked process.

        No other thread exists there, so this must wait for no lock. It must send no message.
        """


_inherited: weakref.WeakSet[Inherited] = weakref.WeakSet()


def let_go_when_forked(inherited: Inherited) -> None:
    """Have every process forked from this one call `inherited.let_go()`, as long as the object exists here."""
    _inherited.add(inherited)


def drop_descriptors_below(directory: Path) -> None:
    """Close all open files below a directory, including those of mappings.

    The descriptors are redirected to /dev/null, because their owners may still close them.
    """
    below = f"{directory}/"
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed
            if os.readlink(f"/proc/self/fd/{name}").startswith(below):
                os.dup2(nowhere, int(name), inheritable=False)
    os.close(nowhere)


def _let_go() -> None:
    for inherited in list(_inherited):
        inherited.let_go()


os.register_at_fork(after_in_child=_let_go)
