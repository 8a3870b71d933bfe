"""A control group for the processes of a flush: limited, and killed as a whole.

A process can drop its environment, session and parent, but cannot leave a control group of root's. Version 2 kills a
group at once (`cgroup.kill`), also if version 1 has the controllers. A group of version 1 alone is frozen, then killed.
"""

from __future__ import annotations

import os
import signal
import time

from slurm.hooks.devices import ALLOWED, withhold_devices
from slurm.hooks.hook import HookJob
from slurm.hooks.log import log

ROOT = "/sys/fs/cgroup"
MOST_PROCESSES = 512  # including threads
MOST_MEMORY_BYTES = 4 << 30  # pages of the job's memory directory are not counted

_KINDS = ("pids", "memory", "cpu", "devices", "freezer")
_PERIOD_US = 100_000
_POLL_S = 0.02


class FlushLimits:
    """The limits of a flush: the job's own share of the node, and at most the ceilings above.

    Attributes:
        memory_bytes: of memory.
        cpus: of processor time, in processors.
    """

    def __init__(self, *, memory_bytes: int | None, cpus: int | None) -> None:
        """
        Args:
            memory_bytes, cpus: those of the job; None if unknown: then the ceiling and one processor.
        """
        self.memory_bytes = min(memory_bytes or MOST_MEMORY_BYTES, MOST_MEMORY_BYTES)
        self.cpus = max(1, cpus or 1)

    @property
    def files(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """The limits by kind: file -> values. Each version of control groups has its own files for a kind."""
        memory, quota_us = str(self.memory_bytes), self.cpus * _PERIOD_US
        return {
            "pids": {"pids.max": (str(MOST_PROCESSES),)},
            "memory": {"memory.max": (memory,), "memory.limit_in_bytes": (memory,)},
            "cpu": {"cpu.max": (f"{quota_us} {_PERIOD_US}",), "cpu.cfs_quota_us": (str(quota_us),)},
            "devices": {"devices.deny": ("a",), "devices.allow": tuple(f"c 1:{minor} rw" for minor in ALLOWED)},
        }


class Scope:
    """The control group of one job's flush, in each hierarchy that this node has."""

    def __init__(self, job: HookJob) -> None:
        name = f"holdfast-flush-{job.job_id}"
        v2 = [f"{root}/{name}" for root in (ROOT, f"{ROOT}/unified") if os.path.exists(f"{root}/cgroup.controllers")]
        self._v2 = v2[0] if v2 else ""
        self._v1 = [f"{ROOT}/{kind}/{name}" for kind in _KINDS if os.path.exists(f"{ROOT}/{kind}/cgroup.procs")]

    @property
    def _groups(self) -> list[str]:
        return [*filter(None, [self._v2]), *self._v1]

    def enter(self, limits: FlushLimits) -> bool:
        """Puts this process into the scope; whether its processes can then be killed as a whole."""
        unbounded = set(limits.files)
        for group in self._groups:
            try:
                os.makedirs(group, exist_ok=True)
                for kind, files in limits.files.items():
                    for file, values in files.items():
                        if self._limit(f"{group}/{file}", values):
                            unbounded.discard(kind)
                if group == self._v2:
                    withhold_devices(group)
                    unbounded.discard("devices")
            except OSError as error:
                log.warning("%s: %s", group, error.strerror)
            _try_write(f"{group}/cgroup.procs", "0")
        is_held = any(self._members(group) for group in self._groups)
        if is_held and unbounded:
            log.warning("no control group here bounds what is flushed in its use of: %s", ", ".join(sorted(unbounded)))
        return is_held

    def end(self, limit_s: float) -> bool:
        """Kills all processes in the scope and removes it; whether nothing is left."""
        end_s = time.monotonic() + limit_s
        while any(self._members(group) for group in self._groups):
            self._kill()
            if time.monotonic() > end_s:
                return False
            time.sleep(_POLL_S)
        for group in self._groups:
            try:
                os.rmdir(group)
            except OSError:
                continue  # it does not exist, or its last process has not ended yet
        return True

    def _kill(self) -> None:
        if self._v2 and _try_write(f"{self._v2}/cgroup.kill", "1"):  # since Linux 5.14
            return
        freezers = [f"{group}/freezer.state" for group in self._v1 if "/freezer/" in group]
        for freezer in freezers:
            _try_write(freezer, "FROZEN")
        for group in self._groups:
            for pid in self._members(group):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        for freezer in freezers:
            _try_write(freezer, "THAWED")

    @staticmethod
    def _limit(path: str, values: tuple[str, ...]) -> bool:
        """Writes a limit; whether the file exists and accepted the values."""
        if not os.path.exists(path):
            return False
        for value in values:
            _write(path, value)
        return True

    @staticmethod
    def _members(group: str) -> list[int]:
        try:
            with open(f"{group}/cgroup.procs") as file:
                return [int(line) for line in file]
        except OSError:
            return []


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _try_write(path: str, text: str) -> bool:
    """Writes to a file of a control group; whether it exists and accepted the text."""
    try:
        _write(path, text)
    except OSError:
        return False
    return True
