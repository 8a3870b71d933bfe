"""A job's way from stage to stage: its start, nodes that are lost and come back, a take-over, the end."""

from __future__ import annotations

from typing import Any

import pytest
from core_kit import EPOCH_S, Play, make_job

from launcher.core import commands as do
from launcher.core import decision, inputs
from launcher.core.attempt import FOLDER_TIMEOUT_S, PREDECESSOR_S, RETURN_S
from launcher.core.commands import Order, Purpose
from launcher.core.faults import LOSSES_S
from launcher.core.frozen import replace
from launcher.core.members import Phase
from launcher.core.nodes import MAX_RETURNS
from launcher.core.stages import (
    ALL_NODES_GRACE_S,
    FOLDER_AGAIN_S,
    NODE_START_TIMEOUT_S,
    SCHEDULER_TIMEOUT_S,
    TRAINED_GRACE_S,
)
from launcher.core.state import RestartLimits, Stage, State
from launcher.core.stop_reasons import StopReason
from launcher.core.teardown import KILL_CONFIRM_S, RECONNECT_S
from launcher.core.turn import Turn
from launcher.diagnosis.ras import RasProcess
from launcher.history.status import status_of


def starts(play: Play) -> list[tuple[list[str], str]]:
    return [(event["nodes"], event["rung"]) for event in play.events("attempt_start")]


def names(play: Play) -> list[str]:
    return [event["event"] for event in play.events()]


# The start.


def test_a_job_without_faults_starts_trains_and_is_done() -> None:
    play = Play(make_job())
    play.run()
    play.end_well(step=7)
    assert play.end == do.EndJob(outcome="done", reason="", step=7)
    assert names(play) == [
        "job_start", "node_ready", "node_ready", "attempt_start", "workers_started", "attempt_end",
    ]  # fmt: skip


def test_the_end_is_the_last_command() -> None:
    for play in (Play(make_job()), Play(make_job(has_checkpoint=True))):
        play.run()
        play.end_well(step=7)
        assert isinstance(play.commands[-1], do.EndJob) and len(play.all(do.EndJob)) == 1
        assert play.state.timer_s is None
        ended = play.state
        assert not play.lose("n1") and play.state is ended, "nothing follows"


def test_no_worker_starts_before_the_attempts_start_is_on_disk() -> None:
    play = Play(make_job(has_checkpoint=True))
    play.silent = {do.Settle}
    play.begin()
    play.come()
    assert names(play)[-1] == "attempt_start"
    play.passes(100.0)
    assert not play.all(do.StartWorkers) and not play.all(do.StartAgents)
    play.give(inputs.EventsWritten())
    assert play.all(do.StartWorkers) == [do.StartWorkers(nodes=("n1", "n2"), attempt=0, has_agents=True)]


def test_an_attempt_whose_node_is_lost_before_its_start_is_on_disk_starts_nothing() -> None:
    play = Play(make_job(3, train=2))
    play.silent = {do.Settle}
    play.begin()
    play.come()
    play.lose("n2")
    play.silent = set()
    play.give(inputs.EventsWritten())
    assert [command.attempt for command in play.all(do.StartWorkers)] == [1]
    assert starts(play) == [(["n1", "n2"], "start"), (["n1", "n3"], "spare")]


def test_a_start_that_cannot_be_written_ends_the_job_when_somebody_asks_or_after_a_while() -> None:
    for request, outcome in ((inputs.CancelAsked(), "cancelled"), (None, "internal")):
        play = Play(make_job())
        play.silent = {do.Settle}
        play.begin()
        play.come()
        if request is not None:
            play.give(request)
        else:
            play.passes(FOLDER_TIMEOUT_S)
        assert play.end is not None and play.end.outcome == outcome and not play.all(do.StartWorkers)


def test_before_the_first_attempt_all_nodes_are_awaited_for_a_moment() -> None:
    play = Play(make_job(3, train=2))
    play.begin()
    play.come("n3", "n1")
    play.passes(ALL_NODES_GRACE_S - 0.1)
    assert play.state.stage is Stage.GATHERING
    play.come("n2")
    assert play.attempt.nodes == ("n1", "n2")
    late = Play(make_job(3, train=2))
    late.begin()
    late.come("n3", "n1")
    late.passes(ALL_NODES_GRACE_S)
    assert late.attempt.nodes == ("n1", "n3")


