"""`holdfast doctor` on a real Slurm: one step on a node, as an ordinary user."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from slurm_kit import HOLDFAST, write_job

pytestmark = pytest.mark.slurm


@pytest.mark.pmix
def test_a_page_for_a_job_on_a_cluster_that_can_run_it(slurm_cluster: Any) -> None:
    folder = slurm_cluster.home / "doctor"
    shared = {"path": "checkpoints", "every_steps": 1000}
    job = {"script": "train.py", "nodes": 2, "checkpoint": {"memory": {"every_steps": 5}, "shared": shared}}
    write_job(slurm_cluster, folder, job)
    script = ["sh", "-c", "touch train.py"]
    slurm_cluster.run_as_user(script, cwd=folder)
    words = [*HOLDFAST, "doctor", "job.yaml", "--json"]
    done = slurm_cluster.run_as_user(words, cwd=folder, timeout_s=170, check=False)
    facts = json.loads(done.stdout)
    rows = {row["name"]: row for row in facts["findings"]}
    story = yaml.safe_dump(facts)
    for name in ("slurm_version", "pmix", "node", "pmix_step", "job_folder", "shared_folder", "clock_difference"):
        assert rows[name]["status"] == "ok", story
    assert rows["proctrack"]["status"] == "warning" and "proctrack/cgroup" in rows["proctrack"]["advice"], story
    assert {"memory_file_system", "locked_memory", "versions", "environment", "hooks"} <= rows.keys(), story
    assert "rendezvous" in rows, story
    assert done.returncode == (facts["status"] == "critical"), story
    assert sorted(path.name for path in folder.iterdir()) == ["job.yaml", "train.py"]


def test_boosters_are_judged_by_the_clusters_own_partitions(slurm_cluster: Any) -> None:
    folder = slurm_cluster.home / "boosters"

    def job(partition: str) -> dict[str, Any]:
        elastic = {"min_nodes": 1, "max_nodes": 2, "booster": {"partition": partition}}
        return {"script": "train.py", "elastic": elastic, "slurm": {"partition": "base"}}

    def holdfast(*words: str) -> Any:
        return slurm_cluster.run_as_user([*HOLDFAST, *words], cwd=folder, timeout_s=170, check=False)

    def write(partition: str) -> None:
        write_job(slurm_cluster, folder, job(partition))
        slurm_cluster.run_as_user(["touch", "train.py"], cwd=folder)

    write("urgent")
    refused = holdfast("submit", "job.yaml")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert "elastic.booster.partition: got 'urgent', whose PreemptMode is OFF; expected one of" in refused.stderr

    write("boost")
    judged = holdfast("doctor", "job.yaml", "--json")
    assert judged.stdout, judged.stderr
    facts = json.loads(judged.stdout)
    rows = {row["name"]: row for row in facts["findings"]}
    assert (rows["boosters"]["status"], rows["base_partition"]["status"]) == ("ok", "ok"), rows
    assert "GraceTime=20" in rows["booster_grace"]["measured"], rows

    linted = holdfast("node", "slurm-conf", "--elastic", "--lint", slurm_cluster.env["SLURM_CONF"])
    assert linted.returncode == 0 and "PartitionName=boost ... GraceTime=60" in linted.stdout
