"""Jobs on a real Slurm that are slow, hang or fail: what is said of them, what follows, and what Slurm has of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from broken_job import BrokenJob
from memory_cgroup import memory_cgroup
from slurm_kit import HOLDFAST, ends_as, shown, status, submit, write_job
from test_causes import HUNGRY, LIMIT_BYTES, MISSING
from test_straggler_local import SCRIPT as SLOW

from slurm import Slurm
from slurm.testbed import TestCluster

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(400)]

WAIT_S = 200.0  # each node loads torch first


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    cluster = TestCluster.up(f"pytest-{os.getpid()}-why", nodes=3, hooks=True)
    yield cluster
    cluster.down()


def why(cluster: Any, job_id: str) -> dict[str, Any]:
    """`holdfast why JOB --json` as the ordinary user."""
    return json.loads(cluster.run_as_user([*HOLDFAST, "why", job_id, "--json"], timeout_s=60).stdout)


def submitted(cluster: Any, name: str, script: str, **keys: Any) -> tuple[str, Any]:
    """A job of this script; its id and its events."""
    job_file = write_job(cluster, cluster.home / name, {"name": name, "script": "train.py", **keys})
    (job_file.parent / "train.py").write_text(script)
    return submit(cluster, job_file)


def test_a_slow_node_is_left_at_an_agreed_step_and_its_check_runs(cluster: Any) -> None:
    roots = {node: cluster.set_hooks(node, check="quick") for node in cluster.nodes}
    job_id, watch = submitted(
        cluster, "slow", SLOW, nodes=2, spares=1, checkpoint={"memory": {"every_steps": 10}},
        straggler={"action": "swap", "factor": 1.5, "steps": 20},
    )  # fmt: skip
    first = watch.wait_for("attempt_start", WAIT_S, attempt=0)
    slow = watch.wait_for("straggler", WAIT_S)
    assert (slow["node"], slow["rank"], slow["part"]) == (first["nodes"][1], 1, "data"), watch.story()
    node = slow["node"]
    out = watch.wait_for("node_out", WAIT_S, node=node, cause="slow")
    restored = watch.wait_for("restore", WAIT_S, attempt=1)
    assert restored["step"] == watch.wait_for("attempt_end", 1, attempt=0)["step"], "no step is lost"
    assert status(cluster, job_id)["out"][node] == out["reason"]
    assert why(cluster, job_id)["faults"] == [], "a node that is only slow is no fault"
    slurm = Slurm(env=cluster.env)
    given_back = lambda: None if node in slurm.job(job_id).nodes else True  # noqa: E731
    watch.until(given_back, WAIT_S, f"end of {node} in the job's allocation")
    verdict = roots[node] / "var/lib/holdfast/verdict.json"

    def is_checked() -> bool | None:
        found = json.loads(verdict.read_text()) if verdict.exists() else {"time_s": 0.0}
        return (found["time_s"] > out["time"] and found["level"] == "quick") or None

    watch.until(is_checked, WAIT_S, "check of the node that was left, as deep as idle nodes have it")
    cluster.run_as_user(["scancel", job_id])
    watch.until(ends_as(cluster, job_id, "CANCELLED"), WAIT_S, "end of the job")


def test_a_hang_is_told_with_the_rank_that_stays_away(cluster: Any) -> None:
    job = BrokenJob(cluster, cluster.home / "hang", nodes=1, spares=0)
    job.settle(WAIT_S)
    node = job.node_of(1)
    job.tell("away-1")
    fault = job.watch.wait_for("fault", WAIT_S)
    assert (fault["kind"], fault["class"], fault["rank"], fault["node"]) == ("hang", "hang", 1, node)
    assert "has not entered all_reduce" in fault["proof"] and "obey (" in fault["proof"], fault
    (told,) = why(cluster, job.job_id)["faults"]
    assert (told["class"], told["rank"], told["proof"]) == ("hang", 1, fault["proof"])
    cluster.run_as_user(["scancel", job.job_id])
    job.watch.until(ends_as(cluster, job.job_id, "CANCELLED"), WAIT_S, "end of the job")


def test_slurm_has_the_exit_code_of_a_fault_that_is_not_tried_again(cluster: Any) -> None:
    job_id, watch = submitted(cluster, "missing", MISSING, nodes=2)
    watch.until(ends_as(cluster, job_id, "FAILED"), WAIT_S, "failed job")
    job = cluster.run_as_user(["scontrol", "show", "job", job_id]).stdout
    assert "ExitCode=17:0" in job
    (fault,) = why(cluster, job_id)["faults"]
    assert (fault["class"], fault["domain"], fault["alike"], fault["rung"]) == ("import", "user", 1, "")
    assert "not_retried" in shown(cluster, job_id)


def test_a_worker_that_the_kernel_kills_in_the_nodes_cgroup_ran_out_of_memory(cluster: Any) -> None:
    node = cluster.nodes[0]
    with memory_cgroup(f"holdfast-{os.getpid()}", LIMIT_BYTES) as processes:
        into = f"for pid in $(pgrep -f '^slurmd'); do echo $pid > {processes}; done"
        cluster.run_on_node(node, ["sh", "-c", into])
        job_id, watch = submitted(
            cluster, "hungry", HUNGRY, nodes=1, workers_per_node=2, restart={"on": {"host_memory": "stop"}},
            slurm={"nodelist": node},
        )  # fmt: skip
        watch.until(ends_as(cluster, job_id, "FAILED"), WAIT_S, "failed job")
        (fault,) = why(cluster, job_id)["faults"]
        assert (fault["class"], fault["rank"], fault["node"]) == ("host_memory", 1, node), watch.story()
        assert fault["proof"] == "the kernel killed 1 of the node's processes, because memory was short"
