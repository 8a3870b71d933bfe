"""How a job grows and shrinks: boosters come and leave, attempts make way for others of another size."""

from __future__ import annotations

from typing import Any

import pytest
from core_kit import Play, make_job

from launcher.core import commands as do
from launcher.core import inputs
from launcher.core.boosters import AVOIDED_S, BROKEN_S, LATE_S
from launcher.core.commands import Order
from launcher.core.inputs import AllocationsSeen, AllocationState
from launcher.core.members import Phase
from launcher.core.requests import MARGIN_S, SHRINK_S
from launcher.core.state import BoosterPhase, ElasticLimits, JobFacts, RestartLimits

SETTLE_S, GRACE_S, FAULTY_S, SNOOZE_S = 60.0, 600.0, 30.0, 300.0
BASE = "17"
PATIENT = RestartLimits(hang_timeout_s=1e6)


def make_elastic(nodes: int = 2, *, boosters: int = 2, size: int = 1, spares: int = 0, **fields: Any) -> JobFacts:
    """A job of base nodes n1, n2, ... that may have so many boosters of so many nodes."""
    given: dict[str, Any] = {
        "sizes": tuple(range(nodes + boosters * size, nodes - 1, -size)),
        "base_nodes": nodes,
        "booster_nodes": size,
        "most_boosters": boosters,
        "allocations": {f"n{number}": BASE for number in range(1, nodes + spares + 1)},
        "has_checkpoint": True,
        "elastic": ElasticLimits(
            scaling_timeout_s=SETTLE_S,
            graceful_shutdown_timeout_s=GRACE_S,
            faulty_scale_down_timeout_s=FAULTY_S,
            scale_up_snooze_s=SNOOZE_S,
        ),
    }
    return make_job(nodes + spares, **(given | fields))


def step(play: Play, number: int = 1) -> None:
    node = play.attempt.nodes[0]
    play.give(inputs.FirstStep(node=node, attempt=play.attempt.number, step=number, time_s=play.now_s))


def running(job: JobFacts | None = None, *boosters: str) -> Play:
    """A job that trains on its base, and then on these nodes too: each a booster of its own."""
    play = Play(job or make_elastic())
    play.run()
    step(play)
    for number, node in enumerate(boosters, 1):
        play.boost(node, f"b{number}")
    if boosters:
        play.passes(SETTLE_S)
        stop_and_train(play)
    return play


def stop_and_train(play: Play) -> None:
    """All ranks stop as asked, and the next attempt trains."""
    play.end_well()
    play.train()
    step(play, 2)


def started(play: Play) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """The attempts: rung, nodes and holders."""
    events = play.events("attempt_start")
    return [(each["rung"], tuple(each["nodes"]), tuple(each.get("holders", ()))) for each in events]


def ended(play: Play, allocation: str, reason: str = "PREEMPTED") -> list[do.Command]:
    """The scheduler says that a booster has ended."""
    states = {allocation: AllocationState.ENDED}
    return play.give(AllocationsSeen(states=states, reasons={allocation: reason}))


# Asking for boosters.


def test_boosters_are_asked_for_once_the_job_trains() -> None:
    play = Play(make_elastic())
    play.begin()
    play.come()
    assert not play.all(do.AskAllocation)
    play.train()
    asked = [do.AskAllocation(allocation=name, nodes=1, exclude=("n1", "n2")) for name in ("b1", "b2")]
    assert play.all(do.AskAllocation) == asked
    assert [event["allocation"] for event in play.events("booster_asked")] == ["b1", "b2"]
    assert [event["job_id"] for event in play.events("booster_submitted")] == ["41", "42"]


def test_a_booster_is_asked_for_once_its_number_is_on_disk() -> None:
    play = Play(make_elastic())
    play.begin()
    play.come()
    play.silent.add(do.Settle)
    play.give(inputs.EventsWritten())  # of the attempt
    play.train()
    assert [event["allocation"] for event in play.events("booster_asked")] == ["b1"], "one at a time"
    assert not play.all(do.AskAllocation)
    play.silent.clear()
    play.give(inputs.EventsWritten())
    assert [command.allocation for command in play.all(do.AskAllocation)] == ["b1", "b2"]


def test_a_booster_that_is_given_back_before_its_number_is_on_disk_is_never_asked_for() -> None:
    play = Play(make_elastic(boosters=1))
    play.begin()
    play.come()
    play.silent.add(do.Settle)
    play.give(inputs.EventsWritten())
    play.train()
    play.give(inputs.ScaleAsked(nodes=2), inputs.EventsWritten())
    assert not play.all(do.AskAllocation)
    ended(play, "b1", "Slurm has forgotten it")
    assert play.events("booster_end")[-1]["reason"] == "scaled down" and not play.state.boosters


def test_a_booster_that_is_given_back_before_the_scheduler_has_answered_is_ended_once_it_has() -> None:
    play = Play(make_elastic(boosters=1))
    play.silent.add(do.AskAllocation)
    play.run()
    play.give(inputs.ScaleAsked(nodes=2))
    given = play.give(inputs.AllocationAsked(allocation="b1", job_id="41"))
    assert do.EndAllocation(allocation="b1") in given, "the order before may have come too early"


def test_nodes_that_are_out_are_excluded() -> None:
    play = Play(make_elastic(spares=1))
    play.begin()
    play.come("n1", "n2")
    play.give(inputs.NodeJoined(node="n3", problem="a GPU has fallen off the bus"))
    play.train()
    assert play.all(do.AskAllocation)[0].exclude == ("n1", "n2", "n3")


