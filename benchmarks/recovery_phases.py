"""The phases of a recovery: seconds from the detection of a node's loss to the end of each phase.

    python benchmarks/recovery_phases.py [--nodes 3 4 8] [--rounds 3] [--json]

Each job runs on the local cluster with one spare and one worker on each node, and loses a node. Two kinds of rounds
alternate: with templates, from which agents are forked; and without, where the templates are removed at the loss, so
that each agent starts a new Python. The figures are medians. CPU is the CPU time of all processes of the job between
the detection and the first step, divided by the number of nodes that train. If this user cannot make a control group,
it is the CPU time of the whole machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from recovery import SCRIPT, Watch, kill_node, lose, main_job
from rich.console import Console
from rich.table import Table

from launcher import Executor
from launcher.job.run_id import local_run_id
from launcher.runner.memory import memory_dir

PHASES = {
    "ended": "the attempt's processes have ended on all nodes",
    "workers": "the next attempt's workers have started",
    "agents": "its agents have met, and ask what is held",
    "plan": "they have agreed on a step",
    "first step": "the next step is finished",
}
TEMPLATES = ("with templates", "without")
_POLL_S = 0.005


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[3], help="nodes that train; each job has a spare")
    parser.add_argument("--rounds", type=int, default=3, help="recoveries of each kind")
    parser.add_argument("--json", action="store_true", help="print {nodes: {templates: {phase: [seconds]}}}")
    args = parser.parse_args()
    found = {nodes: measured(nodes, args.rounds) for nodes in args.nodes}
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        Console(width=130).print(table(found, args.rounds))
    return 0


def measured(nodes: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {kind: {} for kind in TEMPLATES}
    for kind in TEMPLATES * rounds:
        for phase, value in recovery(nodes, has_templates=kind == TEMPLATES[0]).items():
            found[kind].setdefault(phase, []).append(value)
    return found


def recovery(nodes: int, *, has_templates: bool) -> dict[str, float]:
    """The recovery of a job that loses a node: seconds by phase, and CPU seconds per node."""
    shape = ["--layers", "1", "--width", "64", "--heads", "2", "--global-batch", str(nodes)]
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder, CpuLog() as cpu:
        spec = main_job(args=[*shape, "--steps", "100000"], nodes=nodes)
        job = Executor(folder=Path(folder) / "%j", cluster="local").submit(spec)
        watch = Watch(job.paths.folder)

        def break_it(node: str) -> None:
            if not has_templates:
                for socket in memory_dir(local_run_id(watch.job_dir)).glob("*/template.sock"):
                    socket.unlink()
            kill_node(watch.job_dir, node)

        try:
            lose(watch, break_it)
            restore = watch.wait_for("restore", 120, attempt=1)
            first = watch.wait_for("first_step", 120, attempt=1)
        finally:
            job.cancel()
            job.exception()
        begun_s = watch.events("fault")[0]["time"]
        started_s = watch.events("attempt_start")[1]["time"]
        workers = watch.wait_for("workers_started", 1, attempt=1)
        ends_s = {
            "ended": watch.events("attempt_end")[0]["time"],
            "workers": started_s + workers["seconds"],
            "agents": restore["time"] - restore["seconds"],
            "plan": restore["time"],
            "first step": started_s + first["seconds"],
        }
        used_s = cpu.used_s(begun_s, ends_s["first step"])
    return {phase: end_s - begun_s for phase, end_s in ends_s.items()} | {"CPU per node": used_s / nodes}


class CpuLog:
    """Records the CPU time of all processes that are started in its context, every few milliseconds.

    If this user cannot make a control group, it records the CPU time of the whole machine.
    """

    def __init__(self) -> None:
        self._noted: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
        root = next((Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"), None)
        self._root, self._group = root, root and root / f"holdfast-bench-{os.getpid()}"

    def __enter__(self) -> CpuLog:
        try:
            if self._group is not None:
                self._group.mkdir()
                (self._group / "cgroup.procs").write_text("0")
        except OSError:
            self._group = None
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._group is not None and self._root is not None:
            (self._root / "cgroup.procs").write_text("0")
            with contextlib.suppress(OSError):  # a process of the job is still there
                self._group.rmdir()

    def used_s(self, since_s: float, until_s: float) -> float:
        """The CPU seconds used between two times."""
        total = [used for at, used in self._noted if since_s <= at <= until_s]
        return max(total) - min(total) if total else 0.0

    def _run(self) -> None:
        while not self._over.wait(_POLL_S):
            self._noted.append((time.time(), self._now_s()))

    def _now_s(self) -> float:
        if self._group is not None:
            return int((self._group / "cpu.stat").read_text().split()[1]) / 1e6
        user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
        return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def table(found: dict[int, dict[str, dict[str, list[float]]]], rounds: int) -> Table:
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    shown = Table(
        title=f"Seconds from detection; medians of {rounds} ({SCRIPT.name}, {os.cpu_count()} cores, load {load})",
        caption="; ".join(f"{name}: {meaning}" for name, meaning in PHASES.items()),
    )
    shown.add_column("nodes", justify="right")
    shown.add_column("agents are forked")
    columns = [*PHASES, "CPU per node"]
    for column in columns:
        shown.add_column(column, justify="right")
    shown.add_column("first step, range", justify="right")
    for nodes, kinds in found.items():
        for kind, values in kinds.items():
            row = [f"{statistics.median(values[column]):.2f}" for column in columns]
            first: Any = values["first step"]
            shown.add_row(str(nodes), kind, *row, f"{min(first):.2f} to {max(first):.2f}")
    return shown


if __name__ == "__main__":
    sys.exit(main())
