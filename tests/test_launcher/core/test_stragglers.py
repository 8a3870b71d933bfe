"""Nodes for which all others wait: what the core records of them, and what the status says."""

from __future__ import annotations

from core_kit import Play, make_job

from launcher.core import inputs
from launcher.diagnosis.slow_rank import RankTimes, Straggler
from launcher.history.status import status_of
from launcher.history.view import describe
from launcher.job.straggler import StragglerSection
from launcher.supervisor.stragglers import Stragglers


def slow(node: str = "n2", rank: int = 1) -> inputs.StragglerSeen:
    found = Straggler(
        node=node, rank=rank, ranks=2, factor=1.2349, part="data", excess_s=0.0161, since_s=1_000_005.0, switch=None
    )
    return inputs.StragglerSeen(node=node, attempt=0, straggler=found)


def test_a_slow_node_is_in_the_events_and_in_the_status_until_it_is_over() -> None:
    play = Play(make_job(has_checkpoint=True))
    play.run()
    play.give(inputs.Progress(attempt=0, step=120, slowest=120, is_active=True), slow())
    (event,) = play.events("straggler")
    assert (event["node"], event["rank"], event["ranks"], event["step"]) == ("n2", 1, 2, 120)
    assert (event["factor"], event["part"], event["since"]) == (1.235, "data", 1_000_005.0)
    assert describe(event) == (
        "rank 1 and 1 more on n2 holds all others up at step 120: 1.235 times the work of a step, more data"
    )
    status = status_of(play.events())
    assert status.slow["n2"].text() == "rank 1 and 1 more: 1.23 times the work of a step, more data, 16 ms a step"
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