def test_a_lost_base_node_is_replaced_by_a_booster() -> None:
    play = Play(make_elastic(3, boosters=2, sizes=(5, 4, 3, 2)))
    play.run()
    play.give(inputs.ScaleAsked(nodes=3))
    assert {each.allocation for each in play.all(do.EndAllocation)} == {"b1", "b2"}
    play.lose("n3")
    play.train()
    assert len(play.all(do.AskAllocation)) == 3, "two nodes of the base are left, and three are wanted"


def test_a_local_job_has_boosters_only_where_a_user_wants_them() -> None:
    play = running(make_elastic(is_local=True, can_requeue=False))
    assert not play.all(do.AskAllocation)
    play.give(inputs.ScaleAsked(nodes=3))
    assert len(play.all(do.AskAllocation)) == 1


def test_what_cannot_be_asked_for_is_asked_for_again_after_a_while() -> None:
    play = Play(make_elastic())
    play.scheduler_error = "Invalid partition"
    play.run()
    problems = [event for event in play.events("problem") if "booster" in event["what"]]
    assert len(play.all(do.AskAllocation)) == 1 and problems[0]["detail"] == "Invalid partition"
    play.passes(SNOOZE_S)
    assert len(play.all(do.AskAllocation)) == 2
    assert len([event for event in play.events("problem") if "booster" in event["what"]]) == 1, "said once"
    play.scheduler_error = None
    play.passes(SNOOZE_S)
    assert [event["allocation"] for event in play.events("booster_submitted")] == ["b3", "b4"]


def test_a_booster_that_the_scheduler_may_have_in_spite_of_its_error_is_ended_by_its_number() -> None:
    play = Play(make_elastic(boosters=1))
    play.scheduler_error = "no answer within 30 s"
    play.run()
    order = do.EndAllocation(allocation="b1")
    assert play.all(do.EndAllocation) == [order]
    play.give(AllocationsSeen(states={"b1": AllocationState.QUEUED}))
    assert play.all(do.EndAllocation) == [order, order]
    play.boost("x1", "b1")
    assert play.all(do.Dismiss)[-1] == do.Dismiss(node="x1", forget=True, allocation="b1")
    ended(play, "b1", "Slurm has forgotten it")
    (end,) = play.events("booster_end")
    assert (end["allocation"], end["reason"]) == ("b1", "no answer within 30 s") and end["again"] > play.now_s


def test_why_a_booster_waits_is_recorded_as_it_changes() -> None:
    play = running()
    queued = {"b1": AllocationState.QUEUED}
    for _ in range(3):
        play.give(AllocationsSeen(states=queued, reasons={"b1": "Priority"}))
    assert [event["reason"] for event in play.events("booster_waits")] == ["Priority"]
    play.give(AllocationsSeen(states=queued, reasons={"b1": "Resources"}))
    assert len(play.events("booster_waits")) == 1, "the scheduler's reasons alternate"
    play.passes(400.0)
    play.give(AllocationsSeen(states=queued, reasons={"b1": "Resources"}))
    assert [event["reason"] for event in play.events("booster_waits")] == ["Priority", "Resources"]


def test_a_booster_whose_runners_do_not_come_is_ended() -> None:
    play = running()
    play.give(AllocationsSeen(states={"b1": AllocationState.RUNNING}))
    play.passes(119.0)
    assert not play.all(do.EndAllocation)
    play.passes(2.0)
    assert play.all(do.EndAllocation) == [do.EndAllocation(allocation="b1")]


def test_the_order_to_end_a_booster_is_given_until_it_has_ended() -> None:
    play = running()
    play.give(inputs.ScaleAsked(nodes=2))
    play.give(AllocationsSeen(states={"b1": AllocationState.QUEUED}))
    assert play.all(do.EndAllocation).count(do.EndAllocation(allocation="b1")) == 2
    ended(play, "b1", "CANCELLED")
    ended(play, "b2", "CANCELLED")
    assert not play.state.boosters
    assert [event["allocation"] for event in play.events("booster_end")] == ["b1", "b2"]


# Growing.


def test_the_job_grows_once_nothing_has_changed_for_a_while() -> None:
    play = running()
    play.boost("x1", "b1")
    play.passes(SETTLE_S - 1.0)
    play.boost("x2", "b2")
    play.passes(SETTLE_S - 1.0)
    assert not play.orders(Order.STOP)
    play.passes(1.0)
    assert [event["to"] for event in play.events("resize")] == [4]
    assert play.orders(Order.STOP)[0].nodes == ("n1", "n2")
    play.end_well()
    assert started(play) == [("start", ("n1", "n2"), ()), ("grow", ("n1", "n2", "x1", "x2"), ())]


def test_nobody_stops_for_a_node_that_is_not_warm() -> None:
    play = running()
    play.boost("x1", "b1", is_warm=False)
    play.passes(5 * SETTLE_S)
    assert not play.events("resize")
    play.give(inputs.NodeWarm(node="x1"))
    play.passes(SETTLE_S)
    assert play.events("resize")