def test_a_node_that_trained_before_is_awaited_longer_for_the_steps_that_it_holds() -> None:
    past = [
        {"event": "job_start"},
        {"event": "attempt_start", "attempt": 0, "nodes": ["n1", "n2"], "rung": "start"},
        {"event": "attempt_end", "attempt": 0, "outcome": "stopped"},
    ]
    for waits_s, has_checkpoint, nodes in (
        (ALL_NODES_GRACE_S, True, None),
        (TRAINED_GRACE_S, True, ("n1", "n3")),
        (ALL_NODES_GRACE_S, False, ("n1", "n3")),
    ):
        play = Play(make_job(3, train=2, has_checkpoint=has_checkpoint), past)
        play.begin()
        play.come("n3", "n1")
        play.passes(waits_s)
        if nodes is None:
            assert play.state.stage is Stage.GATHERING
            play.come("n2")
        assert play.attempt.nodes == (nodes or ("n1", "n2"))


def test_too_few_runners_in_time_hand_the_job_back() -> None:
    play = Play(make_job(2))
    play.begin()
    play.come("n1")
    play.passes(NODE_START_TIMEOUT_S)
    assert play.out == {"n2": "its runner did not report within 120 s; see log/runner-n2.log"}
    (fault,) = play.events("fault")
    assert fault["kind"] == "start_timeout" and fault["reason"].startswith("2 nodes, 2 needed, out of use: n2 (its")
    assert play.end is not None and play.end.outcome == "stopped" and play.all(do.Requeue)[0].exclude == ("n2",)


def test_a_node_that_cannot_train_is_out_and_its_fault_says_why() -> None:
    play = Play(make_job(3, train=2))
    play.begin()
    play.give(inputs.NodeJoined(node="n1", problem="GPU 3 is missing"))
    play.come("n2", "n3")
    (fault,) = play.events("fault")
    assert (fault["kind"], fault["node"]) == ("preflight", "n1") and play.out == {"n1": "GPU 3 is missing"}
    assert names(play).index("fault") < names(play).index("node_out")
    assert play.attempt.nodes == ("n2", "n3") and play.state.history.gains.fruitless == 0


def test_a_node_that_is_lost_while_a_writable_folder_is_awaited_is_not_chosen() -> None:
    """Nothing is awaited without reading what comes in."""
    play = Play(make_job(4, train=2))
    play.run()
    play.silent = {do.ProbeFolder}
    play.fail("n1")
    assert play.state.stage is Stage.PROBING
    play.lose("n2", "n3")
    play.silent = set()
    play.give(inputs.FolderProbed())
    assert play.attempt.nodes == ("n1", "n4")


def test_a_node_that_is_lost_while_the_scheduler_is_silent_is_not_chosen() -> None:
    play = Play(make_job(4, train=2, has_checkpoint=True))
    play.begin()
    play.come()
    play.scheduler_error = "no answer"
    play.give(inputs.AgentsEnded(attempt=0, generation=0, reason="no controller"))
    assert play.state.stage is Stage.SCHEDULER
    play.passes(60.0)
    play.lose("n1", "n3")
    play.scheduler_error = None
    play.passes(10.0)
    assert play.attempt.nodes == ("n4", "n2")


def test_a_scheduler_that_stays_silent_ends_the_job() -> None:
    play = Play(make_job(has_checkpoint=True))
    play.begin()
    play.come()
    play.scheduler_error = "no answer"
    play.give(inputs.AgentsEnded(attempt=0, generation=0, reason="no controller"))
    play.passes(SCHEDULER_TIMEOUT_S + 10.0)
    assert play.end is not None and play.end.outcome == "internal"
    assert "the scheduler did not answer for 1800 s: no answer; submit the job again" in play.end.reason


def test_a_folder_that_cannot_be_written_is_said_once_and_waited_for() -> None:
    play = Play(make_job())
    play.folder_error = "log: No space left on device"
    play.begin()
    play.come()
    play.passes(100.0)
    assert len(play.events("problem")) == 1 and not play.events("attempt_start")
    play.folder_error = None
    play.passes(FOLDER_AGAIN_S)
    assert play.events("attempt_start")


def test_a_folder_that_stays_unwritable_ends_the_job() -> None:
    play = Play(make_job())
    play.folder_error = "log: No space left on device"
    play.begin()
    play.passes(2 * FOLDER_TIMEOUT_S + 10.0)
    assert play.end is not None and play.end.outcome == "internal"
    assert "could not be written for 600 s (log: No space left on device)" in play.end.reason


def test_a_folder_that_is_removed_ends_the_job_at_once_without_a_requeue() -> None:
    play = Play(make_job())
    play.run()
    play.give(inputs.FolderRemoved(reason="removed while the job ran"))
    assert play.end is not None and (play.end.outcome, play.end.reason) == ("internal", "removed while the job ran")


# Faults.


def test_a_fault_is_recorded_before_what_follows_of_it() -> None:
    play = Play(make_job(3, train=2))
    play.run()
    play.lose("n2")
    told = names(play)[names(play).index("fault") :]
    assert told == ["fault", "node_out", "attempt_end", "attempt_start"]
    assert starts(play) == [(["n1", "n2"], "start"), (["n1", "n3"], "spare")]
    times_s = [event["time"] for event in play.events()]
    assert times_s == sorted(times_s)


