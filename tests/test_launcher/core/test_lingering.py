"""The next attempt waits for killed processes that are still ending or hold GPU memory, or does without the node."""

from __future__ import annotations

from core_kit import Play, make_job

from launcher.core import inputs
from launcher.core.members import Phase
from launcher.core.teardown import KILL_CONFIRM_S

HELD = "GPU 0: 61440 MiB of process 1711"
WAIT_S = 30.0


def killing(nodes: int = 3, train: int = 2) -> Play:
    """An attempt that has failed on n1; n2 has ended its workers and does not confirm it yet."""
    play = Play(make_job(nodes, train=train))
    play.run()
    play.dead = {"n2"}
    play.fail("n1")
    play.passes(1.0)
    play.give(inputs.Lingering(node="n2", attempt=0, held=HELD, wait_s=WAIT_S))
    return play


def test_a_node_whose_memory_is_not_free_yet_is_waited_for_and_the_user_is_told() -> None:
    play = killing()
    play.passes(WAIT_S - 1.0)
    assert not play.out and len(play.events("attempt_start")) == 1, "it has said that it waits"
    (problem,) = play.events("problem")
    assert (problem["node"], problem["detail"]) == ("n2", HELD) and "waits up to 30 s" in problem["what"]
    play.give(inputs.WorkersKilled(node="n2", attempt=0))
    assert play.attempt.number == 1 and play.attempt.nodes == ("n1", "n2")


def test_a_node_whose_memory_is_never_freed_is_out_with_that_reason_and_a_spare_takes_its_place() -> None:
    play = killing()
    play.give(inputs.WorkersKilled(node="n2", attempt=0, held=HELD))
    assert play.out["n2"].startswith(HELD) and "nvidia-smi -r" in play.out["n2"]
    assert play.attempt.nodes == ("n1", "n3")


def test_a_node_with_processes_that_never_end_is_out_and_a_spare_takes_its_place() -> None:
    play = killing()
    play.give(inputs.WorkersKilled(node="n2", attempt=0, left=(1711,)))
    assert play.out["n2"] == "processes [1711] do not end after SIGKILL; reboot the node"
    assert play.attempt.nodes == ("n1", "n3")


def test_a_node_that_says_nothing_more_is_out_after_its_wait() -> None:
    play = killing()
    play.passes(WAIT_S + KILL_CONFIRM_S + 1.0)
    assert "did not confirm" in play.out["n2"]


def test_at_the_jobs_end_nobody_waits_for_memory() -> None:
    play = Play(make_job(2))
    play.run()
    play.dead = {"n2"}
    play.give(inputs.CancelAsked())
    play.give(inputs.Lingering(node="n2", attempt=0, held=HELD, wait_s=WAIT_S))
    assert play.end is not None and play.end.outcome == "cancelled" and not play.events("problem")


def test_a_node_that_comes_back_with_held_memory_stays_out() -> None:
    play = Play(make_job(3, train=2))
    play.run()
    play.lose("n2")
    play.train()
    play.dead = {"n2"}
    play.come("n2", attempt=0)
    play.give(inputs.WorkersKilled(node="n2", attempt=0, held=HELD))
    assert play.in_phase(Phase.OUT) == ["n2"] and not play.events("node_back")