def test_nobody_stops_before_the_attempt_has_made_a_step() -> None:
    play = running(None, "x1")
    play.boost("x2", "b2")
    play.fail("n1")
    play.train()
    assert len(play.attempt.nodes) == 4
    play = running(None, "x1")
    play.lose("x1")
    play.train()
    play.boost("x2", "b2")
    play.passes(2 * SETTLE_S)
    assert len(play.events("resize")) == 1
    step(play, 3)
    play.commit(3)
    play.passes(SETTLE_S)
    assert len(play.events("resize")) == 2


def test_ranks_are_stopped_only_once_the_resize_is_on_disk() -> None:
    play = running()
    play.silent.add(do.Settle)
    play.boost("x1", "b1")
    play.passes(2 * SETTLE_S)
    assert play.events("resize") and not play.orders(Order.STOP)
    play.passes(2 * GRACE_S)
    assert play.attempt.is_running, "the folder may be full for a while"
    play.give(inputs.EventsWritten())
    assert play.orders(Order.STOP)


def test_a_job_that_ends_before_its_resize_is_on_disk_is_done() -> None:
    play = running()
    play.silent.add(do.Settle)
    play.boost("x1", "b1")
    play.passes(2 * SETTLE_S)
    play.end_well(step=7)
    assert play.events("resize") and not play.orders(Order.STOP)
    assert len(play.orders(Order.FINISH_AGENT)) == 1, "its last step goes to the lower tiers"
    assert [event["outcome"] for event in play.events("attempt_end")] == ["done"]


def test_ranks_that_do_not_stop_in_time_are_ended() -> None:
    play = running()
    play.boost("x1", "b1")
    play.passes(SETTLE_S + GRACE_S + 1.0)
    assert [event["outcome"] for event in play.events("attempt_end")] == ["resized"]
    assert any("common step boundary" in event["what"] for event in play.events("problem"))
    assert started(play)[-1][0] == "grow"


def test_a_resize_is_no_fault_and_no_restart() -> None:
    play = running(None, "x1", "x2")
    assert [event["outcome"] for event in play.events("attempt_end")] == ["resized"]
    assert not play.events("fault", "backoff", "stop_requested")
    assert play.state.history.gains.restarts == 0 and play.state.history.gains.fruitless == 0
    assert play.state.requests.stop is None and play.end is None
    play.fail("n1")
    assert play.state.history.gains.restarts == 1


@pytest.mark.parametrize("committed", [None, 6, 7])
def test_agents_are_given_time_at_the_end_only_for_a_step_that_is_not_committed(committed: int | None) -> None:
    """A step that is committed stays in memory; its way to the lower tiers would hold up the next attempt."""
    play = running()
    play.boost("b", "b1")
    play.passes(SETTLE_S)
    if committed is not None:
        play.commit(committed)
    play.end_well(step=7)
    assert len(play.orders(Order.RELEASE_AGENT)) == (committed != 7)
    assert [event["outcome"] for event in play.events("attempt_end")] == ["resized"]
    assert play.attempt.number == 1


def test_spares_replace_lost_nodes_and_do_not_make_the_job_larger() -> None:
    play = running(make_elastic(2, spares=2), "x1")
    assert play.attempt.nodes == ("n1", "n2", "x1")
    play.lose("n1")
    assert len(play.attempt.nodes) == 3 and started(play)[-1][0] == "spare"


def test_only_allowed_sizes_train() -> None:
    play = running(make_elastic(2, boosters=3, size=2, sizes=(8, 4, 2)))
    for number, node in enumerate(("x1", "x2", "x3", "x4"), 2):
        play.boost(node, f"b{number // 2}")
    play.passes(SETTLE_S)
    play.end_well()
    assert len(play.attempt.nodes) == 4
    assert len(play.in_phase(Phase.READY)) == 2


# Leaving.


def test_a_booster_that_is_preempted_leaves_at_a_step_boundary() -> None:
    play = running(None, "x1", "x2")
    play.give(inputs.Terminated(node="x2"))
    assert not play.all(do.AskWhyTerminated)
    assert play.events("node_leaving") == [
        {"event": "node_leaving", "time": play.now_s, "node": "x2", "reason": "preempted"}
        | {"allocation": "b2", "job_id": "42"}
    ]
    assert play.orders(Order.STOP)[-1].nodes == ("n1", "n2", "x1", "x2")
    play.end_well()
    assert started(play)[-1] == ("shrink", ("n1", "n2", "x1"), ("x2",))
    starts = play.all(do.StartAgents)[-1]
    assert starts.holders == ("x2",)
    assert starts.allocations == {"n1": BASE, "n2": BASE, "x1": "b1", "x2": "b2"}
    assert play.all(do.StartWorkers)[-1].nodes == ("n1", "n2", "x1")
    assert not play.all(do.EndAllocation)


def test_holders_are_let_go_once_a_step_is_committed_without_them() -> None:
    play = running(None, "x1", "x2")
    play.give(inputs.Terminated(node="x2"))
    stop_and_train(play)
    assert play.state.holders == ("x2",)
    before = len(play.commands)
    play.commit(3)
    assert play.state.holders == () and "x2" not in play.state.members
    number = play.attempt.number
    followed = [each for each in play.commands[before:] if not isinstance(each, do.Record | do.SetTimer)]
    nodes = ("n1", "n2", "x1")
    allocations = {"n1": BASE, "n2": BASE, "x1": "b1"}
    assert followed == [
        do.KillAgents(),
        do.Send(nodes=nodes, order=Order.RENEW_AGENT, attempt=number, generation=1),
        do.StartAgents(nodes=nodes, attempt=number, generation=1, allocations=allocations),
        do.Dismiss(node="x2", forget=True, allocation="b2"),
        do.EndAllocation(allocation="b2"),
    ]
    play.give(inputs.AgentsRejoined(attempt=number, generation=1, step=3))
    assert play.events("agents_back")


