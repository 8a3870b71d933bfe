"""A job that trains with a booster and is requeued: all ranks save at the agreed step, with the agents of both jobs."""

from __future__ import annotations

from typing import Any

import pytest
from elastic_job import SIZE_S, ElasticJob
from main_job import Event

pytestmark = [pytest.mark.slurm, pytest.mark.faults, pytest.mark.timeout(500)]


def test_a_requeue_with_a_booster_loses_neither_the_agents_nor_a_step(
    slurm_cluster: Any, steady_digests: dict[int, str]
) -> None:
    cluster = slurm_cluster
    job = ElasticJob(cluster, cluster.home / "requeue", nodes=1, min_nodes=1, max_nodes=2)
    grown = job.until_size(2)
    for nodes in (1, 2):
        job.scale(nodes)
        grown = job.until_size(nodes, grown["attempt"])
    sessions = ["sh", "-c", "ls -d /dev/shm/holdfast-*/slurm-*/ompi.* | wc -l"]
    assert int(cluster.run_on_node(grown["nodes"][0], sessions).stdout) <= 2, "those of ended mpiruns are removed"
    cluster.run_as_user(["scontrol", "requeue", job.job_id])
    job.watch.wait_for("stop_requested", SIZE_S, reason="requeue")
    stopped = job.watch.wait_for("attempt_end", SIZE_S, outcome="stopped")
    assert not job.watch.events("agents_lost") and not job.watch.events("problem"), job.watch.story()
    again = job.watch.until(lambda: (job.watch.events("job_start")[1:] or [None])[0], 240, "next start of the job")

    def restored() -> Event | None:
        return next((event for event in job.watch.events("restore") if event["time"] > again["time"]), None)

    assert job.watch.until(restored, SIZE_S, "restore")["step"] == stopped["step"], job.watch.story()
    job.finish(steady_digests)
