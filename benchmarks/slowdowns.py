"""What makes a rank slower, for benchmarks/stragglers.py. Each kind begins for one rank, and ends.

loader   its DataLoader sleeps longer
compute  it sleeps longer between its DataLoader and the backward pass
quota    its cgroup may use the processor for a part of the time only (root)
nice     a neighbour on its core takes the share of it that its niceness gives (root)
stream   a neighbour fills the memory's bandwidth: all ranks of the machine share it, so none is to be named
network  all bytes between ranks pass a queue of limited rate: the network is to be named, and no rank (root, and a
         network namespace of its own)
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

KINDS = ("loader", "compute", "quota", "nice", "stream", "network")
NEED_GROUPS = ("quota", "nice")
UNNAMED = ("stream", "network")  # no rank is to be named
PARTS = {"loader": "data"}  # the part that is expected; compute for all others

_CGROUPS = Path("/sys/fs/cgroup")
_PERIOD_US = 8_000
_NICE_STEP = 1.25  # of the share of a core, sched(7)
_LEAST_US = 1_000  # the kernel takes no smaller quota
_MTU = 1500  # of the loopback device where the network is slowed: its own packets are larger than the queue's bursts
_SPIN = "while True: pass"
_STREAM = "import torch; torch.set_num_threads(1); a = torch.ones(1 << 26); b = a.clone()\nwhile True: b.copy_(a)"


class Controls:
    """Memory that the ranks read in each step: how much longer each of them sleeps, in its loader and in compute."""

    _ROW = struct.Struct("=dd")

    def __init__(self, path: Path, ranks: int) -> None:
        if not path.exists():
            path.write_bytes(bytes(self._ROW.size * ranks))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    def set(self, rank: int, loader_s: float, compute_s: float) -> None:
        self._ROW.pack_into(self._memory, rank * self._ROW.size, loader_s, compute_s)

    def get(self, rank: int) -> tuple[float, float]:
        loader_s, compute_s = self._ROW.unpack_from(self._memory, rank * self._ROW.size)
        return loader_s, compute_s


class CpuGroups:
    """A cgroup of the processors for each rank, below one that goes before all other work of the machine."""

    def __init__(self, ranks: int) -> None:
        self._is_new = (_CGROUPS / "cgroup.controllers").exists()
        root = _CGROUPS if self._is_new else _CGROUPS / "cpu"
        self._all = root / f"holdfast-stragglers-{os.getpid()}"
        self._groups = [self._all / str(rank) for rank in range(ranks)]
        self._all.mkdir()
        if self._is_new:
            (self._all / "cgroup.subtree_control").write_text("+cpu")
        (self._all / ("cpu.weight" if self._is_new else "cpu.shares")).write_text("10000" if self._is_new else "262144")
        for group in self._groups:
            group.mkdir()

    def add(self, rank: int, pid: int) -> None:
        (self._groups[rank] / "cgroup.procs").write_text(str(pid))

    def limit(self, rank: int, share: float | None) -> None:
        """Lets a rank use this share of a core; None: as much as it likes."""
        quota_us = None if share is None else max(_LEAST_US, int(share * _PERIOD_US))
        group = self._groups[rank]
        if self._is_new:
            (group / "cpu.max").write_text(f"{quota_us or 'max'} {_PERIOD_US}")
        else:
            (group / "cpu.cfs_quota_us").write_text("-1")
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us or -1))

    def close(self) -> None:
        for group in (*self._groups, self._all):
            with contextlib.suppress(OSError):
                group.rmdir()


class Slowdowns:
    """Begins and ends slowdowns.

    Args:
        controls: of the ranks' sleeps.
        groups: None without quotas and neighbours.
        pids: of the ranks.
        burnt_s: the processor time of a rank in a step.
        planned_s: what the work of a step takes on a machine that does nothing else.

    Attributes:
        bytes_a_step: what all ranks together send in a step.
        exchange_s: for how long they do.
    """

    def __init__(
        self, controls: Controls, groups: CpuGroups | None, pids: list[int], burnt_s: float, planned_s: float
    ) -> None:
        self.bytes_a_step = self.exchange_s = 0.0
        self._controls = controls
        self._groups = groups
        self._pids = pids
        self._burnt_s = burnt_s
        self._planned_s = planned_s

    def begin(self, kind: str, rank: int, usual_s: float, more_s: float) -> Callable[[], None]:
        """Makes each step of a rank, which works for `usual_s`, longer by `more_s`. Returns what ends that."""
        if kind in ("loader", "compute"):
            self._controls.set(rank, *((more_s, 0.0) if kind == "loader" else (0.0, more_s)))
            return lambda: self._controls.set(rank, 0.0, 0.0)
        if kind == "stream":
            stream = _neighbour(_STREAM)
            return lambda: _end(stream)
        if kind == "network":
            rate = 8 * self.bytes_a_step / (self.exchange_s + more_s)
            _tc("add", "tbf", "rate", f"{rate:.0f}bit", "burst", "5kb", "latency", "2s")
            return lambda: _tc("del")
        groups = self._groups
        assert groups is not None
        waited_s = max(0.0, usual_s - self._planned_s)  # for a core, where other work fills the machine
        share = self._burnt_s / (self._burnt_s + waited_s + more_s)
        if kind == "quota":
            groups.limit(rank, share)
            return lambda: groups.limit(rank, None)
        core = {max(os.sched_getaffinity(0))}
        before = os.sched_getaffinity(self._pids[rank])
        neighbour = _neighbour(_SPIN)
        groups.add(rank, neighbour.pid)
        os.setpriority(os.PRIO_PROCESS, neighbour.pid, round(math.log(share / (1.0 - share), _NICE_STEP)))
        for pid in (neighbour.pid, self._pids[rank]):
            os.sched_setaffinity(pid, core)

        def end() -> None:
            _end(neighbour)
            os.sched_setaffinity(self._pids[rank], before)

        return end


def prepare_network() -> None:
    """Sets up the loopback device of this process's own network namespace, in which nothing else is."""
    if socket.if_nameindex() != [(1, "lo")]:
        sys.exit("the network is slowed in a namespace of its own: run this by `unshare -n`")
    subprocess.run(["ip", "link", "set", "lo", "up", "mtu", str(_MTU)], check=True)


def sent_bytes() -> int:
    """What has been sent over the loopback device."""
    (line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.partition(":")[2].split()[8])


def _tc(*args: str) -> None:
    verb, *queue = args
    subprocess.run(["tc", "qdisc", verb, "dev", "lo", "root", *queue], check=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _neighbour(program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program])
