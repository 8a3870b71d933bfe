"""A Slurm whose srun has no PMIx plugin: mpirun starts the checkpoint agents, with an srun for each node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from broken_job import BrokenJob

from slurm.testbed import TestCluster

pytestmark = [pytest.mark.slurm, pytest.mark.faults]


@pytest.fixture
def without_pmix(fault_cluster: TestCluster) -> str:
    """A slurm.conf for the job's commands: the same cluster, as a srun sees it that has no pmix."""
    conf = Path(fault_cluster.env["SLURM_CONF"])
    folder = fault_cluster.home / "without-pmix"
    plugins = folder / "plugins"
    plugins.mkdir(parents=True, exist_ok=True)
    (installed,) = Path("/usr/lib").glob("*/slurm-wlm")
    for plugin in installed.iterdir():
        if "pmix" not in plugin.name and not (plugins / plugin.name).exists():
            (plugins / plugin.name).symlink_to(plugin)
    text = conf.read_text().replace("MpiDefault=pmix", f"MpiDefault=none\nPluginDir={plugins}")
    (folder / "slurm.conf").write_text(text)
    return str(folder / "slurm.conf")


def test_a_lost_node_is_replaced_and_its_shards_come_from_its_partner(
    fault_cluster: Any, without_pmix: str, steady_digests: dict[int, str]
) -> None:
    export = {"export": f"ALL,SLURM_CONF={without_pmix}"}
    job = BrokenJob(fault_cluster, fault_cluster.home / "no-pmix", slurm=export)
    job.settle()
    (commit, *_) = job.watch.events("commit")
    assert commit["tier"] == "memory"
    comeback = job.recover(lambda: fault_cluster.crash_node(job.node_of(2)))
    assert comeback.recovery.rung == "spare" and comeback.lost_nothing_committed, job.watch.story()
    assert job.watch.events("restore")[-1]["tier"] == "memory"
    job.settle()
    job.finish(steady_digests)
