"""The time that Slurm's hooks add to jobs of one second on a real Slurm. Needs root.

    python benchmarks/hooks.py [--jobs 15] [--rounds 7] [--within 290] [--json]

A cluster of one node runs a round of jobs, one after another, with Holdfast's hooks, and a round with /bin/true in
their place. (Without any hook Slurm would take another path, and look for the next job only once a second.) Each job
records its start and its end. The period of a round is the median time from one job's start to the next one's. A pair
is two consecutive rounds, one of each kind, so that both see the same load of the machine. The result is the part of
the throughput that the hooks cost: the median over all pairs, and the same part over all jobs together, with outliers.
The health check is off, because it runs every few minutes and not for each job.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm.client import Slurm
from slurm.testbed import TestCluster
from slurm.testbed.daemons import NODE_CPUS

DEADLINE_S = 300.0
PER_JOB = ("Prolog", "Epilog", "TaskProlog")
JOB = '#!/bin/bash\necho "$EPOCHREALTIME"\nsleep 1\necho "$EPOCHREALTIME"\n'


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round: seconds from a job's start to the next job's start, and from its end to the next job's start.

    Attributes:
        period_s, gap_s: medians.
        total_s: from the first job's start to the last job's start.
    """

    period_s: float
    gap_s: float
    total_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=15, help="one-second jobs in a round (default: 15)")
    parser.add_argument("--rounds", type=int, default=7, help="pairs of rounds (default: 7)")
    parser.add_argument(
        "--within", type=float, default=290.0, help="seconds; no pair begins that would end later (default: 290)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    pairs = measure(options.jobs, options.rounds, options.within)
    losses = [1 - without.period_s / with_.period_s for without, with_ in pairs]
    loss = statistics.median(losses)
    together = 1 - sum(without.total_s for without, _ in pairs) / sum(with_.total_s for _, with_ in pairs)
    if options.json:
        rows = [{"without": asdict(without), "with": asdict(with_)} for without, with_ in pairs]
        lost = {"throughput_lost": round(loss, 4), "throughput_lost_together": round(together, 4)}
        print(json.dumps({"jobs": options.jobs, "pairs": rows, **lost}))
        return
    print(f"{len(pairs)} pairs of {options.jobs} jobs of 1 s, one after the other, one node, {os.cpu_count()} cores")
    for (without, with_), lost_here in zip(pairs, losses, strict=True):
        gaps = f"{without.gap_s:.3f} s with empty hooks, {with_.gap_s:.3f} s with ours"
        print(f"  between jobs: {gaps}; lost {lost_here:.1%}")
    print(f"  throughput with our hooks, of that with empty ones: {1 - loss:.3f} (median over the pairs)")
    print(f"  lost to the hooks: {loss:.1%} ({min(losses):.1%} to {max(losses):.1%}; target: under 5%)")
    print(f"  {options.jobs * len(pairs)} jobs on each side, all together: {together:.1%}")


def measure(jobs: int, rounds: int, within_s: float) -> list[tuple[Round, Round]]:
    """Pairs of rounds (with empty hooks, with Holdfast's). The order alternates from pair to pair."""
    end_s = time.monotonic() + within_s
    cluster = TestCluster.up(f"bench-hooks-{os.getpid()}", nodes=1, hooks=True)
    pairs = []
    try:
        run(cluster, 1, cluster.home / "warm")  # the first imports are not measured
        lines = Path(cluster.env["SLURM_CONF"]).read_text().splitlines()
        pair_s = 0.0
        for number in range(rounds):
            begun_s = time.monotonic()
            if begun_s + pair_s > end_s:
                break
            found = {}
            for hooks in (False, True) if number % 2 else (True, False):
                switch(cluster, lines, hooks=hooks)
                found[hooks] = run(cluster, jobs, cluster.home / f"{number}-{hooks}")
            pairs.append((found[False], found[True]))
            pair_s = max(pair_s, time.monotonic() - begun_s)
    finally:
        cluster.down()
    return pairs


def switch(cluster: TestCluster, lines: list[str], *, hooks: bool) -> None:
    """Makes the cluster run Holdfast's hooks or empty ones, and restarts the node's slurmd."""
    empty = {} if hooks else {name: f"{name}=/bin/true" for name in PER_JOB}
    text = (empty.get(line.partition("=")[0], line) for line in lines if not line.startswith("HealthCheck"))
    Path(cluster.env["SLURM_CONF"]).write_text("".join(f"{line}\n" for line in text))
    cluster.run_on_node("n1", ["scontrol", "reconfigure"])
    cluster.kill_daemon("n1")
    cluster.start_daemon("n1")
    slurm = Slurm(env=os.environ | cluster.env)
    _until(lambda: slurm.nodes()[0].is_idle, "the node to be idle")


def run(cluster: TestCluster, jobs: int, folder: Path) -> Round:
    """Runs a job array, one task at a time."""
    cluster.run_as_user(["mkdir", str(folder)])
    array = [f"--array=1-{jobs + 1}", "--ntasks=1", f"--cpus-per-task={NODE_CPUS}", f"--output={folder}/%a"]
    cluster.run_as_user(["sbatch", *array], input=JOB, timeout_s=DEADLINE_S)
    _until(lambda: len(times(folder)) == jobs + 1, "the end of the jobs")
    _until(lambda: Slurm(env=os.environ | cluster.env).nodes()[0].is_idle, "the last epilog")
    told = sorted(times(folder))
    following = list(itertools.pairwise(told))
    return Round(
        period_s=statistics.median(after[0] - before[0] for before, after in following),
        gap_s=statistics.median(after[0] - before[1] for before, after in following),
        total_s=told[-1][0] - told[0][0],
    )


def times(folder: Path) -> list[tuple[float, float]]:
    """Start and end of each job that has ended, in Unix seconds."""
    said = [path.read_text().split() for path in folder.iterdir()]
    return [(float(words[0]), float(words[1])) for words in said if len(words) == 2]


def _until(condition: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError(f"waited {DEADLINE_S:g} s for {what}")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
