"""Reads, in an attempt's first seconds, which network NCCL uses in this node's workers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from launcher.env.fabric import read_nccl_log, wrong
from lifecycle import Expected

_READ_BYTES = 1 << 20  # INIT and NET of one process are tens of kB


def nccl_log_pattern(log_dir: Path, node: str) -> str:
    """Where the workers of a node write NCCL's log: a file for each, named by its pid."""
    return str(log_dir / f"nccl-{node}.%p.log")


class NetworkWatch:
    """Looks at the NCCL logs of an attempt's workers until each names the network it uses.

    A worker that never says (it uses no NCCL, or its script sets NCCL_DEBUG itself) is looked at to the attempt's end;
    that costs one stat.

    Args:
        pids: the workers.
        pattern: their logs' names, with %p for the pid.
        expected: what this node's instance type should have.
    """

    def __init__(self, pids: Iterable[int], pattern: str, expected: Expected | None) -> None:
        self._logs = {pid: Path(pattern.replace("%p", str(pid))) for pid in pids}
        self._sizes = dict.fromkeys(self._logs, 0)
        self._expected = expected

    def look(self) -> str | None:
        """Reads what is new; returns what is wrong, once."""
        for pid, log in list(self._logs.items()):
            text = self._read(pid, log)
            observed = read_nccl_log(text)
            if observed.network is None:
                continue
            if observed.is_libfabric and observed.provider is None:
                continue  # that line may follow
            del self._logs[pid]
            problem = wrong(observed, self._expected)
            if problem is not None:
                self._logs.clear()
                return f"{problem} (see {log})"
        return None

    def _read(self, pid: int, log: Path) -> str:
        """The log, if it has grown since it was read last."""
        try:
            size = log.stat().st_size
            if size == self._sizes[pid]:
                return ""
            self._sizes[pid] = size
            with log.open("rb") as file:
                return file.read(_READ_BYTES).decode(errors="replace")
        except OSError:
            return ""
