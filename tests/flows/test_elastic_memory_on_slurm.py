"""What a booster leaves on its node: nothing where it has time, and nothing in memory where it is killed outright."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from elastic_job import SIZE_S, ElasticJob, urgent

from slurm.testbed import TestCluster

pytestmark = [pytest.mark.slurm, pytest.mark.faults, pytest.mark.timeout(500)]


@pytest.fixture(params=[True, False], ids=["hooks", "no hooks"])
def three(request: pytest.FixtureRequest) -> Iterator[TestCluster]:
    """Three nodes: each booster has the same one."""
    cluster = TestCluster.up(
        f"pytest-{os.getpid()}-{'hooks' if request.param else 'bare'}", nodes=3, hooks=request.param
    )
    if request.param:
        for node in cluster.nodes:
            cluster.set_hooks(node, keep_memory_s=0)
    yield cluster
    cluster.down()


def test_the_epilog_frees_it_or_the_next_boosters_runner(three: Any, steady_digests: dict[int, str]) -> None:
    job = ElasticJob(three, three.home / "memory", max_nodes=3)
    grown = job.until_size(3)
    base, node = grown["nodes"][:2], grown["nodes"][2]
    ((killed, _),) = job.boosters("RUNNING").items()
    assert job.memory_on(node).split()[0].endswith(f"slurm-{three.name}-{killed}"), job.memory_on(node)

    three.run_as_user(["scancel", "--signal=KILL", killed])
    job.until_size(2, grown["attempt"])
    job.watch.until(lambda: None if killed in job.memory_on(node) else True, SIZE_S, "end of its memory")
    again = job.until_size(3, grown["attempt"])
    ((number, _),) = job.boosters("RUNNING").items()
    assert again["nodes"][2] == node and number != killed, job.watch.story()
    assert job.memory_on(node).split()[0].endswith(f"slurm-{three.name}-{number}")
    for other in base:
        assert job.memory_on(other).split()[0].endswith(f"slurm-{three.name}-{job.job_id}")
    job.finish(steady_digests)


def test_a_booster_that_is_preempted_leaves_nothing_in_memory_and_no_step_on_the_disk(
    slurm_cluster: Any, steady_digests: dict[int, str]
) -> None:
    four = slurm_cluster
    tiers = {"nvme": {"path": str(four.nvme), "every_steps": 10}}
    job = ElasticJob(four, four.home / "disk", max_nodes=3, tiers=tiers)

    def on_disk(node: str) -> str | None:
        list_steps = ["sh", "-c", f"ls -d {four.nvme}/{node}/disk/step-* 2>/dev/null; true"]
        return str(four.run_on_node(node, list_steps).stdout) or None

    grown = job.until_size(3)
    base, node = grown["nodes"][:2], grown["nodes"][2]
    job.watch.until(lambda: on_disk(node), SIZE_S, "step on the booster's disk")
    taker = urgent(four, 2)  # one node is free
    job.until_size(2, grown["attempt"])
    job.watch.until(lambda: None if on_disk(node) or job.memory_on(node) else True, SIZE_S, "end of all it has left")
    assert not job.watch.events("fault"), job.watch.story()
    four.run_as_user(["scancel", taker])
    job.finish(steady_digests)
    assert all(map(on_disk, base))  # the job has ended: what it left there stays
