"""What a booster that is killed outright has left in its node's memory: it goes, and the base's memory stays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from elastic_job import SIZE_S, ElasticJob

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
