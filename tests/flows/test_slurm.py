"""Jobs on a real Slurm cluster of four nodes: nodes lost for real, the job requeued and preempted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from broken_job import BrokenJob
from main_job import ARGS, SCRIPT, Watch
from slurm_kit import ends_as, shown, status, submit, write_job

from launcher.history.recovery import recoveries

pytestmark = pytest.mark.slurm


@pytest.fixture
def job_file(slurm_cluster: Any, request: pytest.FixtureRequest) -> Path:
    """The main job as a user has it: a folder of their own on the shared file system, with a job file in it."""
    job = {
        "name": "flow",
        "script": str(SCRIPT),
        "args": ARGS,
        "nodes": 3,
        "spares": 1,
        "checkpoint": {
            "namespace": "flow",
            "memory": {"every_steps": 5, "keep": 2},
            "redundancy": {"scheme": "partner"},
            "shared": {"path": "checkpoints", "every_steps": 1000},
        },
    }
    return write_job(slurm_cluster, slurm_cluster.home / request.node.name[:40], job)


def in_mid_training(watch: Watch, step: int = 20) -> None:
    watch.wait_for("commit", 120, tier="memory", step=lambda committed: committed >= step)


def test_a_node_whose_link_goes_down_is_replaced_within_seconds(
    slurm_cluster: Any, steady_digests: dict[int, str]
) -> None:
    job = BrokenJob(slurm_cluster, slurm_cluster.home / "link-down", workers_per_node=1, restart={})
    job.settle()
    lost = job.node_of(1)
    comeback = job.recover(lambda: slurm_cluster.node_down(lost))

    fault, recovery = comeback.fault, comeback.recovery
    assert (fault["kind"], fault["node"]) == ("node_lost", lost), job.watch.story()
    assert (recovery.rung, recovery.restored_from) == ("spare", "memory"), job.watch.story()
    assert recovery.detect_s is not None and recovery.detect_s < 10
    assert comeback.lost_nothing_committed, job.watch.story()
    sources = job.watch.wait_for("restore", 1, attempt=1)["sources"]
    assert any(1 in ranks for source, ranks in sources.items() if source.startswith("partner")), job.watch.story()
    assert lost in status(slurm_cluster, job.job_id)["out"]
    told = shown(slurm_cluster, job.job_id)
    assert lost in told and fault["reason"].split()[0] in told
    job.finish(steady_digests)  # Slurm itself waits for the lost node until SlurmdTimeout


@pytest.mark.faults
def test_a_crashed_node_is_noticed_at_once(slurm_cluster: Any, job_file: Path, reference_sha256: str) -> None:
    _, watch = submit(slurm_cluster, job_file)
    in_mid_training(watch)
    lost = watch.events("attempt_start")[0]["nodes"][2]
    crashed_at = time.time()
    slurm_cluster.crash_node(lost)
    watch.wait_for("job_end", 120, outcome="done")
    (recovery,) = recoveries(watch.events(), {lost: crashed_at})
    assert (recovery.node, recovery.rung, recovery.restored_from) == (lost, "spare", "memory"), watch.story()
    assert recovery.detect_s is not None and recovery.detect_s < 10
    assert watch.sha256 == reference_sha256


@pytest.mark.faults
def test_a_requeued_job_whose_memory_is_gone_goes_on_from_the_shared_directory(
    slurm_cluster: Any, job_file: Path, reference_sha256: str
) -> None:
    job_id, watch = submit(slurm_cluster, job_file)
    in_mid_training(watch)
    slurm_cluster.run_as_user(["scontrol", "requeue", job_id], timeout_s=20)
    agreed = watch.wait_for("attempt_end", 60, attempt=0, outcome="stopped")
    watch.until(ends_as(slurm_cluster, job_id, "PENDING"), 60, "requeued job")
    for node in slurm_cluster.nodes:
        slurm_cluster.run_on_node(node, ["sh", "-c", "rm -rf /dev/shm/holdfast-*"])

    restored = watch.wait_for("restore", 120, attempt=1)
    watch.until(ends_as(slurm_cluster, job_id, "COMPLETED"), 150, "completed job")

    assert restored["step"] == agreed["step"] and restored["tier"] == "shared", watch.story()
    assert watch.sha256 == reference_sha256


def test_a_requeued_or_preempted_job_stops_at_a_boundary_and_goes_on_from_memory(
    slurm_cluster: Any, steady_digests: dict[int, str]
) -> None:
    """A job that trains until it is told to end: Slurm may take its time to find that another one is more urgent."""
    job = BrokenJob(slurm_cluster, slurm_cluster.home / "requeued", spares=2, restart={})
    requeue = ["scontrol", "requeue", job.job_id]
    urgent = ["sbatch", "--parsable", "-p", "urgent", "-N4", "--exclusive", "-o", "/dev/null", "--wrap", "true"]
    for attempt, (command, reason) in enumerate([(requeue, "requeue"), (urgent, "preempted")]):
        job.settle()
        slurm_cluster.run_as_user(command, cwd=slurm_cluster.home, timeout_s=60)
        agreed = job.watch.wait_for("attempt_end", 60, attempt=attempt)
        restored = job.watch.wait_for("restore", 120, attempt=attempt + 1)
        assert job.watch.events("stop_requested")[-1]["reason"] == reason, job.watch.story()
        assert agreed["outcome"] == "stopped", job.watch.story()
        assert (restored["step"], restored["tier"]) == (agreed["step"], "memory"), job.watch.story()
    job.settle()
    job.finish(steady_digests)
    job.watch.until(ends_as(slurm_cluster, job.job_id, "COMPLETED"), 60, "completed job")


PAIR = """
import os, pathlib, time
job, restarts = pathlib.Path(os.environ["HOLDFAST_JOB_DIR"]), os.environ.get("SLURM_RESTART_COUNT", "0")
up = job / f"up-{restarts}-{os.environ['RANK']}"
up.with_suffix(".new").write_text(os.environ["HOLDFAST_RUNNER_PID"])
up.with_suffix(".new").rename(up)
while restarts == "0":
    time.sleep(0.01)