def test_agents_that_make_way_as_holders_are_let_go_report_no_problem() -> None:
    play = running(None, "x1", "x2")
    play.give(inputs.Terminated(node="x2"))
    stop_and_train(play)
    number = play.attempt.number
    missed = inputs.Reported(node="n1", attempt=number, event="problem", fields={"what": "the other agents are lost"})
    play.commit(3)
    before = len(play.events("problem"))
    play.give(missed)
    assert len(play.events("problem")) == before
    play.give(inputs.AgentsRejoined(attempt=number, generation=1, step=3))
    play.give(missed)
    assert play.events("problem")[before:][0]["what"] == "the other agents are lost"


def test_holders_that_leave_are_let_go_though_nothing_is_committed() -> None:
    play = running(None, "x1")
    play.give(inputs.Terminated(node="x1"))
    stop_and_train(play)
    play.passes(GRACE_S - 1.0)
    assert play.state.holders == ("x1",)
    play.passes(2.0)
    assert play.state.holders == () and play.all(do.EndAllocation)


def test_holders_are_not_let_go_while_agents_are_lost() -> None:
    play = running(None, "x1")
    play.give(inputs.Terminated(node="x1"))
    stop_and_train(play)
    play.silent.add(do.KillAgents)
    play.give(inputs.AgentLost(node="n1", attempt=play.attempt.number, generation=0, reason="it ended"))
    play.commit(3)
    assert play.state.holders == ("x1",), "the loss is not judged yet"
    play.passes(1.0)
    assert play.all(do.StartAgents)[-1].holders == ("x1",)
    play.give(inputs.AgentsRejoined(attempt=play.attempt.number, generation=1, step=3))
    assert play.state.holders == () and play.state.agents.generation == 2


def test_a_booster_that_is_lost_as_it_leaves_costs_no_restart() -> None:
    play = running(None, "x1", "x2")
    play.give(inputs.Terminated(node="x2"))
    play.lose("x2")
    assert [event["kind"] for event in play.events("fault")] == ["preempted"]
    assert not play.events("node_out", "backoff")
    assert play.state.history.gains.restarts == 0 and play.state.history.gains.fruitless == 0
    assert started(play)[-1] == ("shrink", ("n1", "n2", "x1"), ())


def test_a_holder_that_is_lost_costs_only_the_agents() -> None:
    play = running(None, "x1")
    play.give(inputs.Terminated(node="x1"))
    stop_and_train(play)
    play.lose("x1")
    play.give(inputs.AgentLost(node="n1", attempt=play.attempt.number, generation=0, reason="it ended"))
    play.passes(1.0)
    assert play.attempt.number == 2 and not play.events("fault")
    assert play.all(do.StartAgents)[-1].holders == () and play.all(do.StartAgents)[-1].generation == 1


def test_a_holder_that_is_lost_before_the_restore_is_done_without() -> None:
    play = running(None, "x1")
    play.give(inputs.Terminated(node="x1"))
    play.end_well()
    assert play.state.holders == ("x1",)
    play.lose("x1")
    assert [event["kind"] for event in play.events("fault")] == ["preempted"]
    assert play.attempt.number == 3 and play.state.holders == ()


def test_another_booster_is_asked_for_after_a_while() -> None:
    play = running(None, "x1")
    play.give(inputs.Terminated(node="x1"))
    stop_and_train(play)
    play.commit(3)
    ended(play, "b1")
    play.passes(SNOOZE_S - 5.0)
    assert len(play.all(do.AskAllocation)) == 2
    play.passes(10.0)
    assert len(play.all(do.AskAllocation)) == 3
    play.boost("x1", "b3")
    assert play.in_phase(Phase.READY) == ["x1"], "the same node may come again"


def test_a_booster_that_leaves_while_workers_start_is_waited_for() -> None:
    play = running()
    play.boost("x1", "b1")
    play.passes(SETTLE_S)
    play.end_well()
    assert play.attempt.nodes == ("n1", "n2", "x1")
    play.give(inputs.Terminated(node="x1"))
    assert play.orders(Order.STOP)[-1].attempt == 1
    play.train()
    play.end_well()
    assert started(play)[-1] == ("shrink", ("n1", "n2"), ("x1",))


def test_an_idle_booster_that_is_preempted_goes_at_once() -> None:
    play = running()
    play.boost("x1", "b1")
    play.give(inputs.Terminated(node="x1"))
    assert play.all(do.Dismiss) == [do.Dismiss(node="x1", forget=True, allocation="b1")]
    assert play.all(do.EndAllocation) and not play.events("resize")


def test_a_booster_that_was_preempted_before_its_runners_came_is_not_used() -> None:
    """Slurm sends the SIGTERM to steps, and there was none."""
    play = running()
    preempted = AllocationsSeen(states={"b1": AllocationState.PREEMPTED, "b2": AllocationState.RUNNING})
    play.give(preempted)
    assert play.all(do.EndAllocation) == [do.EndAllocation(allocation="b1")]
    play.boost("x1", "b1")
    assert play.all(do.Dismiss) == [do.Dismiss(node="x1", forget=True, allocation="b1")]
    play.boost("x2", "b2")
    play.passes(60.0)
    assert [(event["size"], event["to"]) for event in play.events("resize")] == [(2, 3)]


