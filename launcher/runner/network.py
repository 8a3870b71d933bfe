"""Finds out, in an attempt's first seconds, which network NCCL uses in this node's workers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from launcher.env.fabric import read_nccl_log, wrong
from lifecycle import Expected

_READ_BYTES = 1 << 20  # INIT and NET of one process are tens of kB


def nccl_log_pattern(log_dir: Path, node: str) -> str:
    """The path of NCCL's logs of a node's workers: one file each, named by pid."""
    return str(log_dir / f"nccl-{node}.%p.log")


class NetworkWatch:
    """Looks at the NCCL logs of an attempt's workers until each names its network.

    A worker whose log never names it (it does not use NCCL, or its script sets NCCL_DEBUG) is checked until the
    attempt's end. That costs one stat.

    Args:
        pids: the workers.
        pattern: the names of their logs, with %p for the pid.
        expected: the expected network of this node's instance type.
    """

    def __init__(self, pids: Iterable[int], pattern: str, expected: Expected | None) -> None:
        self._logs = {pid: Path(pattern.replace("%p", str(pid))) for pid in pids}
        self._sizes = dict.fromkeys(self._logs, 0)
        self._expected = expected

    def look(self) -> str | None:
        """Reads new output. Returns a problem once, else None."""
        for pid, log in list(self._logs.items()):
            text = self._read(pid, log)
            observed = read_nccl_log(text)
            if observed.network is None:
                continue
            if observed.is_libfabric and observed.provider is None:
                continue  # the line may still come
            del self._logs[pid]
            problem = wrong(observed, self._expected)
            if problem is not None:
                self._logs.clear()
                return f"{problem} (see {log})"
        return None

    def _read(self, pid: int, log: Path) -> str:
        """The log if it has grown since the last read."""
        try:
            size = log.stat().st_size
            if size == self._sizes[pid]:
                return ""
            self._sizes[pid] = size
            with log.open("rb") as file:
                return file.read(_READ_BYTES).decode(errors="replace")
        except OSError:
            return ""
