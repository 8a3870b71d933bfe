"""Which GPUs a job's processes see, where Slurm gives each node others. The GPUs' devices do nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from broken_job import RECOVERY_S, BrokenJob
from slurm_kit import ends_as
from waiting import until

from slurm.testbed import TestCluster

pytestmark = [pytest.mark.slurm, pytest.mark.faults]

GPUS_OF_A_NODE = 4


@pytest.fixture(scope="module")
def gpu_cluster() -> Iterator[TestCluster]:
    """Three nodes with GPUs. On the first two another job has one, so that the same GPUs have other numbers there."""
    cluster = TestCluster.up(f"pytest-{os.getpid()}-gpus", nodes=3, gpus=GPUS_OF_A_NODE)
    try:
        for node, gpus in (("n1", 1), ("n2", 2)):
            hold = ["sbatch", "--parsable", f"--nodelist={node}", f"--gpus-per-node={gpus}", "--wrap=sleep 3600"]
            job_id = cluster.run_as_user([*hold, "--output=/dev/null"]).stdout.strip()
            until(lambda job_id=job_id: ends_as(cluster, job_id, "RUNNING")(), f"job {job_id}")
        yield cluster
    finally:
        cluster.down()


class GpuJob(BrokenJob):
    """Two GPUs on each node, and a worker for each, as nobody says how many."""

    def given(self) -> dict[str, list[str]]:
        """The GPUs that Slurm has given the job, by node."""
        told = self.cluster.run_as_user(["scontrol", "--details", "show", "job", self.job_id]).stdout
        rows = re.findall(r"Nodes=(\S+) .*GRES=gpu:a100:\d+\(IDX:([\d,-]+)\)", told)
        return {node: _expand(gpus) for nodes, gpus in rows for node in self._names(nodes)}

    def seen(self) -> dict[int, tuple[int, str]]:
        """Local rank and visible GPUs of each rank of the newest attempt, as the script finds them."""
        folder = self.watch.job_dir / "log" / f"attempt-{self.attempt['attempt']}"
        found = {}
        for rank in range(2 * self.workers_per_node):
            line = re.search(r"local rank (\d+) sees GPUs (\S+)", (folder / f"rank-{rank}.log").read_text())
            assert line, self.watch.story()
            found[rank] = (int(line[1]), line[2])
        return found

    def check_gpus(self) -> None:
        """Every worker sees all GPUs of its node; local rank i is to take the i-th. The agent sees none."""
        given = self.given()
        assert all(len(gpus) == self.workers_per_node for gpus in given.values()), given
        for rank, (local_rank, visible) in self.seen().items():
            assert local_rank == rank % self.workers_per_node
            assert visible.split(",") == given[self.node_of(rank)], (rank, given, self.watch.story())
        for node in self.attempt["nodes"]:
            agent = self.agent_of(node, in_mpi=False)
            environ = self.cluster.run_on_node(node, ["cat", f"/proc/{agent}/environ"]).stdout.split("\0")
            assert not [line for line in environ if re.match(r"(CUDA|ROCR)_VISIBLE_DEVICES=|SLURM_\w*GPUS", line)]

    def _names(self, nodes: str) -> list[str]:
        return self.cluster.run_as_user(["scontrol", "show", "hostnames", nodes]).stdout.split()


@pytest.mark.parametrize(
    "asked", [{"gpus_per_node": "a100:2"}, {"slurm": {"gres": "gpu:2"}}], ids=["gpus_per_node", "gres"]
)
def test_each_node_has_its_own_gpus_before_and_after_a_node_is_replaced(
    gpu_cluster: TestCluster, steady_digests: dict[int, str], asked: dict[str, Any]
) -> None:
    name = "gres" if "slurm" in asked else "gpus"
    job = GpuJob(gpu_cluster, gpu_cluster.home / name, workers_per_node=None, **asked)
    job.settle()
    assert len({tuple(gpus) for gpus in job.given().values()}) > 1  # or every number would do
    job.check_gpus()

    lost = job.attempt["nodes"][1]
    comeback = job.recover(lambda: job.kill_runner(lost))
    assert (comeback.recovery.rung, comeback.recovery.restored_from) == ("spare", "memory"), job.watch.story()
    job.settle()
    job.check_gpus()
    job.finish(steady_digests)
    job.watch.until(ends_as(gpu_cluster, job.job_id, "COMPLETED"), RECOVERY_S, "end of the batch script")


def _expand(ranges: str) -> list[str]:
    """0-1,3 -> 0, 1, 3."""
    parts = (part.partition("-") for part in ranges.split(","))
    return [str(number) for first, _, last in parts for number in range(int(first), int(last or first) + 1)]
