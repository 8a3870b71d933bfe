"""A job leaves a node before it fails, without a lost step: on the local cluster, and on the real Slurm."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from broken_job import BrokenJob
from main_job import STEPS, Watch, main_job
from slurm_kit import status

from launcher.clusters.local.cluster import LocalCluster
from launcher.supervisor import drains, supervise
from slurm import Slurm
from slurm.hyperpod import REPLACE

LEAVE_S = 90.0  # a look at the nodes, and two attempts


def steps_are_without_gap(watch: Watch) -> bool:
    """Each attempt goes on from the step at which the one before has stopped."""
    stops = [event["step"] for event in watch.events("attempt_end") if event["outcome"] == "resized"]
    starts = [event["step"] for event in watch.events("restore")][1:]
    return stops == starts


@pytest.mark.long(seconds=20)
def test_a_spare_takes_a_drained_nodes_place_and_the_weights_are_those_of_a_run_without(
    tmp_path: Path, reference_sha256: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The local cluster has no scheduler that drains nodes, so the test answers in its place."""
    found: dict[str, str] = {}

    def drained(self: LocalCluster, nodes: Collection[str]) -> dict[str, str]:
        return dict(found)

    monkeypatch.setattr(LocalCluster, "drained", drained)
    monkeypatch.setattr(drains, "LOOK_S", 0.1)
    watch = Watch(tmp_path / "job")

    def drain() -> None:
        watch.wait_for("commit", 90, tier="memory", step=lambda step: step >= 20)
        found["node1"] = "drained by root: a broken fan"

    threading.Thread(target=drain, daemon=True).start()
    outcome = supervise(main_job(), watch.job_dir, "local")

    assert (outcome.name, outcome.step) == ("done", STEPS), watch.story()
    assert watch.sha256 == reference_sha256
    assert not watch.events("fault") and len(watch.events("attempt_start")) == 2, watch.story()
    second = watch.events("attempt_start")[1]
    assert (second["nodes"], second["rung"]) == (["node0", "node3", "node2"], "spare")
    assert steps_are_without_gap(watch), watch.story()
    (out,) = watch.events("node_out")
    assert (out["node"], out["cause"], out["reason"]) == ("node1", "drained", "drained by root: a broken fan")


@pytest.mark.slurm
@pytest.mark.faults
@pytest.mark.parametrize("order", ["a broken fan", REPLACE])
def test_a_node_that_slurm_drains_is_left_without_a_lost_step(
    fault_cluster: Any, steady_digests: dict[int, str], order: str
) -> None:
    """`scontrol update State=DRAIN` by an administrator, or `State=FAIL` as HyperPod's health agent sets it."""
    job = BrokenJob(fault_cluster, fault_cluster.home / "drained", nodes=2, spares=1, workers_per_node=1)
    job.settle()
    _, node = job.attempt["nodes"]
    slurm = Slurm(env=fault_cluster.env)
    (slurm.fail if order == REPLACE else slurm.drain)(node, order)

    leaving = job.watch.wait_for("node_leaving", LEAVE_S)
    assert leaving["node"] == node and order in leaving["reason"], job.watch.story()
    job.watch.wait_for("node_out", LEAVE_S, node=node, cause="drained")
    assert node not in job.attempt["nodes"] and job.attempt["rung"] == "spare", job.watch.story()
    assert steps_are_without_gap(job.watch) and not job.watch.events("fault"), job.watch.story()
    has_it = lambda: node in slurm.job(job.job_id).nodes or None  # noqa: E731
    job.watch.until(lambda: None if has_it() else True, LEAVE_S, f"end of {node} in the job's allocation")
    job.settle()
    job.finish(steady_digests)
    assert order in status(fault_cluster, job.job_id)["out"][node]
