"""A local job's supervising process, found again from any other process through a file in the job's folder."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.plain_file import read_json


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process on this machine, safe against reuse of its number.

    Attributes:
        pid: process id.
        start_ticks: the kernel's start time of the process, in clock ticks since boot (proc(5), field 22 of stat).
        host: the host it runs on.
        pid_namespace: where its number counts: the host's boot and the kernel's name of the PID namespace.
    """

    pid: int
    start_ticks: int
    host: str
    pid_namespace: str = ""

    @classmethod
    def of_pid(cls, pid: int) -> Process:
        """Describes a process that runs now (or has just ended: it then counts as not alive)."""
        ticks = _start_ticks(pid) or 0
        return cls(pid=pid, start_ticks=ticks, host=socket.gethostname(), pid_namespace=_pid_namespace())

    @classmethod
    def read(cls, job_dir: Path) -> Process | None:
        """The process that save() noted in a job's folder; None if there is none, or the note makes no sense."""
        try:
            process = cls(**read_json(job_dir / "process.json"))
            numbers = isinstance(process.pid, int) and isinstance(process.start_ticks, int)
        except (OSError, ValueError, TypeError):
            return None
        return process if numbers and process.pid > 0 else None  # kill(2) takes others for groups, or for all

    def save(self, job_dir: Path) -> None:
        """Notes the process in a job's folder."""
        (job_dir / "process.json").write_text(json.dumps(asdict(self)))

    def alive(self) -> bool:
        """Whether it runs. A process of another host cannot be asked and counts as running."""
        return self.host != socket.gethostname() or _start_ticks(self.pid) == self.start_ticks

    def has_ended(self) -> bool:
        """Whether it is gone for certain: another boot, or another container, may bear this host's name."""
        return self.pid_namespace == _pid_namespace() != "" and not self.alive()

    def interrupt(self) -> bool:
        """Sends SIGINT; False if the process is gone or on another host."""
        if self.host != socket.gethostname() or not self.alive():
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGINT)
            return True
        return False


def _pid_namespace() -> str:
    """Empty where the kernel does not say."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot_id} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_ticks(pid: int) -> int | None:
    """None for a process that is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    return None if fields[0] in "ZX" else int(fields[19])
