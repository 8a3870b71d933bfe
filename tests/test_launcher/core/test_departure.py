"""Nodes that are to be left before they fail: a spare takes their place at a step that all ranks agree on."""

from __future__ import annotations

from typing import Any

from core_kit import Play, make_job

from launcher.core import commands as do
from launcher.core import inputs
from launcher.core.commands import Order
from launcher.core.departure import advance, mark
from launcher.core.marks import DepartureCause
from launcher.core.members import Phase
from launcher.core.state import ElasticLimits, JobFacts, RestartLimits
from launcher.core.turn import Turn

BROKEN_FAN = "drained by root: a broken fan"
PATIENT = RestartLimits(hang_timeout_s=1e6)


def make(nodes: int = 4, train: int = 3, **fields: Any) -> JobFacts:
    given: dict[str, Any] = {"has_checkpoint": True, "limits": PATIENT}
    return make_job(nodes, train=train, **given | fields)


def running(job: JobFacts | None = None, *, step: int = 1) -> Play:
    """A job whose attempt has finished a step."""
    play = Play(job or make())
    play.run()
    first_step(play, step)
    return play


def first_step(play: Play, step: int) -> None:
    node = play.attempt.nodes[0]
    play.give(inputs.FirstStep(node=node, attempt=play.attempt.number, step=step, time_s=play.now_s))


def drain(play: Play, **reasons: str) -> list[do.Command]:
    """The scheduler has drained these nodes, and no others."""
    return play.give(inputs.NodesDrained(reasons=reasons))


def stop_and_train(play: Play, step: int) -> None:
    """All ranks stop as asked, at this step, and the next attempt goes on from it."""
    play.commit(step)
    play.end_well(step=step)
    play.train()
    first_step(play, step + 1)


def started(play: Play) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """The attempts: rung, nodes and holders."""
    events = play.events("attempt_start")
    return [(each["rung"], tuple(each["nodes"]), tuple(each.get("holders", ()))) for each in events]


def renewed(play: Play) -> None:
    """The agents without holders are up."""
    generation = play.state.agents.generation
    play.give(inputs.AgentsRejoined(attempt=play.attempt.number, generation=generation, step=1))


def test_a_drained_node_is_left_at_an_agreed_step_and_a_spare_takes_its_position() -> None:
    play = running()
    drain(play, n2=BROKEN_FAN)
    assert [(each["node"], each["cause"], each["reason"]) for each in play.events("node_leaving")] == [
        ("n2", "drained", BROKEN_FAN)
    ]
    assert len(play.orders(Order.STOP)) == 1
    stop_and_train(play, 7)
    assert started(play) == [("start", ("n1", "n2", "n3"), ()), ("spare", ("n1", "n4", "n3"), ("n2",))]
    assert [each["outcome"] for each in play.events("attempt_end")] == ["resized"]
    assert not play.events("fault", "resize"), "nothing has failed, and the size is the same"


def test_the_node_serves_its_memory_until_the_new_attempt_has_committed_and_is_then_out() -> None:
    play = running()
    drain(play, n2=BROKEN_FAN)
    stop_and_train(play, 7)
    assert not play.out and play.in_phase(Phase.READY) == ["n2"]
    play.commit(8)
    assert play.events("holders_released") and not play.out, "the agents without it are not up yet"
    renewed(play)
    assert play.out == {"n2": BROKEN_FAN}
    assert do.Dismiss(node="n2", forget=True) in play.commands
    assert play.events("node_out")[0]["cause"] == "drained"
    assert play.all(do.GiveBack) == [do.GiveBack(node="n2")], "the scheduler has it back"


def test_a_node_of_a_booster_is_left_too_and_its_booster_ends() -> None:
    job = make(
        3, 2, sizes=(3, 2), base_nodes=2, booster_nodes=1, most_boosters=1,
        allocations=dict.fromkeys(("n1", "n2", "n3"), "17"), elastic=ElasticLimits(scaling_timeout_s=1.0),
    )  # fmt: skip
    play = running(job)
    play.boost("x1", "b1")
    play.passes(2.0)
    stop_and_train(play, 7)
    assert play.attempt.nodes == ("n1", "n2", "x1")
    play.commit(8)
    drain(play, x1=BROKEN_FAN)
    stop_and_train(play, 9)
    assert play.attempt.nodes == ("n1", "n2", "n3")
    play.commit(10)
    renewed(play)
    assert play.out.keys() <= {"x1"} and not play.all(do.GiveBack)
    assert [each.allocation for each in play.all(do.EndAllocation)] == ["b1"]


