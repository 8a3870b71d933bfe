"""Runners that are started again where the scheduler ends all of them for one node's sake."""

from __future__ import annotations

import pytest
from core_kit import Play, make_job

from launcher.core import commands as do
from launcher.core.inputs import LaunchEnded, NodeJoined
from launcher.core.launch import BLIND_TRIES, MISSING_S
from launcher.core.members import Phase

NODES = ("n1", "n2", "n3", "n4")


def begun(train: int, *, come: tuple[str, ...] = ()) -> Play:
    """A job whose runners are being started; these have come."""
    play = Play(make_job(len(NODES), train=train))
    play.begin()
    if come:
        play.come(*come)
    return play


def fails(play: Play, failed: dict[str, str] | None = None) -> None:
    """What launches the runners has ended."""
    play.failed = failed or {}
    play.give(LaunchEnded(failed=play.failed))


def started(play: Play) -> list[tuple[str, ...]]:
    return [command.nodes for command in play.all(do.StartRunners)]


def test_a_node_that_refuses_its_runner_is_out_and_the_others_start_again() -> None:
    play = begun(3, come=("n1", "n2"))
    play.failed = {"n3": "no answer"}
    play.lose("n1")  # n2's is yet to be heard of
    assert started(play) == [NODES, ("n1", "n2", "n4")]
    assert play.out == {"n3": "no answer"} and play.in_phase(Phase.JOINING) == ["n1", "n2", "n4"]
    assert [command.node for command in play.all(do.Leave)] == ["n1", "n2", "n4"]
    assert len(play.all(do.ReleaseRunners)) == 1 and len(play.events("problem")) == 1
    play.lose("n2")  # the old one's end
    assert play.out == {"n3": "no answer"} and play.in_phase(Phase.JOINING) == ["n1", "n2", "n4"]
    play.failed = {}
    play.come("n1", "n2")
    play.lose("n2")  # a new one's: its node is lost
    assert play.out.keys() == {"n2", "n3"} and play.state.members["n2"].is_lost


def test_it_is_noticed_where_no_runner_had_come_yet() -> None:
    play = begun(2)
    fails(play, {"n4": "no answer"})
    assert started(play)[1:] == [("n1", "n2", "n3")]


def test_a_node_that_is_lost_while_the_others_start_is_lost_where_the_launcher_says_nothing() -> None:
    play = begun(3, come=("n1", "n2"))
    play.lose("n1")
    assert len(play.all(do.AskLaunch)) == 1 and len(started(play)) == 1
    assert play.out.keys() == {"n1"} and play.state.members["n1"].is_lost
    play.come("n3", "n4")
    assert play.attempt.nodes == ("n2", "n3", "n4")


def test_what_the_launcher_says_while_it_is_asked_counts_for_the_lost_node() -> None:
    play = begun(3, come=("n1", "n2"))
    play.silent = {do.AskLaunch}
    play.lose("n1")
    assert not play.out and len(started(play)) == 1
    play.give(LaunchEnded(failed={"n3": "no answer"}))
    assert play.out == {"n3": "no answer"} and started(play)[1:] == [("n1", "n2", "n4")]
    play.give(LaunchEnded(failed={}, has_ended=False))
    assert play.out == {"n3": "no answer"}, "the answer comes after it was started again"


def test_a_runner_that_is_still_absent_when_training_begins_is_given_up_later() -> None:
    play = begun(2, come=("n1", "n2", "n3"))
    play.passes(3.0)
    assert play.attempt.nodes == ("n1", "n2")
    play.passes(MISSING_S - 1.0)
    assert not play.out and play.in_phase(Phase.JOINING) == ["n4"]
    play.passes(1.0)
    assert play.out == {"n4": "its runner did not start; see log/runner-n4.log and log/srun-runners.log"}


def test_a_runner_that_comes_while_others_train_is_a_spare() -> None:
    play = begun(2, come=("n1", "n2", "n3"))
    play.passes(3.0)
    play.give(NodeJoined(node="n4"))
    play.passes(2 * MISSING_S)
    assert not play.out and play.in_phase(Phase.READY) == ["n3", "n4"]


def test_too_few_nodes_are_not_started_again() -> None:
    play = begun(4)
    fails(play, {"n4": "no answer"})
    assert len(started(play)) == 1 and play.state.members.usable + play.state.members.joining_count < 4


def test_where_nobody_is_named_those_that_have_not_come_are_tried_a_few_times() -> None:
    play = begun(2, come=("n1", "n2", "n3"))
    for _ in range(BLIND_TRIES + 1):
        fails(play)
    assert started(play)[1:] == [("n4",)] * BLIND_TRIES and play.in_phase(Phase.READY) == ["n1", "n2", "n3"]


@pytest.mark.parametrize("named", [{}, {"n3": "no answer"}])
def test_once_it_is_over_a_lost_runner_is_a_lost_node(named: dict[str, str]) -> None:
    play = begun(2, come=NODES)
    assert play.attempt.nodes == ("n1", "n2") and len(play.all(do.ReleaseRunners)) == 1
    play.failed = named
    play.lose("n1")
    fails(play, named)
    assert len(started(play)) == 1 and play.out.keys() == {"n1"}


def test_nodes_that_can_be_given_no_process_are_out_before_runners_are_started() -> None:
    play = Play(make_job(4, train=2))
    play.unusable = {"n2": "drained"}
    play.begin()
    assert started(play) == [("n1", "n3", "n4")] and play.out == {"n2": "drained"}
    assert not play.state.members["n2"].is_lost


def test_a_scheduler_that_does_not_answer_puts_nobody_out() -> None:
    play = Play(make_job(4, train=2))
    play.unusable, play.scheduler_error = {"n2": "drained"}, "no answer"
    play.begin()
    assert started(play) == [NODES] and not play.out
