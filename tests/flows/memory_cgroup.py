"""A cgroup with little memory, of version 2 or 1, for processes that the kernel is to kill."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_CGROUPS = Path("/sys/fs/cgroup")


@contextmanager
def memory_cgroup(name: str, limit_bytes: int) -> Iterator[Path]:
    """The file of a new cgroup that takes the ids of its processes. They have left it, or ended, by the end."""
    is_new = (_CGROUPS / "cgroup.controllers").exists()
    own = next(
        (line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines()
         if line.startswith("0::" if is_new else "") and (is_new or "memory" in line.split(":")[1].split(","))),
        "/",
    )  # fmt: skip
    group = (_CGROUPS if is_new else _CGROUPS / "memory") / own.lstrip("/") / name
    try:
        group.mkdir()
        (group / ("memory.max" if is_new else "memory.limit_in_bytes")).write_text(str(limit_bytes))
    except OSError as error:
        pytest.skip(f"no cgroup with a limit of memory can be made: {error}")
    yield group / "cgroup.procs"
    for pid in (group / "cgroup.procs").read_text().split():
        (group.parent / "cgroup.procs").write_text(pid)
    group.rmdir()