def test_a_booster_that_is_preempted_leaves_though_nobody_has_heard_a_sigterm() -> None:
    play = running()
    play.boost("x1", "b1")
    play.boost("x2", "b2")
    play.passes(60.0)
    stop_and_train(play)
    play.give(AllocationsSeen(states={"b1": AllocationState.PREEMPTED, "b2": AllocationState.RUNNING}))
    assert [event["reason"] for event in play.events("node_leaving")] == ["preempted"]
    assert [event["to"] for event in play.events("resize")] == [4, 3]


def test_a_booster_whose_node_comes_back_is_kept() -> None:
    play = running(None, "x1")
    play.lose("x1")
    play.train()
    step(play, 3)
    play.boost("x1", "b1")
    assert play.in_phase(Phase.READY) == ["x1"]
    play.passes(BROKEN_S + 1.0)
    assert not play.all(do.EndAllocation)
    play.passes(SETTLE_S)
    assert len(play.events("resize")) == 2


def test_an_attempt_that_a_booster_leaves_before_it_is_on_disk_is_not_started() -> None:
    play = running()
    play.boost("x1", "b1")
    play.passes(SETTLE_S)
    play.silent.add(do.Settle)
    play.end_well()
    assert play.attempt.nodes == ("n1", "n2", "x1")
    play.silent.clear()
    play.give(inputs.Terminated(node="x1"))
    assert len(play.all(do.StartWorkers)) == 1, "the answer to one order is not that to the next"
    for _ in range(3):
        play.give(inputs.EventsWritten())
    assert play.all(do.StartWorkers)[-1].nodes == ("n1", "n2") and len(play.all(do.StartWorkers)) == 2


def test_nodes_lost_with_their_booster_may_come_again() -> None:
    play = running(None, "x1")
    play.lose("x1")
    assert "x1" in play.state.history.out
    ended(play, "b1", "PREEMPTED")
    assert "x1" not in play.state.history.out
    assert [event["node"] for event in play.events("node_back")] == ["x1"], "whoever counts losses hears it"
    play = running(None, "x1")
    play.lose("x1")
    ended(play, "b1", "NODE_FAIL")
    assert "x1" in play.state.history.out


def test_a_booster_that_lost_a_node_is_replaced_whole() -> None:
    play = running(make_elastic(2, boosters=1, size=2))
    play.boost("x1", "b1")
    play.boost("x2", "b1")
    play.passes(SETTLE_S)
    stop_and_train(play)
    play.lose("x2")
    assert started(play)[-1] == ("shrink", ("n1", "n2"), ("x1",))
    assert play.state.boosters[0].phase is BoosterPhase.RUNNING, "its other node holds what is needed"
    play.train()
    step(play, 3)
    play.commit(4)
    play.passes(BROKEN_S - 1.0)
    assert not play.all(do.EndAllocation), "it may only have been out of reach"
    play.passes(2.0)
    assert do.Dismiss(node="x1", forget=True, allocation="b1") in play.all(do.Dismiss)
    assert play.all(do.EndAllocation) == [do.EndAllocation(allocation="b1")]


# By hand.


def test_a_user_scales_down_and_up() -> None:
    play = running(None, "x1", "x2")
    play.give(inputs.ScaleAsked(nodes=3))
    assert [event["reason"] for event in play.events("node_leaving")] == ["scaled down"]
    stop_and_train(play)
    assert started(play)[-1] == ("shrink", ("n1", "n2", "x1"), ("x2",))
    play.commit(3)
    ended(play, "b2", "CANCELLED")
    play.give(inputs.ScaleAsked(nodes=9))
    assert play.events("scale_requested")[-1]["nodes"] == 4, "the largest allowed size"
    assert len(play.all(do.AskAllocation)) == 3, "nothing to wait for"


def test_those_in_the_queue_are_given_up_first() -> None:
    play = running(None, "x1")
    play.give(inputs.ScaleAsked(nodes=3))
    assert play.all(do.EndAllocation) == [do.EndAllocation(allocation="b2")]
    assert not play.orders(Order.STOP)[1:]


def test_the_base_is_kept_where_fewer_of_its_nodes_train() -> None:
    play = running(make_elastic(3, boosters=0, sizes=(3, 2, 1), most_boosters=0, booster_nodes=0))
    play.give(inputs.ScaleAsked(nodes=2))
    stop_and_train(play)
    assert started(play)[-1] == ("shrink", ("n1", "n2"), ("n3",))
    play.commit(3)
    assert play.in_phase(Phase.READY) == ["n3"] and not play.all(do.EndAllocation)
    play.give(inputs.AgentsRejoined(attempt=play.attempt.number, generation=1, step=3))
    play.give(inputs.ScaleAsked(nodes=3))
    play.passes(SETTLE_S)
    stop_and_train(play)
    assert started(play)[-1] == ("grow", ("n1", "n2", "n3"), ())


def test_the_same_wish_again_changes_nothing() -> None:
    play = running()
    play.give(inputs.ScaleAsked(nodes=3))
    play.give(inputs.ScaleAsked(nodes=3))
    assert len(play.events("scale_requested")) == 1