def test_a_job_that_has_lost_its_boosters_and_trains_on_spares_says_why_it_stays() -> None:
    job = make(
        4, 2, sizes=(4, 3, 2), base_nodes=2, booster_nodes=1, most_boosters=2,
        allocations=dict.fromkeys(("n1", "n2", "n3", "n4"), "17"), elastic=ElasticLimits(scaling_timeout_s=1.0),
    )  # fmt: skip
    play = running(job)
    play.boost("x1", "b1")
    play.boost("x2", "b2")
    play.passes(2.0)
    stop_and_train(play, 7)
    play.lose("x1")
    play.passes(1.0)
    play.train()
    first_step(play, 8)
    assert play.attempt.nodes == ("n1", "n2", "n3"), "a spare of the base, as a booster was there"
    play.lose("x2")
    drain(play, n1=BROKEN_FAN)
    assert play.in_phase(Phase.READY) == ["n4"] and not play.events("node_leaving")
    assert play.events("problem")[-1]["what"] == "the job stays on n1: it would train on fewer nodes"


def test_the_events_are_on_disk_before_ranks_are_stopped() -> None:
    play = running()
    play.silent = {do.Settle}
    drain(play, n2=BROKEN_FAN)
    assert play.events("node_leaving") and not play.orders(Order.STOP)
    play.give(inputs.EventsWritten())
    assert play.orders(Order.STOP)


def test_without_a_spare_the_job_stays_and_says_so_once() -> None:
    play = running(make(3, 3))
    drain(play, n2=BROKEN_FAN)
    drain(play, n2=BROKEN_FAN, n3="drained by root: a new kernel")
    play.passes(300.0)
    problems = [(each["node"], each["what"], each["detail"]) for each in play.events("problem")]
    assert problems == [
        ("n2", "the job stays on n2: no spare is free", BROKEN_FAN),
        ("n3", "the job stays on n3: no spare is free", "drained by root: a new kernel"),
    ]
    assert not play.events("node_leaving") and not play.orders(Order.STOP)


def test_a_job_never_becomes_smaller_by_a_departure() -> None:
    play = running(make(3, 3, sizes=(3, 2)))
    drain(play, n2=BROKEN_FAN)
    play.passes(300.0)
    assert len(started(play)) == 1 and not play.events("node_leaving")


def test_a_spare_that_comes_later_takes_the_place() -> None:
    play = running()
    play.lose("n4")
    drain(play, n2=BROKEN_FAN)
    assert not play.events("node_leaving") and len(play.events("problem")) == 1
    play.come("n4")
    assert [each["node"] for each in play.events("node_leaving")] == ["n2"]


def test_a_spare_that_has_not_loaded_torch_is_waited_for() -> None:
    play = Play(make())
    play.begin()
    play.come("n1", "n2", "n3")
    play.give(inputs.NodeJoined(node="n4"))
    play.train()
    first_step(play, 1)
    drain(play, n2=BROKEN_FAN)
    assert not play.events("node_leaving", "problem")
    play.give(inputs.NodeWarm(node="n4"))
    assert play.events("node_leaving")


def test_a_marked_spare_trains_only_if_too_few_others_are_left_and_this_is_said_once() -> None:
    play = running(make(5, 3))
    play.give(inputs.NodeIncident(node="n4", reason="gpu_ecc: 2 uncorrectable"))
    play.passes(300.0)
    assert [(each["node"], each["what"], each["detail"]) for each in play.events("problem")] == [
        ("n4", "spare n4 trains only if too few other nodes are left", "gpu_ecc: 2 uncorrectable")
    ]
    play.lose("n1")
    play.train()
    assert play.attempt.nodes == ("n5", "n2", "n3")
    play.lose("n2")
    play.passes(10.0)
    assert play.attempt.nodes == ("n5", "n4", "n3"), "better than a requeue"


def test_a_spare_that_is_drained_itself_takes_no_place() -> None:
    play = running()
    drain(play, n2=BROKEN_FAN, n4="drained by root: a new kernel")
    assert not play.events("node_leaving") and not play.out
    assert "the job stays on n2: no spare is free" in [each["what"] for each in play.events("problem")]


def test_a_node_that_is_back_in_service_is_not_left() -> None:
    play = running()
    play.lose("n4")
    drain(play, n2=BROKEN_FAN)
    drain(play)
    play.come("n4")
    assert not play.events("node_leaving")
    drain(play, n2=BROKEN_FAN)
    assert play.events("node_leaving")


def test_an_incident_of_the_nodes_own_health_check_is_a_cause() -> None:
    play = running()
    play.give(inputs.NodeIncident(node="n3", reason="gpu_ecc: 2 uncorrectable"))
    assert [(each["node"], each["cause"]) for each in play.events("node_leaving")] == [("n3", "incident")]


def test_an_incident_that_is_over_is_no_cause() -> None:
    play = running()
    play.lose("n4")
    play.give(inputs.NodeIncident(node="n3", reason="gpu_ecc: 2 uncorrectable"))
    play.give(inputs.NodeIncident(node="n3", reason=None))
    play.come("n4")
    assert not play.events("node_leaving")