def test_the_cause_of_a_failure_is_awaited_a_moment_and_the_lost_node_is_it() -> None:
    play = Play(make_job(3, train=2))
    play.run()
    failure = inputs.WorkerFailure(node="n1", rank=0, exit_code=1, time_s=EPOCH_S, error="DistBackendError: NCCL")
    play.give(inputs.WorkersEnded(node="n1", attempt=0, ok=False, failures=(failure,)))
    play.passes(0.1)
    play.lose("n2")
    assert [(event["kind"], event["node"]) for event in play.events("fault")] == [("node_lost", "n2")]


def test_without_another_cause_the_first_failure_is_it() -> None:
    play = Play(make_job())
    play.run()
    for rank, node in enumerate(("n2", "n1")):
        failure = inputs.WorkerFailure(node=node, rank=rank, exit_code=1, time_s=EPOCH_S - rank, error="ValueError: 7")
        play.give(inputs.WorkersEnded(node=node, attempt=0, ok=False, failures=(failure,)))
    (fault,) = play.events("fault")
    assert (fault["kind"], fault["node"], fault["rank"]) == ("user_error", "n1", 1)


def test_a_spare_takes_the_place_of_a_node_on_which_attempts_fail() -> None:
    play = Play(make_job(3, train=2))
    play.run()
    play.fail("n2")
    play.train()
    play.fail("n2")
    play.passes(2.0)
    play.train()
    play.end_well(step=7)
    assert starts(play) == [(["n1", "n2"], "start"), (["n1", "n2"], "workers"), (["n1", "n3"], "spare")]
    assert [event["node"] for event in play.events("problem")] == ["n2"]
    assert play.end is not None and play.end.outcome == "done" and not play.out


def test_a_restart_that_follows_others_without_a_gain_waits() -> None:
    play = Play(make_job(limits=RestartLimits(max_without_progress=9)))
    play.run()
    play.fail("n1")
    play.train()
    play.fail("n2")
    (backoff,) = play.events("backoff")
    assert backoff["seconds"] == 2.0 and len(starts(play)) == 2
    play.passes(2.0)
    assert len(starts(play)) == 3


def test_a_node_that_does_not_confirm_the_end_of_its_workers_is_out() -> None:
    play = Play(make_job(3, train=2))
    play.run()
    play.dead = {"n2"}
    play.fail("n1")
    assert len(starts(play)) == 1
    play.passes(KILL_CONFIRM_S)
    assert play.out == {"n2": "did not confirm the end of its workers within 8 s"}
    assert starts(play)[1:] == [(["n1", "n3"], "spare")]


def test_after_a_standstill_a_node_has_time_to_connect_again_before_its_silence_counts() -> None:
    play = Play(make_job(3, train=2))
    play.run()
    play.now_s += 2.0
    play.give(inputs.StoodStill(seconds=2.0))
    play.dead = {"n2"}
    play.fail("n1")
    play.passes(RECONNECT_S - 0.1)
    assert not play.out and len(starts(play)) == 1
    play.passes(0.1)
    assert play.out.keys() == {"n2"} and len(starts(play)) == 2


def test_processes_that_do_not_end_cost_their_node() -> None:
    play = Play(make_job(3, train=2))
    play.run()
    play.silent = {do.Send}
    play.fail("n1")
    play.give(inputs.WorkersKilled(node="n1", attempt=0), inputs.WorkersKilled(node="n2", attempt=0, left=(17,)))
    assert play.out == {"n2": "processes [17] do not end after SIGKILL; reboot the node"}
    assert starts(play)[1:] == [(["n1", "n3"], "spare")]


@pytest.mark.parametrize("nodes", [2, 3], ids=["all have reported", "one has not reported yet"])
def test_nodes_on_which_no_python_loads_end_the_job_where_none_was_ever_warm(nodes: int) -> None:
    play = Play(make_job(nodes, train=2))
    play.begin()
    play.give(inputs.NodeJoined(node="n1"), inputs.NodeJoined(node="n2"))
    play.give(*(inputs.NodeBroken(node=node, reason="no torch", is_environment=True) for node in ("n1", "n2")))
    assert play.end is not None and play.end.outcome == "user_error"
    assert play.end.reason.startswith("on none of the job's nodes its Python loads what it needs: ")


# Hangs.


def hangs(play: Play) -> None:
    """Ten minutes pass without a step; every rank is asked where it is."""
    play.run()
    play.give(inputs.Progress(attempt=0, step=7, slowest=7, is_active=True))
    play.passes(10.0)
    assert len(play.orders(Order.DUMP)) == 1 and not play.events("fault")