def test_boosters_are_given_back_before_the_time_limit() -> None:
    """They end with the job, so the step that it goes on from must not need what they hold."""
    play = Play(make_elastic())
    end_s = play.now_s + 900.0
    play.left_s = lambda now_s: end_s - now_s
    play.run()
    step(play)
    play.boost("x1", "b1")
    play.passes(SETTLE_S)
    stop_and_train(play)
    play.passes(end_s - play.now_s - MARGIN_S - SHRINK_S - 1.0)
    assert not play.events("node_leaving")
    play.passes(2.0)
    assert [event["node"] for event in play.events("node_leaving")] == ["x1"]
    stop_and_train(play)
    assert started(play)[-1] == ("shrink", ("n1", "n2"), ("x1",))


# Who may join.


def test_a_runner_that_nobody_asked_for_is_sent_away() -> None:
    play = running()
    play.boost("y1", "99")
    assert play.all(do.Dismiss) == [do.Dismiss(node="y1", forget=True, allocation="99")]
    assert play.all(do.EndAllocation) == [do.EndAllocation(allocation="99")]
    assert "99" in play.events("problem")[-1]["what"] and "y1" not in play.state.members


def test_the_base_is_never_ended() -> None:
    play = running()
    play.boost("y1", BASE)
    assert play.all(do.Dismiss) and not play.all(do.EndAllocation)


def test_a_node_is_a_member_once() -> None:
    play = running(None, "x1")
    play.boost("x1", "b2")
    assert play.all(do.Dismiss) == [do.Dismiss(node="x1", forget=False, allocation="b2")], "its memory is in use"
    assert play.all(do.EndAllocation) == [do.EndAllocation(allocation="b2")]
    play.boost("n1", "98")
    assert play.all(do.Dismiss)[-1] == do.Dismiss(node="n1", forget=False, allocation="98")
    assert play.attempt.is_running and play.state.members["x1"].allocation == "b1"


def test_a_runner_that_is_there_before_the_scheduler_has_answered_joins() -> None:
    play = Play(make_elastic(boosters=1))
    play.silent.add(do.AskAllocation)
    play.run()
    play.boost("x1", "b1")
    assert not play.all(do.Dismiss) and play.in_phase(Phase.READY) == ["x1"]
    play.passes(SETTLE_S)
    stop_and_train(play)
    assert started(play)[-1][:2] == ("grow", ("n1", "n2", "x1"))
    play.give(inputs.AllocationAsked(allocation="b1", job_id="41"))
    assert play.state.boosters[0].job_id == "41" and len(play.all(do.AskAllocation)) == 1


def test_a_node_that_is_out_does_not_join() -> None:
    play = running(None, "x1")
    play.give(inputs.NodeBroken(node="x1", reason="no /venv"))
    play.train()
    ended(play, "b1")
    play.passes(SNOOZE_S + 1)
    play.boost("x1", "b3")
    assert play.all(do.Dismiss)[-1] == do.Dismiss(node="x1", forget=True, allocation="b3")
    assert do.EndAllocation(allocation="b3") in play.all(do.EndAllocation)


def test_a_booster_of_an_earlier_start_is_ended_when_it_is_seen_and_the_requested_one_is_not() -> None:
    before = running(None, "x1")
    play = Play(make_elastic(), before.events())
    play.silent.add(do.AskAllocation)
    play.run()
    states = {"b1": AllocationState.QUEUED, "b2": AllocationState.ENDED, "b3": AllocationState.QUEUED}
    play.give(AllocationsSeen(states=states))
    assert [event["allocation"] for event in play.events("booster_asked")] == ["b3"], "no number is used again"
    assert play.all(do.EndAllocation) == [do.EndAllocation(allocation="b1")]


# Losses.


def test_a_loss_waits_for_a_booster_that_is_about_to_join() -> None:
    play = running(None, "x1")
    play.give(AllocationsSeen(states={"b2": AllocationState.RUNNING}))
    play.lose("x1")
    assert len(started(play)) == 2
    play.passes(FAULTY_S / 2)
    play.boost("x2", "b2")
    assert started(play)[-1] == ("spare", ("n1", "n2", "x2"), ())
    play.train()
    play.commit(3)
    play.lose("x2")
    assert started(play)[-1][0] == "shrink", "nobody else is about to join"


def test_a_loss_does_not_wait_for_long() -> None:
    play = running(None, "x1")
    play.give(AllocationsSeen(states={"b2": AllocationState.RUNNING}))
    play.lose("x1")
    play.passes(FAULTY_S + 0.1)
    assert started(play)[-1] == ("shrink", ("n1", "n2"), ())


def test_survivors_that_no_longer_train_hold_what_they_have() -> None:
    play = Play(make_job(4, sizes=(4, 2), has_checkpoint=True))
    play.run()
    play.lose("n2")
    assert started(play)[-1] == ("shrink", ("n1", "n3"), ("n4",))
    assert play.all(do.StartAgents)[-1].holders == ("n4",)
    play.train()
    play.commit(5)
    assert play.state.holders == () and play.in_phase(Phase.READY) == ["n4"]
    assert not play.all(do.Dismiss)


# Other requests in the middle of a resize.


def resizing() -> Play:
    play = running()
    play.boost("x1", "b1")
    play.passes(SETTLE_S)
    assert play.state.requests.stop == "resize"
    return play


def test_a_halt_takes_the_place_of_a_resize() -> None:
    play = resizing()
    play.give(inputs.HaltAsked())
    play.end_well()
    assert play.end is not None and play.end.outcome == "halted"


