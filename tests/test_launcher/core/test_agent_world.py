"""When lost checkpoint agents are replaced, what a supervisor that takes over makes of it, and what the user sees."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from core_kit import Play, make_job

from launcher.core import commands as do
from launcher.core import inputs
from launcher.core.agent_world import LAUNCHER_S, LOSS_WINDOW_S, LOSSES_WITHIN_S, PATIENCE_S, RENEW_AFTER_S
from launcher.core.attempt import SECONDARY_CAUSE_WINDOW_S
from launcher.core.commands import Order, Purpose
from launcher.core.state import RestartLimits
from launcher.core.teardown import AGENT_CANCEL_S
from launcher.history.fields import describe
from launcher.history.status import status_of

LOST = {"event": "agents_lost", "attempt": 3, "generation": 0, "time": 10.0}
BACK = {"event": "agents_back", "attempt": 3, "generation": 1, "time": 12.0}


def training(**fields: Any) -> Play:
    """A job with agents that have restored."""
    play = Play(make_job(has_checkpoint=True, limits=RestartLimits(hang_timeout_s=0), **fields))
    play.run()
    return play


def lose_agents(play: Play, *nodes: str) -> None:
    """Nodes report that their agents of the newest generation have gone."""
    number, generation = play.attempt.number, play.state.agents.generation
    for node in nodes or play.attempt.nodes:
        play.give(inputs.AgentLost(node=node, attempt=number, generation=generation, reason="gone"))


def fail(play: Play, error: str) -> None:
    """A worker ends with an exception, the same each time."""
    lines = f'Traceback:\n  File "train.py", line 3\n{error}'
    failure = inputs.WorkerFailure(node="n1", rank=0, exit_code=1, time_s=play.now_s, error=error, traceback=lines)
    play.give(inputs.WorkersEnded(node="n1", attempt=play.attempt.number, ok=False, failures=(failure,)))
    play.passes(SECONDARY_CAUSE_WINDOW_S)


def rejoin(play: Play, generation: int) -> None:
    play.give(inputs.AgentsRejoined(attempt=play.attempt.number, generation=generation, step=20))


def started(play: Play) -> list[int]:
    return [command.generation for command in play.all(do.StartAgents)]


def test_agents_that_are_lost_again_and_again_are_replaced_later_and_then_no_more() -> None:
    play = training()
    waits_s = []
    for generation in range(len(RENEW_AFTER_S)):
        lose_agents(play)
        play.passes(LOSS_WINDOW_S)
        lost_s = play.now_s
        while started(play)[-1] == generation:
            play.passes(0.5)
        waits_s.append(play.now_s - lost_s)
        rejoin(play, generation + 1)
    assert waits_s == [*RENEW_AFTER_S] == sorted(RENEW_AFTER_S) and RENEW_AFTER_S[0] == 0
    lose_agents(play)
    play.passes(LOSSES_WITHIN_S)
    assert started(play) == [0, 1, 2, 3]
    (problem,) = play.events("problem")
    assert "lost again and again: nothing is saved until the next attempt" in problem["what"]
    assert not play.events("fault") and play.attempt.is_running, "training goes on"


def test_losses_long_ago_do_not_count() -> None:
    play = training()
    for generation in range(2 * len(RENEW_AFTER_S)):
        lose_agents(play)
        play.passes(LOSS_WINDOW_S)
        assert started(play)[-1] == generation + 1, "at once"
        rejoin(play, generation + 1)
        play.passes(LOSSES_WITHIN_S)
        play.passes(1.0)


@pytest.mark.parametrize(
    ("history", "generation", "is_lost"),
    [
        ((), 0, False),
        ((LOST,), 1, True),  # the supervisor before us may have started generation 1: ours is the one after
        ((LOST, BACK), 1, False),
        ((LOST, BACK, LOST | {"generation": 1}), 2, True),
        ((LOST | {"attempt": 2},), 0, False),
    ],
)
def test_a_supervisor_that_takes_over_goes_on_with_the_agents_generation(
    history: Iterable[dict[str, Any]], generation: int, is_lost: bool
) -> None:
    ready = [{"event": "node_ready", "node": node} for node in ("n1", "n2")]
    begun = [
        {"event": "attempt_start", "attempt": 3, "nodes": ["n1", "n2"]},
        {"event": "workers_started", "attempt": 3},
        {"event": "restore", "attempt": 3, "step": 7, "tier": "memory"},
    ]
    job = make_job(has_checkpoint=True, is_take_over=True, limits=RestartLimits(hang_timeout_s=0))
    play = Play(job, [{"event": "job_start"}, *ready, *begun, *history])
    play.begin()
    assert play.all(do.AdoptAgents) == [do.AdoptAgents(attempt=3, generation=generation)]
    play.come(attempt=3)
    assert started(play) == ([generation + 1] if is_lost else [])
    lost = [event["generation"] for event in play.events("agents_lost")]
    assert lost == ([generation] if is_lost else []), "for a third one, whose agents are the generation after ours"


def test_a_loss_is_told_once_though_every_node_tells_it_and_that_of_agents_replaced_since_not_at_all() -> None:
    play = training()
    lose_agents(play, "n1", "n2")
    assert not play.events("agents_lost"), "it may be the node"
    play.passes(LOSS_WINDOW_S)
    assert len(play.events("agents_lost")) == 1 and started(play) == [0, 1]
    late = inputs.AgentLost(node="n2", attempt=0, generation=0, reason="gone")
    play.give(late, inputs.AgentsEnded(attempt=0, generation=0))
    play.passes(LOSS_WINDOW_S)
    for _ in range(2):
        rejoin(play, 1)
    told = play.events("agents_lost", "agents_back")
    assert [event["event"] for event in told] == ["agents_lost", "agents_back"] and not play.events("fault")
    assert (told[1]["generation"], told[1]["seconds"]) == (1, LOSS_WINDOW_S)


def test_others_take_the_place_of_what_is_left_of_the_world() -> None:
    play = training()
    lose_agents(play, "n1")
    followed = play.passes(LOSS_WINDOW_S)
    orders = [each for each in followed if isinstance(each, do.KillAgents | do.Send | do.StartAgents)]
    assert orders == [
        do.KillAgents(),
        do.Send(nodes=("n1", "n2"), order=Order.RENEW_AGENT, attempt=0, generation=1),
        do.StartAgents(nodes=("n1", "n2"), attempt=0, generation=1, allocations={"n1": "", "n2": ""}),
    ]


def test_an_agent_that_goes_with_its_node_is_no_loss_of_its_own() -> None:
    play = training()
    lose_agents(play, "n2")
    play.lose("n2")
    play.passes(LOSS_WINDOW_S)
    assert [event["kind"] for event in play.events("fault")] == ["node_lost"] and not play.events("agents_lost")


def test_agents_that_are_lost_before_the_restore_end_the_attempt() -> None:
    play = Play(make_job(has_checkpoint=True))
    play.begin()
    play.come()
    play.give(inputs.AgentLost(node="n2", attempt=0, generation=0, reason="killed"))
    play.passes(LOSS_WINDOW_S)
    (fault,) = play.events("fault")
    assert (fault["kind"], fault["node"]) == ("agent_lost", "n2")
    assert fault["reason"] == "killed (see log/attempt-0/agents.log)"


def test_agents_that_cannot_be_started_end_the_attempt() -> None:
    play = Play(make_job(has_checkpoint=True))
    play.begin()
    play.come()
    play.give(inputs.AgentsEnded(attempt=0, generation=0, reason="mpirun not found"))
    (fault,) = play.events("fault")
    assert (fault["kind"], fault["reason"]) == ("agent_lost", "checkpoint agents not started: mpirun not found")


def test_agents_that_cannot_come_up_for_a_node_cost_that_node() -> None:
    play = Play(make_job(3, train=2, has_checkpoint=True))
    play.begin()
    play.come()
    play.unusable = {"n2": "drained"}
    play.give(inputs.AgentsEnded(attempt=0, generation=0))
    play.passes(LOSS_WINDOW_S)
    (fault,) = play.events("fault")
    assert (fault["kind"], fault["node"]) == ("agent_lost", "n2")
    assert fault["reason"] == "no checkpoint agent on n2: drained" and play.out == {"n2": "drained"}
    names = [event["event"] for event in play.events()]
    assert names.index("fault") < names.index("node_out"), "the cause comes first"
    assert play.attempt.nodes == ("n1", "n3")


def test_agents_that_cannot_come_up_for_the_scheduler_wait_for_it() -> None:
    play = Play(make_job(has_checkpoint=True))
    play.begin()
    play.come()
    play.scheduler_error = "no answer"
    play.give(inputs.AgentsEnded(attempt=0, generation=0))
    play.passes(LOSS_WINDOW_S)
    (fault,) = play.events("fault")
    assert fault["kind"] == "scheduler_lost" and "no answer" in fault["reason"]
    play.passes(100.0)
    assert len(play.events("attempt_start")) == 1
    play.scheduler_error = None
    play.passes(10.0)
    assert len(play.events("attempt_start")) == 2 and play.state.history.gains.fruitless == 0


def test_the_scheduler_is_asked_after_agents_that_are_late_and_not_after_those_that_are_there() -> None:
    play = Play(make_job(3, train=2, has_checkpoint=True, limits=RestartLimits(hang_timeout_s=0)))
    play.begin()
    play.come()
    play.unusable = {"n1": "drained"}
    play.passes(PATIENCE_S)
    assert [each.purpose for each in play.all(do.AskUnusable)] == [Purpose.START, Purpose.LATE_AGENTS]
    assert play.out == {"n1": "drained"} and play.attempt.nodes == ("n3", "n2")
    play.train()
    play.passes(10 * PATIENCE_S)
    assert len(play.all(do.AskUnusable)) == 2


@pytest.mark.parametrize("is_lost_before", [False, True])
def test_agents_are_replaced_at_once_in_a_stop(is_lost_before: bool) -> None:
    """Without them nothing would be saved."""
    play = training()
    for generation in (0, 1):  # the next would wait
        lose_agents(play)
        play.passes(LOSS_WINDOW_S + RENEW_AFTER_S[generation])
        rejoin(play, generation + 1)
    if is_lost_before:
        lose_agents(play)
        play.passes(LOSS_WINDOW_S)
    assert started(play) == [0, 1, 2]
    play.give(inputs.Terminated())
    if not is_lost_before:
        lose_agents(play)
        play.passes(LOSS_WINDOW_S)
    assert started(play) == [0, 1, 2, 3]
    rejoin(play, 3)
    play.commit(7)
    play.end_well(step=7)
    assert play.end is not None and (play.end.outcome, play.end.step) == ("stopped", 7)
    assert not play.events("fault", "problem")


def test_a_done_job_waits_for_its_agents_and_no_longer_than_allowed() -> None:
    play = training()
    play.silent = {do.Send}
    play.end_well(step=7)
    assert play.orders(Order.FINISH_AGENT) and not play.orders(Order.KILL)
    play.passes(1799.0)
    assert not play.orders(Order.KILL)
    play.passes(1.0)
    (problem,) = play.events("problem")
    assert "still at work 1800 s after training ended" in problem["what"] and play.orders(Order.KILL)


def test_the_newest_step_of_a_cancelled_job_is_written_while_slurm_lets_it_live() -> None:
    play = training()
    play.commit(7)
    play.silent = {do.Send}
    play.give(inputs.CancelAsked())
    assert play.orders(Order.FINISH_AGENT) and not play.orders(Order.KILL), "memory is freed with the processes"
    play.passes(AGENT_CANCEL_S - 0.1)
    assert not play.orders(Order.KILL)
    play.passes(0.1)
    assert play.orders(Order.KILL), "the rest of KillWait is for the end of the processes"


def test_a_cancel_shortens_the_wait_for_the_last_writes() -> None:
    play = training()
    play.silent = {do.Send}
    play.end_well(step=7)
    play.passes(1000.0)
    play.give(inputs.CancelAsked())
    assert not play.orders(Order.KILL)
    play.passes(AGENT_CANCEL_S)
    assert play.orders(Order.KILL)


def test_agents_that_cannot_write_together_are_not_waited_for_after_a_cancel() -> None:
    play = training()
    play.commit(7)
    lose_agents(play)
    play.give(inputs.CancelAsked())
    assert play.orders(Order.KILL) and not play.orders(Order.FINISH_AGENT)


def test_the_newest_step_is_written_before_a_fault_ends_the_job_and_not_before_a_restart() -> None:
    play = training()
    play.commit(7)
    for is_last in (False, True):
        fail(play, "ValueError: lr")
        assert bool(play.orders(Order.FINISH_AGENT)) is is_last
        if not is_last:
            play.train()
    assert play.end is not None and play.end.outcome == "user_error"


def test_agents_that_nobody_launches_any_more_have_ended_when_each_node_says_so() -> None:
    play = training()
    play.give(inputs.IsolationChanged(is_isolated=True))
    assert play.all(do.LetGo)
    play.give(inputs.IsolationChanged(is_isolated=False))
    play.silent = {do.Send}
    play.end_well(step=7)
    play.give(inputs.AgentEnded(node="n1", attempt=0))
    assert not play.orders(Order.KILL)
    play.give(inputs.AgentEnded(node="n2", attempt=0))
    assert play.orders(Order.KILL)


def test_a_launcher_that_does_not_end_with_the_agents_is_not_waited_for() -> None:
    play = training()
    play.silent = {do.Send}
    play.end_well(step=7)
    play.give(inputs.AgentEnded(node="n1", attempt=0))
    play.passes(LAUNCHER_S)
    assert not play.orders(Order.KILL), "one still writes"
    play.give(inputs.AgentEnded(node="n2", attempt=0))
    play.passes(LAUNCHER_S - 0.1)
    assert not play.orders(Order.KILL), "it writes the last of their log"
    play.passes(0.1)
    assert play.orders(Order.KILL) and play.all(do.KillAgents) and not play.events("problem")


def test_agents_on_nodes_that_are_out_of_reach_may_write_until_their_launcher_ends() -> None:
    play = training()
    play.silent = {do.Send}
    play.end_well(step=7)
    play.lose("n1", "n2")
    play.passes(10 * LAUNCHER_S)
    assert not play.orders(Order.KILL), "the result may be on its way"
    play.give(inputs.AgentsEnded(attempt=0, generation=0))
    assert play.orders(Order.KILL) and play.end is not None and play.end.outcome == "done"


def test_agents_that_were_coming_up_when_most_nodes_fell_silent_are_started_again() -> None:
    play = training()
    lose_agents(play)
    play.passes(LOSS_WINDOW_S)
    assert started(play) == [0, 1]
    play.give(inputs.IsolationChanged(is_isolated=True))
    play.give(inputs.IsolationChanged(is_isolated=False))
    play.passes(LOSS_WINDOW_S + RENEW_AFTER_S[1])
    assert started(play) == [0, 1, 2]
    rejoin(play, 2)
    play.give(inputs.IsolationChanged(is_isolated=True))
    play.give(inputs.IsolationChanged(is_isolated=False))
    play.passes(LOSSES_WITHIN_S)
    assert started(play) == [0, 1, 2], "those that are there stay"


def test_status_says_that_nothing_is_saved_until_the_agents_are_back() -> None:
    begun = [{"event": "job_start", "time": 1.0}, {"event": "first_step", "time": 2.0, "step": 1}]
    lost = LOST | {"node": "n2", "reason": "killed"}
    assert status_of([*begun, lost], 11.0).reason == "nothing is saved: the checkpoint agents were lost"
    status = status_of([*begun, lost, BACK | {"seconds": 2.0}], 13.0)
    assert (status.state, status.reason) == ("training", None)
    assert [describe(event) for event in status.events[-2:]] == [
        "checkpoint agents lost on n2, nothing is saved until they are back: killed",
        "checkpoint agents are back in 2.00 s (generation 1)",
    ]