def stacks(node: str, *frames: str, ras: tuple[RasProcess, ...] = ()) -> inputs.StacksTaken:
    number = int(node[1:])
    taken = inputs.RankFacts(rank=number - 1, node=node, state="S", boundary=7, frames=frames, pid=70 + number)
    return inputs.StacksTaken(node=node, attempt=0, stacks=(taken,), ras=ras)


def test_workers_that_hang_are_restarted_and_the_rank_that_others_wait_for_is_named() -> None:
    play = Play(make_job(has_checkpoint=True, limits=RestartLimits(hang_timeout_s=10.0)))
    hangs(play)
    play.give(stacks("n1", "wait (/lib/torch/distributed/c10d.py:9)"))
    play.give(stacks("n2", "load_batch (/job/train.py:12)"))
    (fault,) = play.events("fault")
    assert (fault["kind"], fault["node"], fault["rank"], fault["detect"]) == ("hang", "n2", 1, 10.0)
    assert fault["proof"].startswith("rank 1 on n2: ") and fault["proof"] in fault["reason"]
    assert "not in the collective that others wait in: it is in its own code, in load_batch" in fault["reason"]
    assert fault["reason"].endswith("stacks in log/attempt-0/rank-*.stack")


def test_what_nccl_says_of_a_rank_is_in_the_faults_proof() -> None:
    play = Play(make_job(has_checkpoint=True, limits=RestartLimits(hang_timeout_s=10.0)))
    hangs(play)
    said = RasProcess(pid=72, node="10.0.0.2", says="RAS gets no data from it")
    play.give(stacks("n1", "wait (/lib/torch/distributed/c10d.py:9)", ras=(said,)))
    play.give(stacks("n2", "load_batch (/job/train.py:12)"))
    assert play.events("fault")[0]["proof"].endswith("; NCCL says of rank 1: RAS gets no data from it")


def test_a_node_that_does_not_answer_does_not_hold_up_the_judgement() -> None:
    play = Play(make_job(has_checkpoint=True, limits=RestartLimits(hang_timeout_s=10.0)))
    hangs(play)
    play.give(stacks("n1", "wait (/lib/torch/distributed/c10d.py:9)"))
    play.passes(12.0)
    assert "no stacks came from n2" in play.events("fault")[0]["reason"]


def test_workers_that_go_on_meanwhile_do_not_hang() -> None:
    play = Play(make_job(has_checkpoint=True, limits=RestartLimits(hang_timeout_s=10.0)))
    hangs(play)
    play.give(inputs.Progress(attempt=0, step=8, slowest=8, is_active=True))
    play.give(stacks("n1", "step (/job/t.py:1)"), stacks("n2", "step (/job/t.py:1)"))
    (problem,) = play.events("problem")
    assert problem["what"].endswith("; then it went on") and not play.events("fault")
    play.passes(10.0)
    assert len(play.orders(Order.DUMP)) == 2


def test_a_node_that_is_lost_while_stacks_are_taken_is_the_cause() -> None:
    play = Play(make_job(3, train=2, has_checkpoint=True, limits=RestartLimits(hang_timeout_s=10.0)))
    hangs(play)
    play.lose("n2")
    assert [(event["kind"], event["node"]) for event in play.events("fault")] == [("node_lost", "n2")]


def test_a_supervisor_that_stood_still_blames_nobody() -> None:
    play = Play(make_job(has_checkpoint=True, limits=RestartLimits(hang_timeout_s=10.0)))
    play.run()
    play.give(inputs.Progress(attempt=0, step=7, slowest=7, is_active=True))
    play.now_s += 3600.0
    play.give(inputs.StoodStill(seconds=3600.0))
    assert not play.orders(Order.DUMP)
    play.passes(10.0)  # a second of them is for the messages of that time
    assert not play.orders(Order.DUMP)
    play.passes(1.0)
    assert play.orders(Order.DUMP)


# Nodes that are lost and come back.


def test_runners_that_are_lost_all_at_once_are_started_again_and_no_node_is_out() -> None:
    play = Play(make_job())
    play.run()
    play.dead = {"n1", "n2"}
    play.lose("n1", "n2")
    play.dead = set()
    assert [command.nodes for command in play.all(do.StartRunners)] == [("n1", "n2")] * 2
    assert [command.purpose for command in play.all(do.AskUnusable)] == [Purpose.START, Purpose.AGAIN]
    play.come()
    play.train()
    play.end_well(step=7)
    assert starts(play) == [(["n1", "n2"], "start"), (["n1", "n2"], "workers")]
    assert status_of(play.events()).out == {} == dict(play.state.history.out)
    assert play.end is not None and play.end.outcome == "done"


