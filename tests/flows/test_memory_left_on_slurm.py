"""Memory on nodes without hooks: it goes at the job's end, or when the same user's next job comes there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from slurm_kit import ends_as, job_state, submit, write_job

pytestmark = pytest.mark.slurm

NODE = "n1"
TRAIN = """
import sys, time
from pathlib import Path
while not Path(sys.argv[1]).exists():
    time.sleep(0.1)
"""


def test_a_job_frees_at_its_end_the_memory_of_a_node_whose_runner_was_killed(slurm_cluster: Any) -> None:
    cluster = slurm_cluster
    folder = cluster.home / "memory-of-killed"
    end = folder / "end"
    nodes = ["n1", "n2"]
    job = {"name": "killed", "script": "train.py", "args": [str(end)], "nodes": 1, "spares": 1}
    job_file = write_job(cluster, folder, {**job, "slurm": {"nodelist": ",".join(nodes)}})
    (folder / "train.py").write_text(TRAIN)
    job_id, watch = submit(cluster, job_file)
    start = watch.wait_for("attempt_start", 120)
    watch.wait_for("workers_started", 120)
    memory = cluster.run_as_user(["sh", "-c", "echo /dev/shm/holdfast-$(id -u)"]).stdout.strip()
    path = f"{memory}/slurm-{cluster.name}-{job_id}"

    def is_there(node: str) -> bool:
        return cluster.run_on_node(node, ["test", "-e", path], check=False).returncode == 0

    assert all(map(is_there, nodes))
    (spare,) = start["spares"]
    cluster.run_on_node(spare, ["pkill", "-KILL", "-f", r"python.* -m launcher\.runner$"])
    watch.wait_for("node_out", 60)
    end.touch()
    watch.until(ends_as(cluster, job_id, "COMPLETED"), 60, "end of the job")
    assert not any(map(is_there, nodes))


def test_the_next_runner_frees_the_memory_of_ended_jobs_alone(slurm_cluster: Any) -> None:
    """As Slurm leaves it where it has ended a runner before it could tidy up: the node was cut out of its job, say."""
    cluster = slurm_cluster
    folder = cluster.home / "memory-left"
    end = folder / "end"
    job = {"name": "next", "script": "train.py", "args": [str(end)], "nodes": 1, "slurm": {"nodelist": NODE}}
    job_file = write_job(cluster, folder, job)
    (folder / "train.py").write_text(TRAIN)
    wrap = ["sbatch", "--parsable", f"--nodelist={NODE}", "--output=/dev/null"]
    ended = cluster.run_as_user([*wrap, "--wait", "--wrap=true"]).stdout.strip()
    alive = cluster.run_as_user([*wrap, "--wrap=sleep 600"]).stdout.strip()
    memory = cluster.run_as_user(["sh", "-c", "echo /dev/shm/holdfast-$(id -u)"]).stdout.strip()

    def left(job_id: str) -> Path:
        return Path(f"{memory}/slurm-{cluster.name}-{job_id}")

    def leave(job_id: str) -> None:
        script = f"umask 077; mkdir -p {left(job_id)}/mpi && echo state >{left(job_id)}/mpi/arena"
        cluster.run_on_node(NODE, ["setpriv", f"--reuid={cluster.user}", "--clear-groups", "sh", "-c", script])

    def is_there(job_id: str) -> bool:
        return cluster.run_on_node(NODE, ["test", "-e", str(left(job_id))], check=False).returncode == 0

    leave(ended)
    leave(alive)
    try:
        job_id, watch = submit(cluster, job_file)
        watch.until(lambda: not is_there(ended) or None, 120, "end of the memory of an ended job")
        watch.wait_for("workers_started", 120)
        assert is_there(alive) and is_there(job_id) and job_state(cluster, alive) == "RUNNING"
        end.touch()
        watch.until(ends_as(cluster, job_id, "COMPLETED"), 60, "end of the job")
        assert is_there(alive)
    finally:
        cluster.run_as_user(["scancel", alive])
