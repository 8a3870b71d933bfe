"""Seconds from a node's failure to its detection, to the start of workers and to the next step, beside a cold start.

    python benchmarks/recovery.py [--json] [--steps N]

On the local cluster a node is killed. On a real Slurm, which needs root and Debian's Slurm, a node crashes in one run,
and loses its network in another. A ratio is the recovery divided by the cold start of the same job.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "flows"))

from main_job import SCRIPT, Watch, main_job, main_job_file  # noqa: E402  the flow tests' own job

from launcher import Executor  # noqa: E402
from launcher.clusters.local.cluster import kill_node  # noqa: E402
from launcher.history.recovery import Recovery, cold_start_s, recoveries  # noqa: E402
from slurm.testbed import TestbedError, TestCluster  # noqa: E402

LOSE_AFTER_STEP = 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One run: the kind of loss, the recovery, and the cold start of the same job."""

    name: str
    cold_start_s: float
    recovery: Recovery

    @property
    def ratio(self) -> float:
        return (self.recovery.next_step_s or float("inf")) / self.cold_start_s

    def to_mapping(self) -> dict[str, Any]:
        peer = {"cold_start": self.cold_start_s}
        next_step = {"value": self.recovery.next_step_s, "unit": "s", "peer": peer, "ratio": self.ratio}
        return {self.name: next_step, f"{self.name}, details": self.recovery.to_mapping()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print {name: {value, unit, peer, ratio}}")
    parser.add_argument("--steps", type=int, default=400, help="steps of the job; more than before the loss")
    args = parser.parse_args()
    shape = ["--steps", str(args.steps), "--layers", "1", "--width", "64", "--heads", "2", "--global-batch", "6"]

    rows = [local(shape)]
    try:
        rows += on_slurm(shape)
    except TestbedError as error:
        print(f"benchmark: no Slurm rows: {error}", file=sys.stderr)
    if args.json:
        print(json.dumps({name: value for row in rows for name, value in row.to_mapping().items()}, indent=1))
    else:
        title = f"Recovery from a lost node ({SCRIPT.name}, 3 nodes + 1 spare, {os.cpu_count()} cores)"
        Console(width=130).print(table(rows, title))
    return 0


def local(shape: list[str]) -> Row:
    """A node of the local cluster is killed, and its memory directory is removed."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        submitted_at = time.time()
        job = Executor(folder=Path(folder) / "%j", cluster="local").submit(main_job(args=shape))
        watch = Watch(job.paths.folder)
        failed = lose(watch, lambda node: kill_node(watch.job_dir, node))
        job.result()
        return row("local cluster, node killed", watch, submitted_at, failed)


def on_slurm(shape: list[str]) -> list[Row]:
    """A node of a real Slurm cluster crashes; in another run a node is cut off the network."""
    cluster = TestCluster.up("bench", nodes=4)
    try:
        ways: dict[str, Callable[[str], None]] = {"crashed": cluster.crash_node, "cut off": cluster.node_down}
        rows = []
        for way, break_node in ways.items():
            rows.append(slurm_row(cluster, way, break_node, shape))
            cluster.restore()
        return rows
    finally:
        cluster.down()


def slurm_row(cluster: Any, way: str, break_node: Callable[[str], None], shape: list[str]) -> Row:
    folder = cluster.home / "bench" / way.replace(" ", "-")
    folder.mkdir(parents=True)
    (folder / "job.yaml").write_text(json.dumps(main_job_file(args=shape)))
    for path in (folder.parent, folder):
        shutil.chown(path, cluster.user)
    submitted_at = time.time()
    argv = [sys.executable, "-m", "launcher", "submit", "job.yaml", "--json"]
    facts = json.loads(cluster.run_as_user(argv, cwd=folder, timeout_s=60).stdout)
    watch = Watch(Path(facts["folder"]))
    failed = lose(watch, break_node)
    watch.wait_for("job_end", 180)
    return row(f"4-node Slurm, node {way}", watch, submitted_at, failed)


def lose(watch: Watch, break_node: Callable[[str], object]) -> dict[str, float]:
    """Breaks the second node during training; returns its name and the time."""
    watch.wait_for("commit", 180, tier="memory", step=lambda step: step >= LOSE_AFTER_STEP)
    node = watch.events("attempt_start")[0]["nodes"][1]
    failed = {node: time.time()}
    break_node(node)
    return failed


def row(name: str, watch: Watch, submitted_at: float, failed: dict[str, float]) -> Row:
    events = watch.events()
    cold = cold_start_s(events, submitted_at)
    if cold is None or watch.events("job_end")[-1]["outcome"] != "done":
        raise SystemExit(f"benchmark: {name}: the job did not finish\n{watch.story()}")
    return Row(name=name, cold_start_s=cold, recovery=recoveries(events, failed)[0])


def table(rows: list[Row], title: str) -> Table:
    shown = Table(title=title)
    shown.add_column("run")
    shown.add_column("rung")
    for column in ("detected s", "workers s", "next step s", "cold start s", "ratio", "lost steps", "from"):
        shown.add_column(column, justify="right")
    for item in rows:
        r = item.recovery
        seconds = (
            f"{value or 0:.2f}" for value in (r.detect_s, r.workers_s, r.next_step_s, item.cold_start_s, item.ratio)
        )
        lost = r.step_lost - (r.step_resumed or 0)
        shown.add_row(item.name, r.rung, *seconds, str(lost), r.restored_from or "")
    return shown


if __name__ == "__main__":
    sys.exit(main())
