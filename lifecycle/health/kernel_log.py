"""Kernel messages since boot about GPUs (Xid and others of the driver), NVSwitches (SXid), memory and disks.

Xid numbers are NVIDIA's (docs.nvidia.com/deploy/xid-errors). Those that a program can cause never count against a node.
A driver that has lost a GPU does not always report an Xid, so its other messages about that count too.

Users can put text into kernel messages: the names of their processes at the beginning ("NAME[123]: segfault at"), and
the names of their files later. So messages about processes are ignored, and critical messages are matched at their
beginning.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from lifecycle.health.check import CannotObserve, CheckedNode, Level, check
from lifecycle.health.finding import Finding, critical, ok, warning
from slurm.hooks.incidents import LOST_GPU

_KMSG = "/dev/kmsg"
_MAX_BYTES = 64 << 20

_OF_PROCESS = re.compile(r".{0,60}?\[\d+\]: ")  # a name has 15 characters; unprintable ones are written as four
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)(.*)")
_LOST = re.compile(LOST_GPU, re.DOTALL)
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)
_RECOVERY_CHANGED = 154
_NEW_RECOVERY = re.compile(r"to 0x[0-9a-f]+ \(([^)]*)\)")
_SXID = re.compile(r"nvidia-nvswitch\d+: SXid \(PCI:([0-9a-fA-F:.]+)\): (\d+), (Fatal|Non-fatal)", re.IGNORECASE)
_OF_PROGRAMS = frozenset({13, 31, 32, 43, 45, 66, 68, 69, 109, 137})
_OF_HARDWARE = frozenset({46, 48, 54, 61, 62, 64, 74, 79, 95, 110, 119, 120, 121, 123, 136, 140, 142, 143, 151})
_OF_NVLINK = range(144, 151)  # Blackwell's, each with the word Fatal or Nonfatal

_BROKEN = (
    (
        "file system made read-only",
        re.compile(
            r"\S+ \(\S+\): (error: )?Remounting filesystem read-only|XFS \(\S+\): .*Shutting down filesystem", re.I
        ),
    ),
    (
        "uncorrected memory error",
        re.compile(r"(mce: )?Uncorrected hardware memory error|EDAC MC\d+: \d+ UE .*\bon |Memory failure: 0x"),
    ),
    ("disk gone", re.compile(r"nvme \S+: (controller is down|Removing after probe failure|Disabling device)", re.I)),
)
_SUSPICIOUS = (
    ("machine check", re.compile(r".*\[Hardware Error\]")),
    ("disk error", re.compile(r".*I/O error, dev |EXT4-fs error|XFS .*[Cc]orruption|nvme\S* .*timeout")),
    ("stuck task", re.compile(r".*(blocked for more than \d+ seconds|soft lockup|rcu.*self-detected stall)")),
)
_OOM = re.compile(r"Out of memory: Kill")
_OOM_JOB = re.compile(r"Memory cgroup out of memory: Kill")


@dataclass(frozen=True, kw_only=True)
class KernelLog:
    """The messages that the kernel still has.

    Attributes:
        lines: their texts, oldest first, without those about processes.
        since_s: seconds from boot to the oldest message; 0 if none was lost since boot.
    """

    lines: tuple[str, ...]
    since_s: float

    @property
    def reach(self) -> str:
        return f" (log begins {self.since_s:.0f} s after boot)" if self.since_s else ""


@check("gpu_xid", Level.PROLOG, limit_s=1.0)
def gpu_xid(node: CheckedNode) -> Finding:
    """The kernel has reported no hardware error of a GPU (Xid) or NVSwitch (SXid), and no lost GPU, since boot."""
    log = node.once(read_kernel_log)
    bad, odd, harmless = _gpu_messages(log)
    expected = "no hardware Xid or fatal SXid"
    if bad:
        return critical(_counted(bad), expected, "drain, reboot, run deep; replace the node if it comes back")
    if odd:
        return warning(_counted(odd), expected, "see NVIDIA's Xid list; run deep")
    return ok((f"only of programs: {_counted(harmless)}" if harmless else "none") + log.reach, expected)


@check("kernel_errors", Level.PROLOG, limit_s=1.0)
def kernel_errors(node: CheckedNode) -> Finding:
    """The kernel has reported no error of memory, disks or itself since boot."""
    log = node.once(read_kernel_log)
    expected = "none"
    if broken := list(_matching(log, _BROKEN)):
        return critical(
            _counted(broken), expected, "drain; dmesg has the lines; reboot, then replace the part or the node"
        )
    if suspicious := list(_matching(log, _SUSPICIOUS)):
        return warning(_counted(suspicious), expected, "dmesg has the lines; run deep")
    return ok(f"none in {len(log.lines)} messages{log.reach}", expected)


@check("out_of_memory", Level.QUICK, limit_s=2.0)
def out_of_memory(node: CheckedNode) -> Finding:
    """The node itself has not run out of memory since boot; jobs killed at their own limit do not count."""
    log = node.once(read_kernel_log)
    of_node = sum(1 for line in log.lines if _OOM.match(line))
    of_jobs = sum(1 for line in log.lines if _OOM_JOB.match(line))
    measured = f"{of_node} of the node, {of_jobs} at a job's limit{log.reach}"
    if of_node:
        return warning(measured, "0 of the node", "look at what was killed (dmesg); reboot if it was a daemon")
    return ok(measured, "0 of the node")


def read_kernel_log(node: CheckedNode) -> KernelLog:
    """Reads the kernel's ring buffer.

    Raises:
        CannotObserve: it does not exist, or may not be read (dmesg_restrict, a container).
    """
    path = node.path(_KMSG)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise CannotObserve(f"{_KMSG}: {error.strerror}; run as root") from None
    try:
        text = b"".join(_records(descriptor)).decode(errors="replace")
    finally:
        os.close(descriptor)
    heads, lines = [], []
    for row in text.splitlines():
        head, semicolon, message = row.partition(";")
        if semicolon and not row.startswith(" "):  # a line that begins with a space continues the record before it
            heads.append(head.split(","))
            if not _OF_PROCESS.match(message):
                lines.append(message)
    lost = bool(heads) and heads[0][1] != "0"
    return KernelLog(lines=tuple(lines), since_s=int(heads[0][2]) / 1e6 if lost else 0.0)


def _gpu_messages(log: KernelLog) -> tuple[list[str], list[str], list[str]]:
    """Messages about broken hardware, those that may be, and those about programs."""
    bad: list[str] = []
    odd: list[str] = []
    harmless: list[str] = []
    recoveries: dict[str, str] = {}  # the last one of a GPU counts: a reset takes it back
    for line in log.lines:
        if hit := _XID.match(line):
            number, where = int(hit[2]), f"Xid {hit[2]} on {hit[1]}"
            if number == _RECOVERY_CHANGED:
                action = _NEW_RECOVERY.search(hit[3])
                recoveries[where] = action[1] if action else "unknown"
            elif number in _OF_HARDWARE or (number in _OF_NVLINK and "Nonfatal" not in hit[3]):
                bad.append(where)
            else:
                (harmless if number in _OF_PROGRAMS else odd).append(where)
        elif hit := _SXID.match(line):
            (bad if hit[3].lower() == "fatal" else odd).append(f"SXid {hit[2]} on {hit[1]}")
        elif hit := _LOST.match(line):
            address = _ADDRESS.search(line)
            bad.append(f"{hit[1]} on {address[0] if address else 'a GPU'}")
    for where, action_word in recoveries.items():
        (harmless if action_word == "None" else bad).append(f"{where} ({action_word})")
    return bad, odd, harmless


def _records(descriptor: int) -> Iterator[bytes]:
    """The available records; each read of /dev/kmsg gives one."""
    total = 0
    while total < _MAX_BYTES:
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return
        except BrokenPipeError:  # overwritten during the read; the next read continues after the gap
            continue
        if not data:
            return
        total += len(data)
        yield data


def _matching(log: KernelLog, kinds: tuple[tuple[str, re.Pattern[str]], ...]) -> Iterator[str]:
    return (name for line in log.lines for name, pattern in kinds if pattern.match(line))


def _counted(words: list[str]) -> str:
    counts = Counter(words)
    told = [word if count == 1 else f"{word} ({count} times)" for word, count in counts.most_common(4)]
    return ", ".join(told) + (f" and {len(counts) - 4} more" if len(counts) > 4 else "")