def test_a_node_that_is_slow_is_left_by_the_same_way() -> None:
    play = running()
    turn = Turn(play.state, play.now_s)
    mark(turn, "n3", DepartureCause.SLOW, "1.4 times slower than the others")
    advance(turn)
    leaving, settle = turn.commands
    assert isinstance(leaving, do.Record) and leaving.event == "node_leaving" and leaving.fields["cause"] == "slow"
    assert settle == do.Settle()


def test_two_causes_of_one_node_are_independent() -> None:
    play = running()
    play.lose("n4")
    play.give(inputs.NodeIncident(node="n3", reason="gpu_ecc: 2 uncorrectable"))
    drain(play, n3=BROKEN_FAN)
    drain(play)
    play.come("n4")
    assert [(each["node"], each["cause"]) for each in play.events("node_leaving")] == [("n3", "incident")]


def test_several_drained_nodes_are_left_together_as_far_as_spares_go() -> None:
    play = running(make(5, 3))
    drain(play, n1=BROKEN_FAN, n2=BROKEN_FAN, n3=BROKEN_FAN)
    assert [each["node"] for each in play.events("node_leaving")] == ["n1", "n2"]
    assert len(play.orders(Order.STOP)) == 1
    stop_and_train(play, 7)
    assert play.attempt.nodes == ("n4", "n5", "n3")


def test_nothing_is_left_before_the_attempt_has_made_a_step() -> None:
    play = Play(make(), past=[{"event": "job_start"}, {"event": "first_step", "seconds": 1.0}])
    play.run()
    drain(play, n2=BROKEN_FAN)
    assert not play.events("node_leaving"), "its stop could save nothing new"
    first_step(play, 1)
    assert play.events("node_leaving")


def test_without_checkpoints_a_node_is_not_left_because_steps_would_be_lost() -> None:
    play = running(make(has_checkpoint=False))
    drain(play, n2=BROKEN_FAN)
    assert not play.events("node_leaving") and not play.orders(Order.STOP)
    assert [each["what"] for each in play.events("problem")] == [
        "the job stays on n2: without `checkpoint` a stop would lose steps"
    ]


def test_a_fault_during_the_stop_leaves_the_node_too_where_spares_suffice() -> None:
    play = running(make(5, 3))
    drain(play, n2=BROKEN_FAN)
    play.lose("n1")
    play.train()
    assert started(play)[-1] == ("spare", ("n4", "n5", "n3"), ("n2",))
    assert [each["node"] for each in play.events("node_leaving")] == ["n2"], "it is said once"


def test_a_lost_node_has_the_spare_first() -> None:
    play = running()
    drain(play, n2=BROKEN_FAN)
    play.lose("n1")
    play.train()
    assert play.attempt.nodes == ("n4", "n2", "n3"), "a drained node is better than a requeue"
    assert play.end is None


def test_after_a_fault_marked_nodes_make_room_for_spares_without_another_stop() -> None:
    play = running(make(5, 3))
    play.silent = {do.ProbeFolder}
    play.lose("n1")
    drain(play, n2=BROKEN_FAN)
    play.give(inputs.FolderProbed())
    play.train()
    assert play.attempt.nodes == ("n4", "n5", "n3")
    assert [each["node"] for each in play.events("node_leaving")] == ["n2"] and not play.orders(Order.STOP)


def test_a_supervisor_that_takes_over_carries_the_departure_on() -> None:
    play = running()
    drain(play, n2=BROKEN_FAN)
    past = play.events()
    later = Play(make(is_take_over=True), past)
    later.begin()
    later.come("n1", "n2", "n3", "n4", attempt=0)
    assert later.orders(Order.STOP), "the ranks were about to stop"
    stop_and_train(later, 7)
    assert later.attempt.nodes == ("n1", "n4", "n3"), "nobody has told it again that n2 is drained"
    later.commit(8)
    renewed(later)
    assert later.out == {"n2": BROKEN_FAN}


def test_a_requeue_may_give_back_a_node_that_was_only_drained() -> None:
    play = running(make(4, 3, can_requeue=True))
    drain(play, n2=BROKEN_FAN)
    stop_and_train(play, 7)
    play.commit(8)
    renewed(play)
    play.lose("n1")
    play.passes(10.0)
    assert [each.exclude for each in play.all(do.Requeue)] == [("n1",)]
    again = Play(make(4, 3), [*play.events(), {"event": "job_start"}])
    assert "n2" not in again.begin() and "n2" not in again.out


def test_a_departure_counts_as_no_restart() -> None:
    play = running()
    drain(play, n2=BROKEN_FAN)
    stop_and_train(play, 7)
    assert play.state.history.gains.restarts == 0 and play.state.history.gains.fruitless == 0


def test_a_user_who_ends_the_job_is_not_kept_waiting_by_a_departure() -> None:
    play = running()
    drain(play, n2=BROKEN_FAN)
    play.give(inputs.CancelAsked())
    assert play.end is not None and play.end.outcome == "cancelled"
