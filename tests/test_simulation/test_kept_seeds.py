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
    "a successor loses the silent predecessor as its record says": Schedule(
        Setup(seed=2000377, spares=0, least=1),
        (
            Fault("supervisor_node_crashes", at_s=1.0, after="StartWorkers", nth=2, lasts_s=3.0),
            Fault("scale", at_s=1.0),
        ),
    ),
    "a holder that is out holds nothing any more": Schedule(
        Setup(seed=2476082, nodes=1, least=1, boosters=3, settle_s=3.0),
        (
            Fault("supervisor_killed", at_s=2.03),
            Fault("scale", at_s=23.23),
            Fault("booster_preempted", at_s=0.02, after="FolderProbed", nth=3, flag=2),
        ),
    ),
    "suspects are replaced as far as there are others": Schedule(
        Setup(seed=2006443, spares=0, chunk_s=60.0, boosters=3, skips=True),
        (Fault("worker_fails", at_s=3.0, after="WorkersStarted"), Fault("worker_fails")),
    ),
    "a node whose connection breaks while runners are started is in one phase": Schedule(
        Setup(seed=2504121, spares=0, least=1),
        (Fault("srun_dies", at_s=0.85, node=1, flag=1), Fault("supervisor_freezes", at_s=0.86, lasts_s=0.3)),
    ),
    "a node that joins at the last moment of the wait was awaited": Schedule(
        Setup(seed=2918610, nodes=1, least=1, limit_s=120.0),
        (Fault("node_cut", after="NodeJoined", nth=5, lasts_s=10.0), Fault("preempted", at_s=3.0)),
    ),
    "runners that are started again are awaited where the newest step is": Schedule(
        Setup(seed=2390871, nodes=1, least=1, names_own=True, chunk_s=5.0, boosters=1, snooze_s=15.0),
        (
            Fault("worker_ends_early", at_s=0.6, after="KillAgents", node=4),
            Fault("booster_ends", at_s=55.17),
            Fault("links_break", at_s=0.02, after="AllocationAsked", nth=2, flag=1),
        ),
    ),
    "a node that cannot train as it comes back is out": Schedule(
        Setup(seed=2082135, boosters=3),
        (Fault("runner_broken", at_s=1.0, node=5), Fault("node_cut", after="StartAgents", node=5, lasts_s=3.0)),
    ),
    "after a standstill a node has time to connect again": Schedule(
        Setup(seed=2229498, boosters=2),
        (
            Fault("booster_preempted", at_s=1.0, after="StartAgents", nth=3, flag=1),
            Fault("worker_fails", at_s=1.0),
            Fault("supervisor_freezes", after="WorkersEnded", nth=3, lasts_s=2.0),
        ),
    ),
    "no deadline of gathering outlives the wait for its nodes": Schedule(
        Setup(seed=2963699, spares=0, least=1, is_slow=True, reports=1, boosters=2, booster_nodes=2),
        (
            Fault("slurm_silent", at_s=0.7, lasts_s=25.0),
            Fault("supervisor_node_crashes", at_s=6.0, after="Restored", lasts_s=3.0),
        ),
    ),
    "workers that hang are found while a resize cannot be recorded": Schedule(
        Setup(seed=2487530, spares=0, boosters=2),
        (Fault("worker_ends_early", at_s=3.0, after="StartAgents"), Fault("folder_removed", at_s=10.0)),
    ),
    "agents that failed have a cause though their nodes have been let go": Schedule(
        Setup(seed=2885499, names_own=True, boosters=3, booster_nodes=2, settle_s=3.0),
        (
            Fault("booster_preempted", after="Restored", nth=3),
            Fault("slurm_silent", after="Restored", nth=3, lasts_s=25.0),
        ),
    ),
    "workers that a supervisor before asked to stop are not done": Schedule(
        Setup(seed=2346541, nodes=3),
        (
            Fault("supervisor_node_freezes", after="Restored", lasts_s=5.0),
            Fault("node_crashes", at_s=2.53, node=1, lasts_s=1.0),
            Fault("supervisor_node_freezes", after="AskUnusable", nth=2, lasts_s=12.0),
            Fault("runner_broken", after="AgentsEnded"),
            Fault("time_warned", at_s=0.3, after="StoodStill"),
        ),
    ),
    "a cancel stands before the requeue of a lost batch script": Schedule(
        Setup(seed=2297189, boosters=2, booster_nodes=2),
        (Fault("batch_script_killed", at_s=11.38), Fault("cancel", at_s=0.1, after="Restored", nth=3, flag=1)),
    ),
    "nothing starts while the job closes": Schedule(
        Setup(seed=2379420, limit_s=720.0, is_slow=True), (Fault("folder_hangs", at_s=1.0, lasts_s=700.0),)
    ),
    "a node that is no member any more is a change of the nodes": Schedule(
        Setup(seed=2973211, spares=0, boosters=2),
        (Fault("slurm_silent", after="Committed", lasts_s=30.0), Fault("runner_killed", at_s=51.98, node=5)),
    ),
    "a start that its time limit ended is judged by its own checkpoints": Schedule(
        Setup(
            seed=12037904,
            has_checkpoint=False,
            names_own=True,
            chunks=12,
            chunk_s=60.0,
            limit_s=360.0,
            max_without_progress=1,
        )
    ),
    "a scheduler that is silent costs no attempt": Schedule(
        Setup(seed=10021457, spares=2, max_without_progress=2),
        (Fault("slurm_silent", at_s=0.6, after="UnusableAnswered", lasts_s=30.0),),
    ),
    "a supervisor that is cut off declares no hang": Schedule(
        Setup(seed=30008084),
        (
            Fault("workers_pause", at_s=30.0, lasts_s=400.0),
            Fault("node_cut", after="judging", lasts_s=30.0, flag=2),
        ),
    ),
    "a commit shows that the workers do not hang": Schedule(
        Setup(seed=30008084),
        (Fault("workers_pause", at_s=30.0, lasts_s=400.0), Fault("node_cut", after="judging", flag=2)),
    ),
    "a booster preempted before the scheduler has answered leaves": Schedule(
        Setup(seed=30060136, boosters=2, settle_s=0.5),
        (Fault("booster_preempted", at_s=1.0, after="NodeJoined", nth=4), Fault("sbatch_late", lasts_s=150.0)),
    ),
    "a job whose training is done ends after a take-over": Schedule(
        Setup(seed=30094712, nodes=1, least=1, chunks=5, max_without_progress=1),
        (Fault("worker_fails", after="AwaitReturn"), Fault("supervisor_killed", at_s=0.6, after="WorkersKilled")),
    ),
    "a loss of agents that was heard of before they were replaced is not that of the new ones": Schedule(
        Setup(seed=30178780, spares=0, chunks=12, chunk_s=5.0, shared_every=1, reports=1, boosters=2, settle_s=0.5),
        (
            Fault("supervisor_killed", at_s=11.83),
            Fault("preempted", at_s=41.57),
            Fault("scale", at_s=9.92, node=6),
            Fault("booster_preempted", at_s=2.0, after="EventsWritten", nth=4, flag=1),
            Fault("booster_preempted", at_s=3.0, after="StartAgents", nth=2),
            Fault("supervisor_killed", at_s=6.24),
            Fault("supervisor_killed", at_s=21.24),
            Fault("supervisor_killed", at_s=36.24),
        ),
    ),
    "a successor knows which boosters in the queue were given up": Schedule(
        Setup(seed=30223623, boosters=3),
        (
            Fault("supervisor_killed", at_s=5.57),
            Fault("scale", after="AllocationAsked", nth=2),
            Fault("scale", after="AllocationAsked", nth=3, node=2),
            Fault("scale", after="AllocationAsked", nth=4, node=4),
        ),
    ),
    "a node that comes back in a later attempt is settled anew before the job grows": Schedule(
        Setup(seed=44007137, spares=0, boosters=1),
        (Fault("worker_fails", at_s=12.92), Fault("links_break", at_s=0.02, after="starting", nth=2)),
    ),
    "a job whose training was done at step 40 is told as done at the step committed last": Schedule(
        Setup(seed=7104511),
        (
            Fault("supervisor_killed", at_s=0.3, after="ProbeFolder", nth=2),
            Fault("slurmd_dies", after="StartAgents", nth=2, node=5),
            Fault("agent_dies", at_s=30.0),
        ),
    ),
    "a wait for further losses that a SIGTERM interrupts sets no timer again and again": Schedule(
        Setup(seed=40356874),
        (
            Fault("links_break", at_s=3.0),
            Fault("slurm_silent", after="WorkersStarted", lasts_s=3.0),
            Fault("preempted", after="NodeLost", nth=2),
        ),
    ),
    "nodes lost together are awaited before others begin without their step": Schedule(
        Setup(seed=40392122, nodes=4, spares=2, chunk_s=60.0),
        (Fault("links_break", after="Committed", nth=4), Fault("batch_script_killed", at_s=155.56)),
    ),
    "nodes that are about to be taken back are awaited if several hold a step": Schedule(
        Setup(
            seed=40496926,
            nodes=4,
            least=4,
            chunk_s=60.0,
            reports=9,
            boosters=3,
            skips=True,
            settle_s=3.0,
            snooze_s=15.0,
        ),
        (Fault("links_break", after="TimerFired", nth=3), Fault("booster_preempted", after="WorkersEnded", nth=3)),
    ),
    "a supervisor that stood still reads what has come before it judges nodes": Schedule(
        Setup(seed=40288176, nodes=3, names_own=True, is_local=True, chunks=3, chunk_s=60.0, reports=1),
        (Fault("node_freezes", after="WorkersKilled", lasts_s=9.0),),
    ),
    "nothing is said of the Python of nodes that have not reported yet": Schedule(
        Setup(seed=50075384, nodes=3, spares=0, least=3),
        (
            Fault("runner_killed", at_s=1.0),
            Fault("runner_broken", at_s=0.3, after="NodeJoined", nth=5, flag=1),
            Fault("node_cut", after="Settle", nth=2, lasts_s=3.0),
        ),
    ),
    "the timer for lost nodes ends where they come back while another node is awaited": Schedule(
        Setup(seed=97017876, nodes=3, least=3),
        (Fault("links_break", at_s=6.51, lasts_s=0.0), Fault("supervisor_node_crashes", at_s=2.73, lasts_s=0.0)),
    ),
    "runners have time to come back once most nodes are heard again": Schedule(
        Setup(seed=20039),
        (
            Fault("supervisor_node_freezes", at_s=1.0, after="Settle", lasts_s=3.0),
            Fault("partition", at_s=1.0, after="StartWorkers", nth=2, lasts_s=30.0, flag=1),
        ),
    ),
    "no roll is called at the moment at which most nodes are heard again": Schedule(
        Setup(seed=3448),
        (
            Fault("node_freezes", at_s=3.0, lasts_s=9.0),
            Fault("node_cut", at_s=1.0, after="UnusableAnswered", node=2, lasts_s=30.0),
        ),
    ),
    "a job that is cancelled while it stops is not requeued": Schedule(
        Setup(seed=200524), (Fault("preempted", at_s=1.0), Fault("cancel", at_s=3.0))
    ),
    "a node that is back while the scheduler does not answer keeps its memory": Schedule(
        Setup(seed=202841),
        (Fault("slurm_silent", at_s=1.0, lasts_s=30.0), Fault("link_breaks", at_s=1.0)),
    ),
    "a later run in the folder begins without the failures of the one before": Schedule(
        Setup(seed=300195, max_without_progress=1, runs_again=True), (Fault("worker_fails"),)
    ),
    "a later run in the folder tries the nodes that were out in the one before": Schedule(
        Setup(seed=130016181, max_without_progress=1, runs_again=True), (Fault("slurm_silent", lasts_s=90.0),)
    ),
    "a later run in the folder begins with the size of its job file": Schedule(
        Setup(seed=301018, boosters=2, runs_again=True),
        (
            Fault("cancel", after="WorkersStarted", nth=3),
            Fault("scale", after="AllocationAsked", nth=2, node=2),
        ),
    ),
    "a standstill that a late timer shows a part of counts as a whole": Schedule(
        Setup(seed=140040872, is_local=True),
        (Fault("workers_pause", at_s=30.0, lasts_s=400.0), Fault("supervisor_freezes", after="judging", lasts_s=30.0)),
    ),
    "a job that ends before its resize is on disk is done": Schedule(
        Setup(seed=160056246, nodes=1, least=1, boosters=1),
        (
            Fault("node_crashes", after="Settle", lasts_s=0.0),
            Fault("partition", after="NodeJoined", nth=4, lasts_s=90.0, flag=1),
        ),
    ),
    "a runner that breaks before the scheduler has answered is not used": Schedule(
        Setup(seed=170537790, reports=1, boosters=2),
        (Fault("runner_broken", at_s=10.0, node=3), Fault("sbatch_late", lasts_s=10.0)),
    ),
    "agents that were coming up when most nodes fell silent are started again": Schedule(
        Setup(seed=170627923, nodes=1, least=1, names_own=True, reports=9, boosters=2, booster_nodes=2),
        (
            Fault("booster_preempted", at_s=14.14, node=1, flag=2),
            Fault("booster_preempted", at_s=7.8),
            Fault("node_crashes", after="EndAllocation", lasts_s=1.0),
            Fault("worker_fails", at_s=7.62),
        ),
    ),
    "a booster whose runners are late is not used by the next attempt": Schedule(
        Setup(seed=180090535, extra=2, shared_every=2, reports=9, boosters=3, booster_nodes=2, settle_s=0.5),
        (Fault("folder_hangs", after="Committed", nth=4, node=1, lasts_s=200.0),),
    ),
    "a job that saves rarely is not given up for losses of nodes": Schedule(
        Setup(seed=1, spares=3, chunks=3, chunk_s=800.0, jitter=0.0, hang_timeout_s=0.0),
        tuple(Fault("node_crashes", at_s, node=node, flag=1) for at_s, node in ((400.0, 1), (1000.0, 2), (1500.0, 3))),
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_was_broken_once_is_not_broken_again(name: str) -> None:
    failure = run_one(KEPT[name])
    assert failure is None, explain(failure)
