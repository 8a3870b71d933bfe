"""Zombie processes, and processes stuck in the kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lifecycle.health.check import CheckedNode, Level, check
from lifecycle.health.finding import Finding, ok, warning

_STAT = re.compile(r"^(\d+) \((.*)\) (\S)", re.DOTALL)
_MANY_ZOMBIES = 100
_LOOKS = 4
_BETWEEN_S = 0.5


@dataclass(frozen=True, kw_only=True)
class ProcessLine:
    """A line of /proc/<pid>/stat: the process, and the letter of its state."""

    pid: int
    name: str
    state: str


@check("zombies", Level.QUICK, limit_s=5.0)
def zombies(node: CheckedNode) -> Finding:
    """Few processes have ended without anybody waiting for them."""
    dead = [process for process in read_processes(node) if process.state == "Z"]
    expected = f"at most {_MANY_ZOMBIES}"
    if len(dead) > _MANY_ZOMBIES:
        return warning(f"{len(dead)}, such as {dead[0].name}", expected, "end or restart their parent (ps -o ppid=)")
    return ok(f"{len(dead)}", expected)


@check("stuck_processes", Level.QUICK, limit_s=8.0)
def stuck_processes(node: CheckedNode) -> Finding:
    """No process is stuck in the kernel: in uninterruptible sleep each time we look."""
    stuck = _uninterruptible(node)
    for _ in range(_LOOKS - 1):
        if not stuck:
            break
        node.wait(_BETWEEN_S)
        stuck &= _uninterruptible(node)
    if stuck:
        told = ", ".join(f"{process.name} ({process.pid})" for process in sorted(stuck, key=lambda each: each.pid)[:5])
        advice = "cat /proc/PID/stack: a dead disk or mount? they end at a reboot only"
        return warning(f"{len(stuck)}: {told}", "none", advice)
    return ok("none", "none")


def read_processes(node: CheckedNode) -> list[ProcessLine]:
    """All processes."""
    found = []
    for path in node.path("/proc").glob("[0-9]*/stat"):
        try:
            hit = _STAT.match(path.read_text(errors="replace"))
        except OSError:  # the process has ended
            continue
        if hit:
            found.append(ProcessLine(pid=int(hit[1]), name=hit[2], state=hit[3]))
    return found


def _uninterruptible(node: CheckedNode) -> set[ProcessLine]:
    return {process for process in read_processes(node) if process.state == "D"}