def test_a_cancel_takes_the_place_of_a_resize() -> None:
    play = resizing()
    play.give(inputs.CancelAsked())
    assert play.end is not None and play.end.outcome == "cancelled"


@pytest.mark.parametrize("why", ["requeue", "preempted"])
def test_a_sigterm_at_the_base_takes_the_place_of_a_resize(why: str) -> None:
    play = resizing()
    play.why_terminated = why
    play.give(inputs.Terminated(node="n1"))
    assert play.all(do.AskWhyTerminated)
    play.end_well()
    assert play.end is not None and play.end.outcome == "stopped"


def test_a_fault_takes_the_place_of_a_resize() -> None:
    play = resizing()
    play.fail("n1")
    assert started(play)[-1][1] == ("n1", "n2", "x1")
    assert play.state.requests.stop is None and play.end is None


def test_two_boosters_leave_one_after_the_other() -> None:
    play = running(None, "x1", "x2")
    play.give(inputs.Terminated(node="x2"))
    play.give(inputs.Terminated(node="x1"))
    play.end_well()
    assert started(play)[-1] == ("shrink", ("n1", "n2"), ("x1", "x2"))


# Take-over.


def taken_over(play: Play, **fields: Any) -> Play:
    """Another supervisor, and the runners of all members come to it."""
    after = Play(make_elastic(is_take_over=True, **fields), play.events())
    after.now_s = play.now_s
    after.begin()
    attempt = play.attempt.number
    for node, member in sorted(play.state.members.table.items()):
        of = attempt if node in play.attempt.nodes else None
        after.give(inputs.NodeJoined(node=node, allocation=member.allocation, is_warm=True, attempt=of))
    return after


def test_a_resize_goes_on_after_a_take_over() -> None:
    play = taken_over(resizing())
    assert play.orders(Order.STOP)[0].nodes == ("n1", "n2")
    play.end_well()
    assert [event["outcome"] for event in play.events("attempt_end")] == ["resized"]
    assert started(play)[-1][:2] == ("grow", ("n1", "n2", "x1"))


def test_boosters_are_known_after_a_take_over() -> None:
    play = taken_over(running(None, "x1"))
    assert [(each.allocation, each.nodes) for each in play.state.boosters] == [("b1", ("x1",)), ("b2", ())]
    assert play.attempt.is_running and play.in_phase(Phase.TRAINING) == ["n1", "n2", "x1"]
    assert not play.all(do.AskAllocation)
    assert [each.job_id for each in play.state.boosters] == ["41", "42"]


@pytest.mark.parametrize("has_joined", [False, True], ids=["queued", "its runner has connected"])
def test_a_booster_whose_answer_the_former_supervisor_did_not_hear_is_asked_for_again(has_joined: bool) -> None:
    before = Play(make_elastic(boosters=1))
    before.silent.add(do.AskAllocation)
    before.run()
    step(before)
    if has_joined:
        before.boost("x1", "b1")
    play = taken_over(before, boosters=1)
    (asked,) = play.all(do.AskAllocation)
    assert asked.allocation == "b1" and not play.events("booster_asked"), "the same number"
    assert [(each.allocation, each.job_id) for each in play.state.boosters] == [("b1", "41")]
    if not has_joined:
        assert play.state.boosters[0].phase is BoosterPhase.QUEUED
    play.passes(SNOOZE_S)
    assert len(play.all(do.AskAllocation)) == 1


def test_a_booster_that_left_is_ended_after_a_take_over() -> None:
    before = running(None, "x1")
    before.give(inputs.Terminated(node="x1"))
    stop_and_train(before)
    play = taken_over(before)
    assert play.state.holders == ("x1",) and play.in_phase(Phase.LEAVING) == ["x1"]
    play.commit(9)
    assert play.all(do.StartAgents)[-1].holders == () and play.all(do.StartAgents)[-1].generation == 1
    assert play.all(do.EndAllocation) == [do.EndAllocation(allocation="b1")]


def test_boosters_are_forgotten_when_the_job_starts_again() -> None:
    before = running(None, "x1")
    play = Play(make_elastic(), before.events())
    play.begin()
    assert not play.state.boosters and play.in_phase(Phase.JOINING) == ["n1", "n2"]


def test_a_later_run_in_the_folder_begins_with_the_size_of_the_job_file() -> None:
    play = running(make_elastic(boosters=0, sizes=(2, 1)))
    play.give(inputs.ScaleAsked(nodes=1))
    end = {"event": "job_end", "outcome": "halted", "time": play.now_s}
    again = Play(make_elastic(boosters=0, sizes=(2, 1)), [*play.events(), end])
    again.run()
    assert len(again.attempt.nodes) == 2


# Boosters that cannot start.


def failed(play: Play, allocation: str, node: str) -> list[do.Command]:
    """The scheduler says that a booster has ended with an error of its own, on this node."""
    reason = "NonZeroExitCode"
    return play.give(
        AllocationsSeen(
            states={allocation: AllocationState.ENDED},
            reasons={allocation: reason},
            nodes={allocation: (node,)},
            failed=frozenset((allocation,)),
        )
    )


