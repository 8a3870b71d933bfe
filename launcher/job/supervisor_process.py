"""The process of a local job's supervisor. A file in the job's folder names it for other processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.base.plain_file import read_json


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process, identified so that a reused PID is not mistaken for it.

    Attributes:
        pid: the PID.
        start_ticks: start time of the process, in clock ticks since boot (proc(5), field 22 of stat).
        host: the host that it runs on.
        pid_namespace: the host's boot id and the PID namespace, in which the PID is valid.
    """

    pid: int
    start_ticks: int
    host: str
    pid_namespace: str = ""

    @classmethod
    def of_pid(cls, pid: int) -> Process:
        """Describe a running process. If it has just ended, `alive` of the result is false."""
        ticks = _start_ticks(pid) or 0
        return cls(pid=pid, start_ticks=ticks, host=socket.gethostname(), pid_namespace=_pid_namespace())

    @classmethod
    def read(cls, job_dir: Path) -> Process | None:
        """Read the file that save() wrote to a job's folder; None if there is none, or it is not valid."""
        try:
            process = cls(**read_json(job_dir / "process.json"))
            numbers = isinstance(process.pid, int) and isinstance(process.start_ticks, int)
        except (OSError, ValueError, TypeError):
            return None
        return process if numbers and process.pid > 0 else None  # kill(2) signals groups of processes for pid <= 0

    def save(self, job_dir: Path) -> None:
        """Write the process to a file in a job's folder."""
        (job_dir / "process.json").write_text(json.dumps(asdict(self)))

    def alive(self) -> bool:
        """Whether the process runs. A process of another host cannot be checked; the result is then true."""
        return self.host != socket.gethostname() or _start_ticks(self.pid) == self.start_ticks

    def has_ended(self) -> bool:
        """Whether the process has certainly ended. A different boot or container may have the same host name."""
        return self.pid_namespace == _pid_namespace() != "" and not self.alive()

    def interrupt(self) -> bool:
        """Send SIGINT. Returns False if the process has ended or is on another host."""
        if self.host != socket.gethostname() or not self.alive():
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGINT)
            return True
        return False


def _pid_namespace() -> str:
    """The boot id and the PID namespace of this process; "" if they cannot be read."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot_id} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_ticks(pid: int) -> int | None:
    """The start time of a process in clock ticks since boot; None if it has ended or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the process' name in parentheses may have any characters
    return None if fields[0] in "ZX" else int(fields[19])
