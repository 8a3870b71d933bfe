"""The cost of each fault: seconds until detection, lost steps, seconds until the next step, beside a cold start.

    python benchmarks/faults.py [--json] [--only JOB]

The job is that of the fault suite (tests/flows/steady.py): 2 nodes with 2 workers each, 2 spares, a save in memory
every 10 steps. It runs on a real Slurm of 4 nodes, which needs root and Debian's Slurm. Faults follow one another. A
cold start is the time from `holdfast submit` to the first step. A ratio is the seconds until the next step divided by
those of the same job's cold start.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from recovery import ROOT, Row, table
from rich.console import Console

sys.path.insert(0, str(ROOT / "tests" / "flows"))

from broken_job import HANG_S, RECOVERY_S, BrokenJob
from supervised_job import SupervisedJob

from launcher.history.recovery import Recovery, cold_start_s
from slurm.testbed import TestbedError, TestCluster


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print {name: {value, unit, peer, ratio}}")
    parser.add_argument("--only", choices=WAYS, action="append", help="only the faults of this job; may be repeated")
    args = parser.parse_args()
    try:
        cluster = TestCluster.up("bench", nodes=4)
    except TestbedError as error:
        print(f"benchmark: needs a real Slurm: {error}", file=sys.stderr)
        return 1
    try:
        rows = [way for name, ways in WAYS.items() if not args.only or name in args.only for way in ways(cluster)]
    finally:
        cluster.down()
    if args.json:
        print(json.dumps({name: value for row in rows for name, value in row.to_mapping().items()}, indent=1))
    else:
        title = f"Faults: 4-node Slurm in namespaces, {os.cpu_count()} cores; a hang counts as one after {HANG_S:g} s"
        Console(width=130).print(table(rows, title))
    return 0


def in_place_and_crashed(cluster: Any) -> Iterator[Row]:
    """One job that loses processes, then a runner, then a node."""
    job = begun(cluster, "processes")

    ways: dict[str, Callable[[], object]] = {
        "worker killed": lambda: job.signal("KILL", 3),
        "worker raises an exception": lambda: job.tell("raise-2"),
        "all workers of a node killed": lambda: job.signal("KILL", 2, 3),
        "worker stopped (hang)": lambda: job.signal("STOP", 1),
        "a rank stays out of a collective (hang)": lambda: job.tell("away-2"),
        "runner killed": lambda: job.kill_runner(job.node_of(2)),
        "node crashed": lambda: cluster.crash_node(job.node_of(2)),
    }
    for name, break_it in ways.items():
        yield broken(job, name, break_it)
    ended(job)


def requeued_and_cut_off(cluster: Any) -> Iterator[Row]:
    """A job that is requeued. Then one of its nodes is cut off the network."""
    job = begun(cluster, "nodes")
    yield requeued(job)
    yield broken(job, "node cut off the network", lambda: cluster.node_down(job.node_of(2)))
    ended(job)


def crash_closed(cluster: Any, node: str) -> None:
    """The node's kernel closes all connections, as in a reboot. Then the node does not answer any more."""
    cluster.run_on_node(node, ["kill", "-KILL", "-1"], check=False)
    cluster.crash_node(node)


def crash_silent(cluster: Any, node: str) -> None:
    """The node stops without closing connections, as in a power failure."""
    cluster.node_down(node)
    cluster.crash_node(node)


def cut_off(cluster: Any, node: str) -> None:
    """The node loses its network. Its processes continue, and still see the job's folder."""
    cluster.node_down(node)


LOSSES = {"closed": crash_closed, "silent": crash_silent, "cut-off": cut_off}


def supervisors(how: str, cluster: Any) -> Iterator[Row]:
    """Jobs that lose their batch host, which is a spare, and then the training node that has taken over."""
    cluster.restore()
    job = SupervisedJob(cluster, cluster.home / f"supervisors-{how}", spares=2)
    job.settle()
    lost_at = time.time()
    takeover = job.taken_over(lambda: LOSSES[how](cluster, job.term.node))
    heard = job.watch.wait_for("commit", RECOVERY_S, time=lambda at: at > takeover["time"])
    in_place = Recovery(
        node=takeover["predecessor"],
        kind="takeover",
        rung="takeover",
        step_lost=heard["step"],
        step_resumed=heard["step"],
        detect_s=takeover["time"] - lost_at,
        next_step_s=heard["time"] - lost_at,
    )
    yield row(job, f"batch host lost, a spare ({how}; to the next save heard of)", in_place)
    job.watch.wait_for("node_out", RECOVERY_S, node=takeover["predecessor"])
    yield broken(job, f"its successor's node lost, which trains ({how})", lambda: LOSSES[how](cluster, job.term.node))
    ended(job)


WAYS: dict[str, Callable[[Any], Iterator[Row]]] = {
    "processes": in_place_and_crashed,
    "nodes": requeued_and_cut_off,
    **{f"supervisors-{how}": partial(supervisors, how) for how in LOSSES},
}


def begun(cluster: Any, name: str) -> BrokenJob:
    cluster.restore()
    job = BrokenJob(cluster, cluster.home / name, nodes=2, spares=2)
    job.settle()
    return job


def broken(job: BrokenJob, name: str, break_it: Callable[[], object]) -> Row:
    job.settle()
    return row(job, name, job.recover(break_it).recovery)


def requeued(job: BrokenJob) -> Row:
    """`scontrol requeue` during training: no step is lost. The time includes the scheduler's delay."""
    before = job.attempt["attempt"]
    asked_at = time.time()
    job.cluster.run_as_user(["scontrol", "requeue", job.job_id])
    agreed = job.watch.wait_for("attempt_end", RECOVERY_S, attempt=before)
    started = job.watch.wait_for("attempt_start", RECOVERY_S, attempt=before + 1)
    restored = job.watch.wait_for("restore", RECOVERY_S, attempt=before + 1)
    workers = job.watch.wait_for("workers_started", RECOVERY_S, attempt=before + 1)
    first = job.watch.wait_for("first_step", RECOVERY_S, attempt=before + 1)
    recovery = Recovery(
        node=None,
        kind="requeue",
        rung=started["rung"],
        step_lost=agreed["step"],
        step_resumed=restored["step"],
        restored_from=restored["tier"],
        detect_s=job.watch.events("stop_requested")[-1]["time"] - asked_at,
        workers_s=started["time"] + workers["seconds"] - asked_at,
        next_step_s=started["time"] + first["seconds"] - asked_at,
    )
    return row(job, "job requeued (scontrol requeue)", recovery)


def row(job: BrokenJob, name: str, recovery: Recovery) -> Row:
    cold = cold_start_s(job.watch.events(), job.submitted_at)
    if cold is None:
        raise SystemExit(f"benchmark: {name}: the job never trained\n{job.watch.story()}")
    return Row(name=name, cold_start_s=cold, recovery=recovery)


def ended(job: BrokenJob) -> None:
    job.settle()
    job.tell("finish")
    if job.watch.wait_for("job_end", RECOVERY_S)["outcome"] != "done":
        raise SystemExit(f"benchmark: the job did not finish\n{job.watch.story()}")


if __name__ == "__main__":
    sys.exit(main())