def test_a_booster_that_cannot_start_is_a_fault_with_its_cause_and_the_next_one_avoids_its_node() -> None:
    play = running(make_elastic(boosters=1, limits=PATIENT))
    failed(play, "b1", "x7")
    (fault,) = play.events("fault")
    assert (fault["kind"], fault["node"]) == ("booster_start", "x7") and "NonZeroExitCode" in fault["reason"]
    assert "attempt" not in fault and play.attempt.phase.value == "training"
    play.passes(SNOOZE_S)
    assert play.all(do.AskAllocation)[-1].exclude == ("n1", "n2", "x7")


def test_boosters_that_cannot_start_are_asked_for_less_and_less_often_until_one_starts() -> None:
    play = running(make_elastic(boosters=1, limits=PATIENT))
    waits = []
    for number in range(1, 7):
        failed(play, f"b{number}", f"x{number}")
        waits.append(play.state.asking.ask_s - play.now_s)
        play.passes(waits[-1])
        assert len(play.all(do.AskAllocation)) == number + 1
    assert waits == [SNOOZE_S, 2 * SNOOZE_S, 4 * SNOOZE_S, 8 * SNOOZE_S, AVOIDED_S, AVOIDED_S]
    play.boost("x9", "b7")
    ended(play, "b7")
    play.passes(SNOOZE_S)
    assert len(play.all(do.AskAllocation)) == 8


def test_a_node_on_which_a_booster_could_not_start_is_tried_again_later() -> None:
    play = running(make_elastic(boosters=1, limits=PATIENT))
    failed(play, "b1", "x7")
    play.passes(AVOIDED_S)
    ended(play, "b2", "CANCELLED")
    play.passes(SNOOZE_S)
    assert len(play.all(do.AskAllocation)) == 3
    assert play.all(do.AskAllocation)[-1].exclude == ("n1", "n2")


def test_a_node_whose_runner_never_connects_is_avoided_too() -> None:
    play = running(make_elastic(boosters=1, limits=PATIENT))
    play.give(AllocationsSeen(states={"b1": AllocationState.RUNNING}, nodes={"b1": ("x7",)}))
    play.passes(LATE_S)
    assert [fault["node"] for fault in play.events("fault")] == ["x7"]
    ended(play, "b1", "CANCELLED")
    play.passes(SNOOZE_S)
    assert "x7" in play.all(do.AskAllocation)[-1].exclude


def test_a_booster_that_is_cancelled_in_the_queue_is_no_fault() -> None:
    play = running(make_elastic(boosters=1, limits=PATIENT))
    ended(play, "b1", "cancelled")
    assert not play.events("fault")


# What the scheduler says.


def test_a_reason_that_is_not_the_usual_one_is_recorded_at_once() -> None:
    play = running(make_elastic(boosters=1, limits=PATIENT))
    reasons = ("Priority", "PartitionDown", "JobHeldUser", "Resources", "Priority")
    for reason in reasons:
        play.give(AllocationsSeen(states={"b1": AllocationState.QUEUED}, reasons={"b1": reason}))
    assert [event["reason"] for event in play.events("booster_waits")] == list(reasons[:-1])


def test_a_booster_that_a_user_cancels_is_not_preempted() -> None:
    play = running(make_elastic(boosters=1), "x1")
    play.give(inputs.Terminated(node="x1", why="cancelled"))
    assert [event["reason"] for event in play.events("node_leaving")] == ["cancelled"]
    assert play.events("resize")[-1]["reason"] == "cancelled"


def test_the_end_of_a_booster_says_when_another_is_asked_for() -> None:
    play = running(make_elastic(boosters=1), "x1")
    play.give(inputs.Terminated(node="x1"))
    stop_and_train(play)
    ended(play, "b1")
    assert play.events("booster_end")[-1]["again"] == play.state.asking.ask_s > play.now_s


# The base is smaller than was asked for.


def test_a_base_that_starts_on_fewer_nodes_reaches_the_size_by_more_boosters() -> None:
    play = Play(make_elastic(1, base_nodes=2, sizes=(4, 3, 2, 1)))
    play.run()
    step(play)
    assert len(play.all(do.AskAllocation)) == 3, "two above the base's size, and one in place of its second node"
    for number in (1, 2, 3):
        play.boost(f"x{number}", f"b{number}")
    play.passes(SETTLE_S)
    stop_and_train(play)
    assert len(play.attempt.nodes) == 4


def test_near_its_time_limit_a_base_that_has_lost_a_node_keeps_the_booster_without_which_it_could_not_train() -> None:
    play = Play(make_elastic(2, sizes=(4, 3, 2), limits=PATIENT))
    end_s = play.now_s + 900.0
    play.left_s = lambda now_s: end_s - now_s
    play.run()
    step(play)
    play.boost("x1", "b1")
    play.boost("x2", "b2")
    play.passes(SETTLE_S)
    stop_and_train(play)
    play.lose("n2")
    play.train()
    step(play, 3)
    play.passes(end_s - play.now_s - MARGIN_S - SHRINK_S + 1.0)
    assert [event["node"] for event in play.events("node_leaving")] == ["x2"]
    stop_and_train(play)
    assert play.attempt.nodes == ("n1", "x1")


def test_a_size_that_is_left_to_the_job_file_again() -> None:
    play = running()
    play.give(inputs.ScaleAsked(nodes=3))
    assert play.state.history.scale == 3
    play.give(inputs.ScaleAsked(nodes=None))
    assert play.state.history.scale is None
    assert len(play.all(do.AskAllocation)) == 3, "the one that was given back is asked for again"
    assert "nodes" not in play.events("scale_requested")[-1]
