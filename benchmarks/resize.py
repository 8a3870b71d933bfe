"""Seconds of training that a resize costs, by phase, beside the cold start of the same run.

    python benchmarks/resize.py [--rounds 2] [--layers 1] [--width 64] [--json]

On the local cluster an elastic job grows from two to four nodes, shrinks to two, and loses a node; `--rounds` times.
Then it saves to the shared directory and ends. It is submitted again: the cold start is the time from this submission
to the first step, with a restore from the shared directory. The lost time is that from the last step of the old size to
the first step of the new one. It is the sum of the phases, which follow one another. All times are from events.jsonl,
except the end of the load, which is from rank 0's log.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from recovery import SCRIPT, Watch, kill_node, main_job
from rich.console import Console
from rich.table import Table

from launcher import Executor
from launcher.history.recovery import cold_start_s
from launcher.history.resize import ResizeCost, resizes
from launcher.job.registry import find_job
from launcher.submission.job_control import scale_job, stop_job

PHASES = {
    "stop": "from the last step, or the fault, until the attempt's processes have ended everywhere",
    "agents": "the next attempt's agents have met",
    "workers": "the next attempt's workers have started, where agents are up before them",
    "reshard": "the state is loaded: agents agree on a step, ranks read from memory and verify",
    "first step": "the next step is finished",
}
GOAL = 0.25
BEFORE_STEPS = 10
WAIT_S = 180
_LOADED = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) INFO loaded step ", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="resizes of each kind")
    parser.add_argument("--layers", type=int, default=1, help="size of the model")
    parser.add_argument("--width", type=int, default=64, help="size of the model")
    parser.add_argument("--json", action="store_true", help="print {kind: {value, unit, peer, ratio, phases, bytes}}")
    args = parser.parse_args()
    rows = measured(args.rounds, ["--layers", str(args.layers), "--width", str(args.width), "--heads", "2"])
    print(json.dumps(rows, indent=1)) if args.json else Console(width=130).print(table(rows, args.rounds))
    return 0


def measured(rounds: int, shape: list[str]) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        splits = resized(Path(folder), rounds, shape)
        submitted_s = time.time()
        cold = Run(Path(folder), shape)
        try:
            cold.trains(0)
        finally:
            cold.end()
        events = cold.watch.events()
        cold_s, restored = cold_start_s(events, submitted_s), cold.watch.events("restore")[0]
    if cold_s is None or restored["tier"] != "shared":
        raise SystemExit(f"benchmark: the cold start restored from {restored['tier']}, expected shared")
    found: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(kind for kind, _, _ in splits):
        phases = [split for other, split, _ in splits if other == kind]
        lost = [sum(split.values()) for split in phases]
        value = statistics.median(lost)
        found[kind] = {
            "value": round(value, 3), "unit": "s", "peer": {"cold_start": round(cold_s, 3)},
            "ratio": round(value / cold_s, 3), "range": [round(min(lost), 3), round(max(lost), 3)],
            "phases": {name: round(statistics.median(split[name] for split in phases), 3) for name in PHASES},
            "bytes": {tier: sum(read[tier] for other, _, read in splits if other == kind) for tier in ("shared", "s3")},
        }  # fmt: skip
    return found


Split = tuple[str, dict[str, float], dict[str, int]]


def resized(folder: Path, rounds: int, shape: list[str]) -> list[Split]:
    """A job that grows, shrinks and loses a node. At its end the shared directory has its last step."""
    run = Run(folder, shape)
    kinds: list[str] = []  # by attempt

    def trains(kind: str) -> None:
        run.trains(len(kinds))
        kinds.append(kind)

    try:
        trains("start")
        for _ in range(rounds):
            for kind, nodes in (("grow", 4), ("shrink", 2), ("grow", 4)):
                scale_job(find_job(run.job.job_id), nodes)  # after the loss of a node the job grows without a request
                trains(kind)
            kill_node(run.watch.job_dir, run.watch.events("attempt_start")[-1]["nodes"][-1])
            trains("shrink by a lost node")
        stop_job(find_job(run.job.job_id))
    finally:
        run.end()
    events = run.watch.events()
    found = {resize.attempt: resize for resize in resizes(events)}
    return [
        (kind, split_of(found[attempt], run.watch), read_of(run.watch, attempt))
        for attempt, kind in enumerate(kinds)
        if attempt
    ]


class Run:
    """One elastic job of two to four nodes. All runs in a folder use the same shared directory."""

    def __init__(self, folder: Path, shape: list[str]) -> None:
        checkpoint = {
            "namespace": "resize", "memory": {"every_steps": 5, "keep": 2}, "redundancy": {"scheme": "partner"},
            "shared": {"path": str(folder / "shared"), "every_steps": 1_000_000, "keep": 2},
        }  # fmt: skip
        elastic = {"sizes": [2, 4], "scaling_timeout_s": 0, "scale_up_snooze_s": 5, "faulty_scale_down_timeout_s": 0}
        args = [*shape, "--global-batch", "12", "--steps", "1000000"]
        spec = main_job(args=args, nodes=2, spares=0, elastic=elastic, checkpoint=checkpoint)
        self.job = Executor(folder=folder / "%j", cluster="local").submit(spec)
        self.watch = Watch(self.job.paths.folder)

    def trains(self, attempt: int) -> None:
        """Waits until this attempt has saved new steps."""
        resumed = self.watch.wait_for("first_step", WAIT_S, attempt=attempt)["step"]
        self.watch.wait_for(
            "commit", WAIT_S, attempt=attempt, tier="memory", step=lambda step: step >= resumed + BEFORE_STEPS
        )

    def end(self) -> None:
        """Ends the job if it still runs."""
        if not self.watch.events("stop_requested"):
            self.job.cancel()
        self.job.exception()


def split_of(resize: ResizeCost, watch: Watch) -> dict[str, float]:
    """The seconds of each phase, in order. A phase that ends before an earlier one has 0 seconds."""
    log = watch.job_dir / "log" / f"attempt-{resize.attempt}" / "rank-0.log"
    loaded = _LOADED.search(log.read_text(errors="replace"))
    if loaded is None or None in (resize.met_s, resize.started_s, resize.trained_s):
        raise SystemExit(
            f"benchmark: attempt {resize.attempt} has no time for a phase: {resize}, {loaded}\n{watch.story()}"
        )
    loaded_s = datetime.strptime(loaded[1], "%Y-%m-%d %H:%M:%S,%f").timestamp()
    ends_s = (resize.ended_s, resize.met_s, resize.started_s, loaded_s, resize.trained_s)
    split, since_s = {}, resize.stopped_s
    for name, end_s in zip(PHASES, ends_s, strict=True):
        split[name] = max(0.0, (end_s or 0.0) - since_s)
        since_s = max(since_s, end_s or 0.0)
    return split


def read_of(watch: Watch, attempt: int) -> dict[str, int]:
    """The bytes that a restore read from lower tiers, from the sources in the agents' plan."""
    restore = next(event for event in watch.events("restore") if event["attempt"] == attempt)
    saved = next(
        event["bytes"] for event in reversed(watch.events("commit"))
        if (event["step"], event["tier"]) == (restore["step"], "memory")
    )  # fmt: skip
    sources = Counter({source: len(ranks) for source, ranks in restore["sources"].items()})
    return {tier: saved * sources[tier] // max(1, sources.total()) for tier in ("shared", "s3")}


def table(rows: Mapping[str, dict[str, Any]], rounds: int) -> Table:
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    shown = Table(
        title=f"Seconds of training lost per resize; medians of {rounds} ({SCRIPT.name}, 2 to 4 nodes, "
        f"{os.cpu_count()} cores, load {load})",
        caption="; ".join(f"{name}: {meaning}" for name, meaning in PHASES.items())
        + f". The goal is a ratio under {GOAL:g}, and 0 bytes from lower tiers.",
    )
    shown.add_column("resize")
    for column in (*PHASES, "lost", "cold start", "ratio", "MiB from shared", "S3"):
        shown.add_column(column, justify="right")
    for kind, row in rows.items():
        phases = [f"{row['phases'][name]:.2f}" for name in PHASES]
        read = [f"{row['bytes'][tier] / 2**20:g}" for tier in ("shared", "s3")]
        whole = [f"{seconds:.2f}" for seconds in (row["value"], row["peer"]["cold_start"], row["ratio"])]
        shown.add_row(kind, *phases, *whole, *read)
    return shown


if __name__ == "__main__":
    sys.exit(main())