def test_runners_that_are_lost_one_shortly_after_the_other_are_started_again() -> None:
    play = Play(make_job(4, train=3))
    play.run()
    for node in ("n2", "n1", "n3"):
        play.lose(node)
        play.passes(LOSSES_S / 4)
    assert play.end is None and len(play.all(do.StartRunners)) == 1
    play.lose("n4")
    assert [command.nodes for command in play.all(do.StartRunners)] == [("n1", "n2", "n3", "n4")] * 2


def test_where_a_node_stays_after_too_many_losses_the_job_is_handed_back() -> None:
    play = Play(make_job(3, train=2, can_requeue=True))
    play.run()
    play.lose("n2", "n1")
    play.passes(LOSSES_S)
    assert len(play.all(do.StartRunners)) == 1
    assert play.all(do.AskWhyTerminated)


def test_of_runners_that_are_started_again_those_where_the_newest_step_is_are_awaited() -> None:
    play = Play(make_job(3, train=2, has_checkpoint=True))
    play.run()
    play.commit(7)
    play.dead = {"n1", "n2"}
    play.lose("n3", "n1", "n2")
    play.dead = set()
    play.come("n1", "n3")
    play.passes(TRAINED_GRACE_S - 0.1)
    assert len(starts(play)) == 1
    play.come("n2")
    assert starts(play)[1:] == [(["n1", "n2"], "workers")]


def test_a_node_whose_connection_broke_is_a_spare_again_when_its_runner_is_back() -> None:
    play = Play(make_job(3, train=2))
    play.run()
    play.lose("n2")
    play.train()
    play.come("n2", attempt=0)
    assert play.orders(Order.KILL)[-1] == do.Send(nodes=("n2",), order=Order.KILL, attempt=0)
    assert play.in_phase(Phase.READY) == ["n2"] and not play.out
    play.lose("n3")
    play.passes(2.0)
    assert [nodes for nodes, _ in starts(play)] == [["n1", "n2"], ["n1", "n3"], ["n1", "n2"]]
    assert play.out.keys() == {"n3"}


@pytest.mark.parametrize(
    "report",
    [
        inputs.WorkersKilled(node="n2", attempt=0, left=(17,)),
        inputs.NodeBroken(node="n2", reason="cannot start workers", is_environment=False),
    ],
)
def test_a_node_that_is_back_and_cannot_train_is_out_for_good(report: inputs.Input) -> None:
    """It is no spare before nothing of its attempt is left."""
    play = Play(make_job(3, train=2))
    play.run()
    play.lose("n2")
    play.train()
    play.silent = {do.Send}
    play.come("n2", attempt=0)
    assert play.in_phase(Phase.RETURNING) == ["n2"] and play.out.keys() == {"n2"}
    play.give(report)
    assert play.in_phase(Phase.OUT) == ["n2"] and not play.state.members["n2"].is_lost


@pytest.mark.parametrize(("unusable", "error"), [({"n2": "drained"}, None), ({}, "no answer")])
def test_a_node_that_is_back_and_can_be_given_no_process_stays_out(unusable: dict[str, str], error: str | None) -> None:
    play = Play(make_job(3, train=2))
    play.run()
    play.lose("n2")
    play.unusable, play.scheduler_error = unusable, error
    play.come("n2", attempt=0)
    is_known = error is None
    assert play.in_phase(Phase.OUT) == ["n2"] and play.all(do.Dismiss) == [do.Dismiss(node="n2", forget=is_known)]
    assert not play.events("node_back")


def test_a_node_that_is_back_is_judged_by_the_scheduler_though_its_workers_have_ended() -> None:
    """The order to end them may be the attempt's own."""
    play = Play(make_job(3, train=2))
    play.run()
    play.silent = {do.Send, do.AskUnusable}
    play.lose("n2")
    play.come("n2", attempt=0)
    play.give(inputs.WorkersKilled(node="n2", attempt=0))
    assert play.in_phase(Phase.RETURNING) == ["n2"], "it may be drained"
    play.give(inputs.UnusableAnswered(asked=("n2",), purpose=Purpose.RETURN, unusable={"n2": "drained"}))
    assert play.in_phase(Phase.OUT) == ["n2"] and not play.events("node_back")


def test_a_node_that_is_lost_again_while_it_comes_back_is_out_and_may_come_again() -> None:
    play = Play(make_job(3, train=2))
    play.run()
    play.lose("n2")
    play.silent = {do.AskUnusable}
    play.come("n2")
    play.lose("n2")
    assert play.in_phase(Phase.OUT) == ["n2"] and play.state.members["n2"].is_lost
    play.silent = set()
    play.come("n2")
    assert play.in_phase(Phase.READY) == ["n2"] and len(play.events("node_out", "node_back")) == 2