"""


@pytest.mark.faults
def test_a_requeued_job_is_not_given_the_nodes_that_failed(slurm_cluster: Any, job_file: Path) -> None:
    (job_file.parent / "pair.py").write_text(PAIR)
    job_file.write_text(yaml.safe_dump({"name": "pair", "script": "pair.py", "nodes": 2}))
    job_id, watch = submit(slurm_cluster, job_file)
    watch.until(lambda: (watch.job_dir / "up-0-1").exists() or None, 60, "second worker")
    _, lost = watch.wait_for("attempt_start", 1)["nodes"]
    slurm_cluster.run_on_node(lost, ["kill", "-KILL", (watch.job_dir / "up-0-1").read_text()])

    watch.until(ends_as(slurm_cluster, job_id, "COMPLETED"), 120, "completed job")

    assert watch.wait_for("node_out", 1)["node"] == lost
    again = watch.wait_for("attempt_start", 1, attempt=1)
    assert again["rung"] == "requeue" and lost not in again["nodes"], watch.story()
    shown = slurm_cluster.run_as_user(["scontrol", "show", "job", "-o", job_id], timeout_s=20).stdout
    assert f"ExcNodeList={lost} " in shown


def test_a_job_whose_log_slurm_cannot_open_says_so(slurm_cluster: Any, job_file: Path) -> None:
    """Slurm opens it before anything of the job runs, and fails the job."""
    job_id, watch = submit(slurm_cluster, job_file, "--hold")
    watch.job_dir.chmod(0o555)
    slurm_cluster.run_as_user(["scontrol", "release", job_id])
    watch.until(ends_as(slurm_cluster, job_id, "FAILED"), 60, "end")
    told = status(slurm_cluster, job_id)
    assert told["state"] == "lost" and f"could not open its log in {watch.job_dir}" in told["reason"], told
