"""Kills a process and all its descendants, including tools in sessions of their own."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def kill_tree(pid: int) -> None:
    """Kills a process and its descendants. Each is stopped first, because a running one could start another unseen."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(parent, signal.SIGSTOP)
            found += _children(parent)
    for each in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    """The children of all threads; empty if the kernel does not list them (CONFIG_PROC_CHILDREN), or the process has
    ended."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (thread / "children").read_text().split())
    return children
