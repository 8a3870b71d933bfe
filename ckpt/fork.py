"""What a process forked from a training process (a DataLoader's worker, say) inherits of ours: nothing of it stays.

Held open by such a process, a connection would not close with the training process that died: the agents of a program
without a launcher would serve it for ever, and a directory's lock would keep the next start out.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from pathlib import Path
from typing import Protocol


class Inherited(Protocol):
    """Something that a forked process is to have no part in."""

    def let_go(self) -> None:
        """Called in the forked process, once, where no other thread is left: must wait for no lock and tell nobody."""


_inherited: weakref.WeakSet[Inherited] = weakref.WeakSet()


def let_go_when_forked(inherited: Inherited) -> None:
    """Has every process that is forked from this one let go of it, for as long as it lives here."""
    _inherited.add(inherited)


def drop_descriptors_below(directory: Path) -> None:
    """Closes the files of a directory that this process has open, those of maps too.

    The numbers stay in use, for /dev/null: their owners may still close them.
    """
    below = f"{directory}/"
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself is gone
            if os.readlink(f"/proc/self/fd/{name}").startswith(below):
                os.dup2(nowhere, int(name), inheritable=False)
    os.close(nowhere)


def _let_go() -> None:
    for inherited in list(_inherited):
        inherited.let_go()


os.register_at_fork(after_in_child=_let_go)