def test_a_node_that_is_lost_too_often_stays_out() -> None:
    play = Play(make_job(3, train=2))
    play.run()
    for _ in range(MAX_RETURNS + 1):
        play.lose("n3")
        play.come("n3")
    assert play.in_phase(Phase.OUT) == ["n3"] and len(play.events("node_back")) == MAX_RETURNS
    assert play.all(do.Dismiss) == [do.Dismiss(node="n3", forget=True)]


# A take-over.

FAILED = [
    {"event": "fault", "attempt": 0, "kind": "process_exit"},
    {"event": "attempt_end", "attempt": 0, "outcome": "fault"},
]


def taken_over(*past: dict[str, Any], nodes: int = 2, back: tuple[str, ...] = (), **job: Any) -> Play:
    """A job whose supervisor is lost while its attempt runs; these nodes' runners come to the next one."""
    given = make_job(nodes, train=2, is_take_over=True, **job)
    begun = [
        {"event": "job_start"},
        *({"event": "node_ready", "node": node, "warm": True} for node in given.nodes),
        {"event": "attempt_start", "attempt": 0, "nodes": ["n1", "n2"], "spares": [], "rung": "start"},
        {"event": "workers_started", "attempt": 0, "seconds": 1.0},
    ]
    play = Play(given, [*begun, *past])
    play.begin()
    if back:
        play.come(*back, attempt=0)
    return play


def test_an_attempt_goes_on_where_all_its_runners_come_back() -> None:
    play = taken_over(back=("n1", "n2"))
    assert play.all(do.AwaitReturn) == [do.AwaitReturn(nodes=("n1", "n2"))]
    assert not play.events("fault", "attempt_start") and not play.all(do.StartRunners)
    play.end_well(step=7)
    assert play.end is not None and play.end.outcome == "done"


def test_agents_that_are_lost_after_a_take_over_as_training_ends_are_not_waited_for() -> None:
    """No launcher reports the end of agents that another supervisor started."""
    play = taken_over(back=("n1", "n2"), has_checkpoint=True)
    play.silent = {do.Send}
    play.end_well(step=7)
    lost = inputs.AgentLost(node="n1", attempt=0, generation=0, reason="gone")
    play.give(lost)
    assert not play.orders(Order.KILL)
    play.give(inputs.AgentEnded(node="n2", attempt=0))
    assert play.orders(Order.KILL)


def test_workers_that_a_supervisor_before_asked_to_stop_are_not_done() -> None:
    """Its order reached them after the successor had read the record."""
    play = taken_over(back=("n1", "n2"))
    nodes = ("n1", "n2")
    play.give(*(inputs.WorkersEnded(node=node, attempt=0, ok=True, step=7, is_stopped=True) for node in nodes))
    assert play.end is None and [nodes for nodes, _ in starts(play)] == [["n1", "n2"]]
    play.train()
    play.end_well(step=40)
    assert play.end is not None and play.end.outcome == "done"


@pytest.mark.parametrize("past", [FAILED, []], ids=["between attempts", "in an attempt"])
def test_where_no_runner_is_left_nothing_is_held_against_the_nodes(past: list[dict[str, Any]]) -> None:
    """Slurm has ended the runners, or the supervisor before has let them go: the job goes back to Slurm."""
    play = taken_over(*past)
    play.passes(RETURN_S)
    assert play.end is not None and play.end.outcome == "stopped"
    assert not play.events("node_out") and play.all(do.Requeue) == [do.Requeue(exclude=())]


@pytest.mark.parametrize("past", [FAILED, []], ids=["between attempts", "in an attempt"])
def test_where_a_runner_is_there_a_node_whose_own_does_not_come_is_out_for_good(past: list[dict[str, Any]]) -> None:
    play = taken_over(*past, back=("n1",))
    play.passes(RETURN_S)
    assert [event["node"] for event in play.events("node_out")] == ["n2"]
    assert play.end is not None and play.end.outcome == "stopped"
    assert play.all(do.Requeue) == [do.Requeue(exclude=("n2",))]


@pytest.mark.parametrize(
    ("reason", "outcome"), [("time_limit", "stopped"), ("halt", "halted"), ("cancel", "cancelled")]
)
def test_what_was_asked_of_the_supervisor_before_holds_after_a_take_over(reason: str, outcome: str) -> None:
    """Its ranks may have stopped for that, with exit code 0: the job is not done."""
    play = taken_over({"event": "stop_requested", "reason": reason}, back=("n1", "n2"))
    for node in ("n1", "n2"):
        play.give(inputs.WorkersEnded(node=node, attempt=0, ok=True, step=2))
    assert play.end is not None and play.end.outcome == outcome


