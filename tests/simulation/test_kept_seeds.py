"""Schedules that once broke something, shrunk. Each stands for a defect that was mended."""

from __future__ import annotations

import pytest

from simulation.campaign import explain, run_one
from simulation.schedule import Fault, Schedule, Setup

KEPT = {
    "a decision ends while a SIGTERM is not understood": Schedule(
        Setup(seed=298), (Fault("preempted", at_s=0.005, after="NodeJoined", nth=1),)
    ),
    "workers that started under a supervisor that is gone are ended": Schedule(
        Setup(seed=261, chunks=3, reports=1), (Fault("supervisor_freezes", after="StartWorkers", lasts_s=12.0),)
    ),
    "a requeued job trains where its newest step is": Schedule(
        Setup(seed=306, extra=2, names_own=True, chunks=2, chunk_s=60.0, shared_every=2, limit_s=900.0, reports=9),
        (
            Fault("slurm_silent", at_s=0.3, after="AskWhyTerminated", lasts_s=7.0),
            Fault("supervisor_node_crashes", at_s=0.02, after="AgentsEnded", node=3, lasts_s=3.0, flag=1),
            Fault("node_crashes", at_s=65.53, node=4, lasts_s=2.0),
        ),
    ),
    "an order to end what is left is given again to a runner whose connection broke": Schedule(
        Setup(seed=1635, spares=2, reports=2, is_local=True), (Fault("supervisor_freezes", at_s=77.96, lasts_s=10.0),)
    ),
    "a spare that comes late after a take-over ends what it has of an attempt before": Schedule(
        Setup(seed=23027, spares=2, boosters=2),
        (
            Fault("supervisor_freezes", after="StartAgents", lasts_s=3.0),
            Fault("folder_unseen", at_s=1.83, node=2, lasts_s=7.0),
            Fault("booster_preempted", after="Committed", nth=2),
        ),
    ),
    "an attempt without a node that leaves is not one on the same nodes": Schedule(
        Setup(seed=30630, nodes=1, spares=0, least=1, boosters=3),
        (
            Fault("runner_killed", at_s=3.0, after="Settle", nth=2),
            Fault("booster_preempted", after="StartAgents", nth=3),
        ),
    ),
    "boosters are given back before the time limit": Schedule(
        Setup(
            seed=25437, nodes=3, spares=0, least=3, names_own=True, chunks=12, limit_s=120.0, boosters=3, settle_s=0.5
        ),
        (Fault("runner_killed", at_s=5.03),),
    ),
    "a runner that has ended its work by itself says so when its supervisor is back": Schedule(
        Setup(seed=16924, is_local=True), (Fault("supervisor_freezes", after="WorkersEnded", nth=2, lasts_s=30.0),)
    ),
    "runners that are started again train where the newest step is": Schedule(
        Setup(seed=116138, nodes=1, least=1), (Fault("links_break", at_s=0.001, after="Committed", flag=1),)
    ),
    "after a take-over a node that trained before is waited for until it is given up": Schedule(
        Setup(seed=62760, nodes=1, least=1, limit_s=120.0),
        (Fault("node_freezes", after="StartWorkers", nth=2), Fault("partition", lasts_s=1.0)),
    ),
    "a second successor gives the agents another generation than the first": Schedule(
        Setup(seed=70717, nodes=3),
        (Fault("agent_dies", at_s=3.86), Fault("supervisor_node_crashes", at_s=1.0, after="Restored")),
    ),
    "a cancel is not forgotten where a successor starts the runners anew": Schedule(
        Setup(seed=1005444),
        (Fault("supervisor_killed", at_s=0.02, after="ProbeFolder", nth=2), Fault("cancel", after="FolderProbed")),
    ),
    "agents that come up after a take-over are not replaced": Schedule(
        Setup(seed=1017930),
        (Fault("supervisor_freezes", after="AgentsRejoined", lasts_s=3.0), Fault("agent_dies", at_s=10.0)),
    ),
    "a node that comes with another booster holds nothing of the one before": Schedule(
        Setup(seed=70886, nodes=1, least=1, chunk_s=60.0, boosters=2), (Fault("booster_ends", after="WorkersKilled"),)
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_was_broken_once_is_not_broken_again(name: str) -> None:
    failure = run_one(KEPT[name])
    assert failure is None, explain(failure)
