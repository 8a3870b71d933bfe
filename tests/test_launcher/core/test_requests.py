"""What somebody outside asks of a job: to stop, for now or for good, to end at once; and what its time limit asks."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from core_kit import EPOCH_S, Play, make_job

from launcher.core import commands as do
from launcher.core import inputs
from launcher.core.commands import Order
from launcher.core.faults import LOSSES_S
from launcher.core.requests import ASK_EVERY_S, MARGIN_S, SHORT_S, outcome_of, stop_deadline_s
from launcher.core.state import RestartLimits, Stage
from launcher.core.stop_reasons import StopReason

LONG_S = 20_000.0

# The time limit.


def stopped_after_s(
    left_s: Callable[[float], float | None], *, is_take_over: bool = False, warned_at_s: float = math.inf
) -> float | None:
    """When a job is asked to stop, in seconds from the start; None for never.

    Args:
        left_s: the scheduler's answer at a time; None for no limit, or none that is known.
        is_take_over: whether the job has run before.
        warned_at_s: when the scheduler, or somebody, sends a warning.
    """
    play = Play(make_job(has_checkpoint=True, is_take_over=is_take_over, limits=RestartLimits(hang_timeout_s=0)))
    play.left_s = lambda now_s: left_s(now_s - EPOCH_S)
    play.begin()
    if play.end is None:
        play.come()
        play.train()
    if warned_at_s < LONG_S:
        play.passes(warned_at_s)
        play.give(inputs.TimeWarned())
    play.passes(LONG_S)
    asked = play.events("stop_requested")
    assert [event["reason"] for event in asked] == ["time_limit"] * len(asked) and len(asked) <= 1
    return asked[0]["time"] - EPOCH_S if asked else None


def test_the_warning_comes_as_long_before_the_end_as_slurms() -> None:
    assert stopped_after_s(lambda now_s: 3600.0 - now_s) == 3600.0 - MARGIN_S


def test_a_limit_that_is_shortened_or_extended_meanwhile_counts() -> None:
    shortened_s = stopped_after_s(lambda now_s: (3600.0 if now_s < 500 else 1000.0) - now_s)
    assert shortened_s is not None and 1000.0 - MARGIN_S <= shortened_s <= 910.0
    assert stopped_after_s(lambda now_s: (600.0 if now_s < 500 else 3600.0) - now_s) == 3600.0 - MARGIN_S


def test_without_a_limit_there_is_no_warning() -> None:
    assert stopped_after_s(lambda now_s: None) is None


def test_a_scheduler_that_is_away_is_asked_again() -> None:
    away_s = 3 * ASK_EVERY_S
    assert stopped_after_s(lambda now_s: None if now_s < away_s else 1000.0 - now_s) == 1000.0 - MARGIN_S


def test_the_scheduler_is_asked_at_intervals_and_not_while_an_answer_is_due() -> None:
    play = Play(make_job(limits=RestartLimits(hang_timeout_s=0)))
    play.run()
    play.passes(10 * ASK_EVERY_S)
    assert len(play.all(do.AskTimeLeft)) == 11
    play.silent = {do.AskTimeLeft}
    play.passes(10 * ASK_EVERY_S)
    play.give(inputs.TimeWarned())
    assert len(play.all(do.AskTimeLeft)) == 12


def test_a_warning_while_an_answer_is_due_counts_with_that_answer() -> None:
    play = Play(make_job(has_checkpoint=True))
    play.silent = {do.AskTimeLeft}
    play.run()
    play.give(inputs.TimeWarned())
    assert not play.events("stop_requested")
    play.give(inputs.TimeLeftAnswered(left_s=5000.0))
    assert [event["reason"] for event in play.events("stop_requested")] == ["time_limit"]


def test_a_job_shorter_than_the_margin_trains_for_half_of_its_time() -> None:
    assert stopped_after_s(lambda now_s: 60.0 - now_s) == 30.0


def test_one_that_takes_over_late_warns_at_once() -> None:
    assert stopped_after_s(lambda now_s: 60.0 - now_s, is_take_over=True) == 0.0


def test_a_warning_that_comes_earlier_counts() -> None:
    """`--signal=B:USR1@300`, and somebody who sends it by hand."""
    assert stopped_after_s(lambda now_s: 3600.0 - now_s, warned_at_s=3260.0) == 3260.0
    assert stopped_after_s(lambda now_s: 86_400.0 - now_s, warned_at_s=10.0) == 10.0
    assert stopped_after_s(lambda now_s: None, warned_at_s=10.0) == 10.0


def test_a_warning_at_once_to_a_short_job_leaves_it_half_of_its_time() -> None:
    """It would stop and be requeued for ever without a step."""
    assert stopped_after_s(lambda now_s: 120.0 - now_s, warned_at_s=1.0) == 60.0
    assert stopped_after_s(lambda now_s: SHORT_S - now_s, warned_at_s=20.0) == SHORT_S / 2
    assert stopped_after_s(lambda now_s: 120.0 - now_s, warned_at_s=1.0, is_take_over=True) == 1.0


def test_the_half_of_a_limit_that_is_set_meanwhile_counts_from_the_jobs_start() -> None:
    assert stopped_after_s(lambda now_s: None if now_s < 40 else 120.0 - now_s, warned_at_s=40.0) == 60.0


# Requests to stop and to end.


def asked(*reasons: str, **fields: object) -> Play:
    """A job that trains, to which these requests come one after the other, a second apart."""
    play = Play(make_job(has_checkpoint=True, **fields))
    play.silent = {do.Requeue}
    play.run()
    for reason in reasons:
        if reason == "cancel":
            play.give(inputs.CancelAsked())
        elif reason == StopReason.HALT:
            play.give(inputs.HaltAsked())
        elif reason == "time_limit":
            play.give(inputs.TimeWarned())
        else:
            play.why_terminated = reason
            play.give(inputs.Terminated(node="n1"))
        play.passes(1.0)
    return play


@pytest.mark.parametrize(
    ("reasons", "outcome"),
    [
        ([StopReason.HALT], "halted"),
        (["time_limit"], "stopped"),
        ([StopReason.HALT, "time_limit"], "halted"),
        (["preempted", StopReason.HALT], "halted"),
        ([StopReason.HALT, "requeue"], "stopped"),  # Slurm starts it again, and it ends then
        (["batch_script_lost", StopReason.HALT], "stopped"),
        ([StopReason.HALT, "cancel"], "cancelled"),
    ],
)
def test_a_job_to_be_halted_is_not_requeued_by_us(reasons: list[str], outcome: str) -> None:
    play = asked(*reasons)
    assert outcome_of(play.state.requests) == outcome
    play.silent = set()
    if outcome != "cancelled":
        play.end_well(step=7)
    if reasons[0] == "batch_script_lost":
        play.give(inputs.Requeued())
    assert play.end is not None and play.end.outcome == outcome
    assert len(play.all(do.Requeue)) == (outcome == "stopped" and "requeue" not in reasons)


def test_what_presses_sets_the_deadline_of_a_halt() -> None:
    play = asked(StopReason.HALT, StopReason.HALT, "time_limit", StopReason.HALT, "preempted")
    assert play.state.requests.stop == "time_limit"
    told = play.events("stop_requested")
    assert [event["reason"] for event in told] == [StopReason.HALT, "time_limit"]
    assert [event["time"] - EPOCH_S for event in told] == [0.0, 2.0]
    assert stop_deadline_s(play.state.requests, play.state.job.elastic) == EPOCH_S + 2.0 + 75.0
    assert [order.lower_s for order in play.orders(Order.STOP)] == [None, 50.0], "once for each reason that counts"


@pytest.mark.parametrize(
    ("at_step", "after_s", "step", "passed_s", "is_due"),
    [
        (0, 0.0, None, 0.0, True),
        (5, 0.0, None, 0.0, False),
        (5, 0.0, 4, 0.0, False),
        (5, 0.0, 5, 0.0, True),
        (0, 100.0, 9, 99.0, False),
        (0, 100.0, None, 100.0, True),
        (5, 100.0, 9, 99.0, False),
        (5, 100.0, 4, 100.0, False),
        (5, 100.0, 5, 100.0, True),
    ],
)
def test_a_request_is_due_once_its_step_and_its_time_have_come(
    at_step: int, after_s: float, step: int | None, passed_s: float, is_due: bool
) -> None:
    play = Play(make_job(has_checkpoint=True))
    play.run()
    play.give(inputs.HaltAsked(at_step=at_step, at_s=EPOCH_S + after_s))
    if step is not None:
        play.give(inputs.Progress(attempt=0, step=step, slowest=step))
    play.passes(passed_s)
    assert bool(play.events("stop_requested")) is is_due


def test_a_later_request_to_halt_takes_the_place_of_one_that_is_not_due() -> None:
    play = Play(make_job(has_checkpoint=True))
    play.run()
    play.give(inputs.HaltAsked(at_step=500), inputs.HaltAsked(at_step=5))
    play.give(inputs.Progress(attempt=0, step=5, slowest=5))
    assert [event["reason"] for event in play.events("stop_requested")] == [StopReason.HALT]


def test_the_ranks_are_ended_where_they_reach_no_common_step_in_time() -> None:
    play = asked("requeue")
    play.passes(30.0)
    (problem,) = play.events("problem")
    assert problem["what"] == "not all ranks reached a common step boundary in time (requeue); they were ended"
    assert play.end is not None and play.end.outcome == "stopped" and not play.all(do.Requeue)
    assert play.events("attempt_end")[0]["time"] - EPOCH_S == 25.0


def test_a_stop_without_the_last_steps_save_is_recorded() -> None:
    play = Play(make_job(has_checkpoint=True))
    play.run()
    play.commit(5)
    play.give(inputs.Terminated())
    play.end_well(step=7)
    assert [event["what"] for event in play.events("problem")] == [
        "ranks ended in the stop without the save that all agree on: step 7 was reached, the newest step committed is 5"
    ]


def test_a_job_without_checkpoints_is_ended_by_a_stop_once_no_sigterm_handler_runs() -> None:
    play = Play(make_job())
    play.why_terminated = "preempted"
    play.run()
    play.give(inputs.Terminated())
    assert play.end is None
    nodes = play.state.attempt.nodes if play.state.attempt is not None else ()
    for node in nodes[1:]:
        play.give(inputs.StopHandled(node=node, attempt=0, has_handler=False))
    play.give(inputs.StopHandled(node=nodes[0], attempt=0, has_handler=True))
    assert play.end is None  # that node's ranks may still save
    play.give(inputs.WorkersEnded(node=nodes[0], attempt=0, ok=True))
    assert play.end is not None and play.end.outcome == "stopped" and len(play.all(do.Requeue)) == 1


# SIGTERM.


def test_of_many_sigterms_the_first_is_explained_and_no_later_one_stops_the_job_again() -> None:
    play = Play(make_job(has_checkpoint=True))
    play.run()
    play.silent = {do.AskWhyTerminated}
    for why in ("requeue", "preempted"):
        asked_before = len(play.all(do.AskWhyTerminated))
        play.give(inputs.Terminated(node="n1"), inputs.Terminated(node="n2"), inputs.Terminated())
        assert len(play.all(do.AskWhyTerminated)) == asked_before + 1, "one question at a time"
        play.give(inputs.TerminationExplained(why=StopReason(why)))
    assert [event["reason"] for event in play.events("stop_requested")] == ["requeue"]


def test_a_job_that_is_cancelled_while_it_stops_is_not_requeued() -> None:
    play = asked("preempted")
    play.why_terminated = "cancel"
    play.give(inputs.Terminated(node="n1"))
    assert play.end is not None and play.end.outcome == "cancelled" and not play.all(do.Requeue)
    asked_before = len(play.all(do.AskWhyTerminated))
    play.give(inputs.Terminated(node="n2"))
    assert len(play.all(do.AskWhyTerminated)) == asked_before


@pytest.mark.parametrize(("why", "outcome"), [("cancel", "cancelled"), ("requeue", "stopped")])
def test_workers_that_end_well_by_a_sigterm_are_judged_by_what_it_means(why: str, outcome: str) -> None:
    play = Play(make_job(has_checkpoint=True))
    play.silent = {do.AskWhyTerminated}
    play.run()
    play.give(inputs.Terminated(node="n1"))
    play.end_well(step=7)
    assert play.end is None and not play.events("attempt_end"), "it may be done, stopped or cancelled"
    play.give(inputs.TerminationExplained(why=StopReason(why)))
    assert play.end is not None and play.end.outcome == outcome


def test_no_attempt_begins_while_a_sigterm_is_not_understood() -> None:
    play = Play(make_job())
    play.silent = {do.AskWhyTerminated}
    play.begin()
    play.give(inputs.Terminated(node="n1"))
    play.come()
    assert play.state.stage is Stage.GATHERING and not play.events("attempt_start")
    play.give(inputs.TerminationExplained(why=StopReason.REQUEUE))
    assert play.end is not None and play.end.outcome == "stopped"


def test_the_loss_of_the_batch_script_requeues_the_job_while_it_saves() -> None:
    play = asked("batch_script_lost")
    assert play.all(do.Requeue) == [do.Requeue(exclude=())] and play.orders(Order.STOP)
    play.end_well(step=7)
    assert play.end is None, "the answer is due"
    play.give(inputs.Requeued())
    assert play.end is not None and play.end.outcome == "stopped" and len(play.all(do.Requeue)) == 1


def test_a_requeue_that_is_refused_at_a_stop_ends_the_job_with_the_reason() -> None:
    play = asked("preempted")
    play.silent, play.requeue_error = set(), "invalid job id"
    play.end_well(step=7)
    assert play.end is not None and play.end.outcome == "internal"
    assert "not requeued: invalid job id; submit the job again" in play.end.reason


def test_the_nodes_that_are_out_are_not_to_be_given_again() -> None:
    play = Play(make_job(3, train=2))
    play.why_terminated = "preempted"
    play.run()
    play.lose("n2")
    play.give(inputs.Terminated())
    for node in ("n1", "n3"):
        play.give(inputs.StopHandled(node=node, attempt=1, has_handler=False))
    assert play.all(do.Requeue) == [do.Requeue(exclude=("n2",))]


def test_a_job_that_cannot_start_without_nodes_that_were_only_lost_may_have_them_again() -> None:
    play = Play(make_job(4, train=3))
    play.why_terminated, play.silent = "preempted", {do.Requeue}
    play.run()
    play.give(inputs.NodeBroken(node="n4", reason="cannot start workers"))
    play.lose("n2")
    play.passes(LOSSES_S)
    assert play.all(do.Requeue) == [do.Requeue(exclude=("n2", "n4"))]
    play.give(inputs.Requeued(error="two nodes are left, three are needed", lacks_nodes=True))
    assert play.all(do.Requeue)[1:] == [do.Requeue(exclude=("n4",))] and play.end is None
    play.give(inputs.Requeued(error="two nodes are left, three are needed", lacks_nodes=True))
    assert play.end is not None and play.end.outcome == "too_few_nodes"


def test_a_job_whose_runners_are_all_lost_in_a_stop_may_have_its_nodes_again() -> None:
    play = asked("preempted")
    play.silent = {do.Requeue, do.Send}
    for node in play.state.job.nodes:
        play.lose(node)
    assert play.all(do.Requeue) == [do.Requeue(exclude=())]
    assert not [node for node, _ in play.state.history.out.items()], "the next start would leave them out"
