"""The simulator finds what is broken on purpose, says the same twice, and shrinks what fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from launcher import core
from launcher.core import departure
from launcher.core.commands import Order, Record, Send, SetTimer, Settle
from launcher.core.inputs import CancelAsked, TerminationExplained
from simulation.campaign import run_one, run_seeds
from simulation.injection import INJECT
from simulation.schedule import KINDS, Fault, Schedule, Setup, draw
from simulation.shrink import shrink
from simulation.single_faults import FAULTS
from simulation.trace import Trace
from simulation.world import World

Decide = Callable[..., Any]


def without(kind: type, is_dropped: Callable[[Any], bool] = lambda command: True) -> Decide:
    """A core that loses some of its commands."""

    def decide(state: Any, given: Any, now_s: float) -> Any:
        state, todo = core.decide(state, given, now_s)
        return state, tuple(command for command in todo if not (type(command) is kind and is_dropped(command)))

    return decide


def deaf_to(kind: type) -> Decide:
    """A core that ignores an input."""

    def decide(state: Any, given: Any, now_s: float) -> Any:
        return (state, ()) if type(given) is kind else core.decide(state, given, now_s)

    return decide


BROKEN = {
    "loses its timers": (without(SetTimer), "every wait has its deadline"),
    "kills no workers": (without(Send, lambda command: command.order is Order.KILL), "out for a true reason"),
    "records nothing lost": (without(Record, lambda command: command.event == "node_out"), "replay gives the state"),
    "never settles": (without(Settle), "what is recorded is done"),
    "ignores a cancel": (deaf_to(CancelAsked), "what is reported has its effect"),
    "ignores what a SIGTERM means": (deaf_to(TerminationExplained), "what is reported has its effect"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_core_that_is_broken_on_purpose_is_found(name: str) -> None:
    decide, rule = BROKEN[name]
    for first in range(0, 2000, 20):
        tally = run_seeds(range(first, first + 20), decide=decide)
        if any(failure.rule == rule for failure in tally.failures):
            return
    pytest.fail(f"a core that {name} breaks no {rule!r} in 2000 schedules")


DRAINED = Schedule(Setup(nodes=2, spares=1, chunks=12), (Fault("node_drained", 40.0, node=1, lasts_s=400.0),))


def test_a_node_that_is_drained_is_left_and_nothing_is_lost() -> None:
    world = World(DRAINED)
    assert world.run() == ("done", "")
    events = world.folder.events
    (leaving,) = (event for event in events if event["event"] == "node_leaving")
    resized = next(event for event in events if event["event"] == "attempt_end" and event["outcome"] == "resized")
    first, second = (event for event in events if event["event"] == "attempt_start")
    restored = [event.get("step") for event in events if event["event"] == "restore"][-1]
    assert leaving["node"] in first["nodes"] and leaving["node"] not in second["nodes"]
    assert (len(second["nodes"]), restored) == (len(first["nodes"]), resized["step"])
    assert not [event for event in events if event["event"] == "fault"]


def test_a_core_that_stays_on_a_drained_node_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departure, "advance", lambda turn: None)
    failure = run_one(DRAINED)
    assert failure is not None and failure.rule == "a node is left while a spare is free"


def test_a_run_is_the_same_twice() -> None:
    for seed in range(40, 60):
        traces = [Trace(), Trace()]
        for trace in traces:
            run_one(draw(seed), trace=trace)
        assert traces[0].lines == traces[1].lines


def test_every_kind_of_fault_is_drawn_and_can_be_injected() -> None:
    assert set(KINDS) == set(INJECT)
    drawn = {fault.kind for seed in range(1000) for fault in draw(seed).faults}
    assert drawn == set(KINDS)


def test_a_job_without_faults_ends_well() -> None:
    for setup in (
        Setup(),
        Setup(nodes=4, spares=2),
        Setup(has_checkpoint=False),
        Setup(is_local=True),
        Setup(is_slow=True),
    ):
        world = World(Schedule(setup))
        assert world.run() == ("done", "")


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_costs_what_it_must(name: str) -> None:
    schedule, cost = FAULTS[name]
    failure = run_one(schedule, cost=cost)
    assert failure is None, failure.text


def test_a_failing_schedule_is_shrunk_to_the_fault_that_matters() -> None:
    faults = (Fault("worker_fails", 12.0), Fault("node_crashes", 30.0, node=2, lasts_s=9.0), Fault("agent_dies", 40.0))
    schedule = Schedule(Setup(seed=3, nodes=3, spares=2, chunks=5), faults)

    def fails(candidate: Schedule) -> bool:
        return any(fault.kind == "node_crashes" for fault in candidate.faults)

    simplest = shrink(schedule, fails)
    assert simplest == Schedule(Setup(seed=3), (Fault("node_crashes", 0.0, lasts_s=0.0),))
    assert eval(str(simplest)) == simplest
