"""Nodes for which all others wait: what the core records of them, and what the status says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from core_kit import Play, make_job

from launcher.core import inputs
from launcher.core.commands import Order
from launcher.diagnosis.slow_rank import RankTimes, Straggler
from launcher.history.fields import describe
from launcher.history.status import status_of
from launcher.job.straggler import StragglerSection
from launcher.supervisor.stragglers import Stragglers


def slow(node: str = "n2", rank: int = 1) -> inputs.StragglerSeen:
    found = Straggler(
        node=node, rank=rank, ranks=2, factor=1.2312, part="data", excess_s=0.0161, since_s=1_000_005.0, switch=None
    )
    return inputs.StragglerSeen(node=node, attempt=0, straggler=found)


WORDS = "rank 1 (and 1 more) works 1.23 times as long as the others, longer in data loading"


def test_a_slow_node_is_in_the_events_and_in_the_status_until_it_is_over() -> None:
    play = Play(make_job(has_checkpoint=True))
    play.run()
    play.give(inputs.Progress(attempt=0, step=120, slowest=120, is_active=True), slow())
    (event,) = play.events("straggler")
    assert (event["node"], event["rank"], event["ranks"], event["step"]) == ("n2", 1, 2, 120)
    assert (event["factor"], event["part"], event["since"]) == (1.231, "data", 1_000_005.0)
    assert describe(event) == f"n2 is slow at step 120: {WORDS}"
    status = status_of(play.events())
    assert status.slow["n2"].text() == f"{WORDS}: 16 ms more for each step"
    assert status.slow["n2"].step == 120
    play.give(inputs.StragglerGone(node="n2", attempt=0))
    assert not status_of(play.events()).slow


def test_the_next_attempt_begins_without_slow_nodes() -> None:
    events = [{"event": "attempt_start", "time": 1.0, "attempt": 0, "nodes": ["n1"], "rung": "start"}]
    events += [
        {"event": "straggler", "time": 2.0, "attempt": 0, "node": "n1", "rank": 0, "factor": 2.0, "part": "data"}
    ]
    assert status_of([{"event": "job_start", "time": 0.0}, *events]).slow
    assert not status_of([{"event": "job_start", "time": 0.0}, *events, {**events[0], "attempt": 1}]).slow


def test_each_attempt_is_judged_by_its_own_steps() -> None:
    stragglers = Stragglers(StragglerSection(steps=20), {})

    def looks(attempt: int, slow_rank: int | None, times: int) -> list[tuple[str, int]]:
        seen = []
        for now_s in range(times):
            steps = [(f"n{rank}", RankTimes(rank, 5, 0.0, 2.0 if rank == slow_rank else 1.0, 0.0)) for rank in range(3)]
            seen += [(each.node, each.attempt) for each in stragglers.look(attempt, steps, float(now_s))]
        return seen

    assert not looks(0, None, 12)
    assert looks(1, 1, 12) == [("n1", 1)]
    assert not looks(2, 1, 3), "it has too few steps"
    assert looks(2, 1, 12) == [("n1", 2)]
    assert not list(stragglers.look(None, (), 20.0))


def test_a_slow_network_is_a_problem_of_the_job_told_once() -> None:
    stragglers = Stragglers(StragglerSection(steps=20), {})
    play = trains()
    for now_s in range(100):
        wait_s = 0.5 if now_s < 50 else 1.0
        steps = [(f"n{rank}", RankTimes(rank, 5, 0.0, 1.0, wait_s)) for rank in range(3)]
        play.give(*stragglers.look(0, steps, float(now_s)))
    (problem,) = play.events("problem")
    assert "communication takes 500 ms more on all ranks" in problem["what"] and "node" not in problem
    assert "allreduce_pairs" in describe(problem)


def trains(**job: Any) -> Play:
    """Two nodes train, n3 is a spare. A step is finished and saved."""
    play = Play(make_job(3, train=2, has_checkpoint=True, **job))
    play.run()
    play.give(inputs.FirstStep(node="n1", attempt=0, step=1, time_s=play.now_s))
    play.commit(10)
    return play


def goes_on(play: Play, step: int) -> None:
    """All ranks stop at this step, and the next attempt has committed one of its own."""
    play.end_well(step=step)
    play.train()
    play.give(inputs.FirstStep(node="n1", attempt=play.attempt.number, step=step + 1, time_s=play.now_s))


def test_a_spare_takes_the_place_of_a_slow_node_at_an_agreed_step() -> None:
    play = trains(swaps_stragglers=True)
    play.give(slow("n2", rank=1))
    (leaving,) = play.events("node_leaving")
    assert (leaving["node"], leaving["cause"]) == ("n2", "slow")
    assert leaving["reason"] == f"slow: {WORDS}"
    assert play.orders(Order.STOP), "all ranks stop at one step, nothing is lost"
    goes_on(play, 12)
    assert [tuple(event["nodes"]) for event in play.events("attempt_start")] == [("n1", "n2"), ("n1", "n3")]
    assert not play.events("fault")


def test_slow_nodes_are_only_reported_unless_the_job_file_says_swap() -> None:
    play = trains()
    play.give(slow("n2", rank=1))
    assert play.events("straggler") and not play.events("node_leaving", "problem")


def test_a_rank_that_is_slow_on_the_spare_too_has_more_work_and_is_swapped_no_more() -> None:
    play = trains(swaps_stragglers=True)
    play.give(slow("n2", rank=1))
    goes_on(play, 12)
    found = slow("n3", rank=1)
    play.give(inputs.StragglerSeen(node="n3", attempt=1, straggler=found.straggler))
    problem = play.events("problem")[-1]
    assert problem["what"] == "rank 1 is slow on n3 as it was on n2: it has more work than the others"
    assert len(play.events("node_leaving")) == 1


def test_a_node_below_a_slow_switch_is_not_swapped() -> None:
    play = trains(swaps_stragglers=True)
    play.give(inputs.StragglerSeen(node="n2", attempt=0, straggler=replace(slow().straggler, switch="leaf1")))
    assert "most nodes of its switch are slow" in play.events("problem")[-1]["what"]
    assert not play.events("node_leaving")


def test_without_a_spare_the_job_stays_on_the_slow_node_and_says_so() -> None:
    play = Play(make_job(2, has_checkpoint=True, swaps_stragglers=True))
    play.run()
    play.give(inputs.FirstStep(node="n1", attempt=0, step=1, time_s=play.now_s))
    play.commit(10)
    play.give(slow("n2", rank=1))
    assert play.events("problem")[-1]["what"] == "the job stays on n2: no spare is free"