def test_while_slurm_ends_the_job_a_runner_that_does_not_come_says_nothing_of_its_node() -> None:
    play = taken_over()
    play.give(inputs.NodeJoined(node="n1", attempt=0), inputs.Terminated(node="n1"))
    play.passes(RETURN_S)
    assert [event["reason"] for event in play.events("stop_requested")] == ["requeue"]
    assert play.end is not None and play.end.outcome == "stopped" and not play.events("node_out")


def test_of_a_silent_predecessor_nothing_is_awaited() -> None:
    play = taken_over(nodes=3, back=("n2", "n3"), predecessor="n1", is_predecessor_silent=True)
    (fault,) = play.events("fault")
    assert (fault["node"], fault["reason"]) == ("n1", "lost with the supervisor it ran")
    assert starts(play) == [(["n3", "n2"], "spare")]


def test_the_predecessors_node_gets_little_time_once_the_others_are_there() -> None:
    play = taken_over(nodes=3, back=("n2", "n3"), predecessor="n1")
    play.passes(PREDECESSOR_S - 0.1)
    assert not play.events("fault")
    play.passes(0.1)
    assert [event["node"] for event in play.events("fault")] == ["n1"]


@pytest.mark.parametrize("past", [FAILED, []], ids=["between attempts", "in an attempt"])
def test_while_most_nodes_are_silent_and_for_a_while_after_nobody_is_given_up(past: list[dict[str, Any]]) -> None:
    play = taken_over(*past, nodes=3, back=("n1",))
    play.give(inputs.IsolationChanged(is_isolated=True))
    play.passes(10 * RETURN_S)
    play.give(inputs.IsolationChanged(is_isolated=False))
    play.passes(RETURN_S - 0.1)
    assert not play.events("fault", "node_out") and play.all(do.LetGo)
    play.come("n3", attempt=0)
    play.passes(RETURN_S - 0.1)
    assert not play.events("fault", "node_out"), "others may be on their way"
    play.passes(0.1)
    assert [event["node"] for event in play.events("node_out")] == ["n2"]


def test_the_predecessors_node_has_its_time_after_most_nodes_were_silent() -> None:
    play = taken_over(nodes=3, back=("n2", "n3"), predecessor="n1")
    play.give(inputs.IsolationChanged(is_isolated=True))
    play.passes(RETURN_S)
    play.give(inputs.IsolationChanged(is_isolated=False))
    play.passes(PREDECESSOR_S - 0.1)
    assert not play.events("fault")
    play.passes(0.1)
    assert [event["node"] for event in play.events("fault")] == ["n1"]


def test_a_runner_that_has_ended_its_workers_meanwhile_ends_the_attempt() -> None:
    play = taken_over(back=("n1",))
    play.come("n2")
    (fault,) = play.events("fault")
    assert (fault["kind"], fault["node"]) == ("process_exit", "n2")
    assert fault["reason"] == "n2: its workers were ended: no supervisor was heard in time"
    assert starts(play) == [(["n1", "n2"], "workers")]


# The end.


def test_a_job_that_has_too_few_nodes_is_handed_back() -> None:
    play = Play(make_job())
    play.why_terminated = "preempted"  # of a job that runs
    play.run()
    play.lose("n2")
    play.passes(LOSSES_S)
    assert play.end is not None and play.end.outcome == "stopped"
    assert play.all(do.Requeue) == [do.Requeue(exclude=("n2",))]
    assert play.events("stop_requested")[0]["detail"].startswith("no spare node is left: ")


@pytest.mark.parametrize("has_sigterm", [False, True], ids=["Slurm knows", "the SIGTERM comes"])
def test_one_that_is_being_cancelled_ends(has_sigterm: bool) -> None:
    play = Play(make_job())
    play.why_terminated = "cancel"
    play.run()
    if has_sigterm:
        play.silent = {do.AskWhyTerminated}
        play.give(inputs.Terminated())
    play.lose("n2")
    play.passes(LOSSES_S)
    if has_sigterm:
        assert play.end is None
        play.give(inputs.TerminationExplained(why=StopReason.CANCEL))
    assert play.end is not None and play.end.outcome == "cancelled" and not play.all(do.Requeue)
    assert "requeue" not in {event["reason"] for event in play.events("stop_requested")}


def test_where_nothing_can_be_requeued_too_few_nodes_are_the_outcome() -> None:
    play = Play(make_job(can_requeue=False))
    play.run()
    play.lose("n2")
    play.passes(LOSSES_S)
    assert play.end is not None and play.end.outcome == "too_few_nodes" and not play.all(do.Requeue)


def test_a_requeue_that_is_refused_is_said_with_its_reason() -> None:
    play = Play(make_job())
    play.requeue_error = "invalid job id"
    play.run()
    play.lose("n2")
    play.passes(LOSSES_S)
    assert play.end is not None and play.end.outcome == "too_few_nodes"
    assert play.end.reason.endswith("; not requeued: invalid job id; submit the job again")


