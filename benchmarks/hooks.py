"""What Slurm's hooks cost jobs: a hundred of one second each, with and without hooks, on a real Slurm. Needs root.

    python benchmarks/hooks.py [--jobs 100] [--at-once 2] [--json]

Two clusters of one node stand side by side; each is given the same array of jobs, one after the other. The node runs as
many at once as told; what is measured is how long until the last has ended and another could begin. Both clusters share
this machine's cores, the hooks' Python included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time

from slurm.testbed import TestCluster
from slurm.testbed.daemons import NODE_CPUS

DEADLINE_S = 600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100, help="one-second jobs (default: 100)")
    parser.add_argument("--at-once", type=int, default=2, help="how many run at a time (default: 2)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    seconds = {hooks: measure(options.jobs, options.at_once, hooks=hooks) for hooks in (False, True)}
    loss = 1 - seconds[False] / seconds[True]
    if options.json:
        told = {"jobs": options.jobs, "at_once": options.at_once, "without_s": seconds[False], "with_s": seconds[True]}
        print(json.dumps(told | {"throughput_lost": round(loss, 4)}))
        return
    print(f"{options.jobs} jobs of 1 s, {options.at_once} at a time, one node, {os.cpu_count()} cores")
    for hooks, took_s in seconds.items():
        print(f"  {'with' if hooks else 'without'} hooks: {took_s:6.1f} s, {options.jobs / took_s:5.2f} jobs/s")
    print(f"  throughput lost to the hooks: {loss:.1%} (target: under 5%)")


def measure(jobs: int, at_once: int, *, hooks: bool) -> float:
    """Seconds from the submission of all jobs to the end of the last one's epilog."""
    cluster = TestCluster.up(f"bench-hooks-{os.getpid()}", nodes=1, hooks=hooks)
    try:
        run(cluster, at_once, at_once)  # what is imported for the first time is not what is measured
        return run(cluster, jobs, at_once)
    finally:
        cluster.down()


def run(cluster: TestCluster, jobs: int, at_once: int) -> float:
    """Runs an array to its end; the node is idle, epilogs included, when this returns."""
    before_s = time.monotonic()
    share = f"--cpus-per-task={NODE_CPUS // at_once}"  # a limit of the array's own is looked at only now and then
    array = [f"--array=1-{jobs}", "--ntasks=1", share, "--output=/dev/null", "--wrap", "sleep 1"]
    cluster.run_as_user(["sbatch", *array], timeout_s=DEADLINE_S)
    environment = os.environ | cluster.env
    while subprocess.check_output(["squeue", "--noheader"], env=environment, timeout=DEADLINE_S):
        time.sleep(0.05)
    return time.monotonic() - before_s


if __name__ == "__main__":
    main()
