"""Many elastic jobs and urgent ones share a cluster; the full size is `python -m simulation.shared_cluster`."""

from __future__ import annotations

import pytest

from simulation.boosters import KILL_WAIT_S
from simulation.shared_cluster import run

JOBS, NODES = 40, 200


@pytest.mark.timeout(300)
def test_elastic_jobs_share_a_cluster_with_urgent_ones() -> None:
    report = run(JOBS, NODES)
    assert report.outcomes == {"done": JOBS}, "no job is stuck, and no base job was touched"
    assert report.used_before >= 0.95 * report.pool, "boosters use what is free"
    assert report.waited_s <= KILL_WAIT_S + 10.0, "boosters make way within the grace period"
    assert report.urgent * 0.5 <= report.preempted <= report.urgent + 2 * 6, "no more are preempted than are needed"
    assert report.used_after >= 0.95 * report.pool, "boosters come back by themselves"
    assert report.shrunk > 0 and report.grown > JOBS / 2