@pytest.mark.parametrize("stage", ["asking", "gathering", "training", "backing off", "scheduler"])
def test_cancel_always_wins(stage: str) -> None:
    play = Play(make_job(has_checkpoint=stage == "scheduler", limits=RestartLimits(max_without_progress=9)))
    if stage == "asking":
        play.silent = {do.AskUnusable}
    play.begin()
    if stage in ("training", "backing off", "scheduler"):
        play.come()
    if stage == "backing off":
        for _ in range(2):
            play.train()
            play.fail("n1")
        assert play.state.stage is Stage.BACKING_OFF
    elif stage == "scheduler":
        play.scheduler_error = "no answer"
        play.give(inputs.AgentsEnded(attempt=0, generation=0, reason="no controller"))
        assert play.state.stage is Stage.SCHEDULER
    play.give(inputs.CancelAsked())
    assert play.end is not None and play.end.outcome == "cancelled"


def test_newer_own_checkpoints_are_progress_and_those_of_a_run_before_are_not() -> None:
    play = Play(make_job(limits=RestartLimits(max_without_progress=9)))
    play.run()
    old = inputs.OwnCheckpointsSeen(file="out/7.pt", modified_s=play.now_s - 100.0)
    play.give(old, old)
    play.fail("n1")
    assert play.state.history.gains.fruitless == 1
    play.give(inputs.OwnCheckpointsSeen(file="out/8.pt", modified_s=play.now_s), old)
    play.fail("n1")
    assert [event["file"] for event in play.events("own_checkpoint")] == ["out/7.pt", "out/8.pt"], "each once"
    assert play.state.history.gains.fruitless == 0


def test_an_own_checkpoint_that_is_found_after_its_attempt_counts_for_the_next() -> None:
    play = Play(make_job(limits=RestartLimits(max_without_progress=9)))
    play.run()
    play.give(inputs.OwnCheckpointsSeen(file="", modified_s=0.0))
    found = []
    for _ in range(2):
        written_s = play.now_s
        play.fail("n1")
        play.give(inputs.OwnCheckpointsSeen(file="out/8.pt", modified_s=written_s))
        found.append(play.state.history.gains.fruitless)
    assert found == [1, 0]


def test_a_pattern_of_own_checkpoints_that_matches_nothing_is_a_problem_of_the_attempt() -> None:
    play = Play(make_job(limits=RestartLimits(max_without_progress=2)))
    play.run()
    play.give(inputs.OwnCheckpointsSeen(file="", modified_s=0.0))
    play.fail("n1")
    assert "no file was seen that matches the job file's `progress`" in play.events("problem")[0]["what"]
    play.give(inputs.OwnCheckpointsSeen(file="out/8.pt", modified_s=play.now_s))
    play.fail("n1")
    assert len(play.events("problem")) == 1


def test_a_start_that_its_time_limit_ended_is_judged_by_the_files_that_it_wrote() -> None:
    limits = RestartLimits(max_without_progress=1)
    play = Play(make_job(limits=limits))
    play.run()
    play.give(inputs.OwnCheckpointsSeen(file="", modified_s=0.0))
    play.give(inputs.OwnCheckpointsSeen(file="out/8.pt", modified_s=play.now_s))
    play.why_terminated = "time_limit"
    play.give(inputs.Terminated())
    play.end_well()
    assert play.events("own_checkpoint")[-1]["file"] == "out/8.pt" and play.state.history.gains.fruitless == 0
    assert play.end is not None and play.end.outcome == "stopped"


# A defect of the core.


def test_a_decision_without_an_end_ends_the_job_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """A successor would replay the events and meet the same."""
    play = Play(make_job())
    play.run()

    def again(turn: Turn) -> None:
        turn.state = replace(turn.state, step=(turn.state.step or 0) + 1)

    monkeypatch.setitem(decision._STAGES, Stage.ATTEMPT, again)
    play.passes(0.0)
    play.lose("n1")
    assert play.end is not None and play.end.outcome == "internal"
    assert "a defect of Holdfast" in play.end.reason and "attempt 0" in play.end.reason
    (problem,) = play.events("problem")
    assert "stage attempt" in problem["detail"] and "100 passes" in problem["what"]


def test_the_timer_is_the_earliest_time_that_is_waited_for() -> None:
    turn = Turn(State(job=make_job()), 10.0)
    assert not turn.due(None) and turn.next_s is None
    assert turn.due(10.0) and turn.next_s is None
    assert not turn.due(30.0) and not turn.due(20.0) and not turn.due(25.0)
    assert turn.next_s == 20.0
