"""What Slurm does to a job, most often one taken over from its batch host: the job goes on, or is requeued and does."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
from slurm_kit import ends_as, job_state
from supervised_job import SupervisedJob

from slurm.testbed.namespaces import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.faults, pytest.mark.timeout(360)]  # Slurm itself takes over a minute

# A job without a supervisor, whose runners find that out; first while somebody does renew the lease.
ORPHAN = """#!/bin/sh
echo "run $SLURM_RESTART_COUNT" >> runs
[ -z "$SLURM_RESTART_COUNT" ] || sleep 600
(while [ ! -e spared ]; do date +%s%N > lease; sleep 0.2; done) &
srun --overlap --mpi=none {python} abandon.py
touch spared
wait
srun --overlap --mpi=none {python} abandon.py
sleep 600
"""
ABANDON = """
import asyncio, os, pathlib
from launcher.leadership.succession import Succession
succession = Succession(pathlib.Path.cwd(), f"slurm-{os.environ['SLURM_CLUSTER_NAME']}-{os.environ['SLURM_JOB_ID']}")
succession.turn = 0
asyncio.run(succession.abandon())
"""

REQUEUED_S = 90.0
TAKE_OVER_S = 30


@pytest.fixture
def job(fault_cluster: Any, small_share: Path, request: pytest.FixtureRequest) -> SupervisedJob:
    """A job in mid-training, on a cluster with all its nodes."""
    job = SupervisedJob(fault_cluster, small_share / request.node.originalname[5:40], **getattr(request, "param", {}))
    job.settle()
    return job


def kill_the_script(job: SupervisedJob) -> None:
    """Its process, which is the supervisor's parent: the supervisor ends with it."""
    supervisor = job.term
    job.cluster.run_on_node(supervisor.node, ["sh", "-c", f"kill -KILL $(ps -o ppid= -p {supervisor.pid})"])


def goes_on_after_a_requeue(job: SupervisedJob, lost: str | None, reason: str, within_s: float) -> None:
    """Waits for an agreed stop and the next run of the job, on all nodes; nothing is lost between them."""
    job.watch.wait_for("stop_requested", within_s, reason=reason)
    ended = job.watch.wait_for("attempt_end", 60, outcome="stopped")
    if lost is not None:
        job.cluster.restart_node(lost)
    job.watch.wait_for("attempt_start", REQUEUED_S, attempt=ended["attempt"] + 1, rung="requeue")
    restored = job.watch.wait_for("restore", REQUEUED_S, attempt=ended["attempt"] + 1)
    assert restored["step"] == ended["step"], job.watch.story()
    job.settle()


def test_batch_script_that_slurm_kills_after_a_take_over(job: SupervisedJob, steady_digests: dict[int, str]) -> None:
    """So does Slurm with a batch host that was DOWN and comes back; it takes the script's end for the job's."""
    batch_host = job.term.node
    job.taken_over(lambda: job.cluster.node_down(batch_host))
    told = "leaving the job to another supervisor"
    job.watch.until(lambda: told in job.supervisor_log or None, 60, "end of the supervisor that was cut off")
    job.cluster.node_up(batch_host)
    job.cluster.run_on_node(batch_host, ["pkill", "-KILL", "-f", "launcher[.]submission[.]batch"])
    goes_on_after_a_requeue(job, batch_host, "batch_script_lost", 60)
    job.finish(steady_digests)
    job.watch.until(ends_as(job.cluster, job.job_id, "COMPLETED"), 60, "job that its batch script has ended")


def test_batch_script_that_is_killed_while_it_supervises(job: SupervisedJob, steady_digests: dict[int, str]) -> None:
    """Slurm ends the job with its script, and all that runs in it; somebody of it requeues the job in time."""
    kill_the_script(job)
    job.watch.wait_for("takeover", 60, term=2)
    goes_on_after_a_requeue(job, None, "batch_script_lost", 60)
    job.finish(steady_digests)
    job.watch.until(ends_as(job.cluster, job.job_id, "COMPLETED"), 60, "job that its batch script has ended")


@pytest.mark.parametrize("job", [{"nodes": 1, "spares": 0}], indirect=True, ids=["one_node"])
def test_batch_script_that_is_killed_where_nobody_can_take_over(
    job: SupervisedJob, steady_digests: dict[int, str]
) -> None:
    kill_the_script(job)
    job.watch.wait_for("attempt_start", 2 * REQUEUED_S, rung="requeue")
    job.settle()
    job.finish(steady_digests)
    job.watch.until(ends_as(job.cluster, job.job_id, "COMPLETED"), 60, "job that its batch script has ended")


def test_time_limit_after_a_take_over(job: SupervisedJob, steady_digests: dict[int, str]) -> None:
    """Slurm's warning goes to the batch script, which is lost: the supervisor stops the job in time all the same."""
    batch_host = job.term.node
    spent_s = int(time.time() - job.watch.events("job_start")[0]["time"])
    job.set_time_limit(spent_s + 90 + TAKE_OVER_S)  # it stops 90 s before its end
    job.taken_over(lambda: job.cluster.crash_node(batch_host))
    assert not job.watch.events("stop_requested"), "the machine is too slow: the take-over came after the warning"
    job.watch.wait_for("stop_requested", 90, reason="time_limit")
    job.set_time_limit(600)
    goes_on_after_a_requeue(job, batch_host, "time_limit", 1)
    job.finish(steady_digests)
    job.watch.until(ends_as(job.cluster, job.job_id, "COMPLETED"), 60, "job that its batch script has ended")


def test_a_requeue_waits_for_a_controller_that_is_away(job: SupervisedJob, steady_digests: dict[int, str]) -> None:
    """It is killed before the warning of the time limit, and starts once it has been asked for a requeue in vain."""
    job.cluster.kill_daemon("ctl")
    try:
        job.signal_supervisor("USR1", job.term)
        job.watch.until(lambda: "not requeued yet" in job.supervisor_log or None, 180, "request in vain")
    finally:
        job.cluster.start_daemon("ctl")
    goes_on_after_a_requeue(job, None, "time_limit", 1)
    job.finish(steady_digests)
    job.watch.until(ends_as(job.cluster, job.job_id, "COMPLETED"), 60, "job that its batch script has ended")


@pytest.mark.parametrize(("flag", "end"), [("--requeue", "RUNNING"), ("--no-requeue", "CANCELLED")])
def test_a_job_that_nobody_supervises_is_handed_back_once(fault_cluster: Any, flag: str, end: str) -> None:
    folder = fault_cluster.home / f"orphan{flag}"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "job.sh").write_text(ORPHAN.format(python=sys.executable))
    (folder / "abandon.py").write_text(ABANDON)
    argv = ["sbatch", "--parsable", "--nodes=3", "--ntasks=3", flag, "job.sh"]
    job_id = fault_cluster.run_as_user(argv, cwd=folder).stdout.strip()
    runs = folder / "runs"
    handed_back = {"RUNNING": lambda: runs.exists() and runs.read_text() == "run \nrun 1\n"}

    wait_until(
        handed_back.get(end, lambda: job_state(fault_cluster, job_id) == end), 60, f"job not handed back ({end})"
    )
    assert (folder / "spared").exists(), "handed back although the lease was renewed"
    assert job_state(fault_cluster, job_id) == end
