"""The driver's word with the scheduler about boosters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest

from launcher.core.commands import AskAllocation, EndAllocation
from launcher.core.inputs import AllocationAsked, AllocationsSeen, AllocationState, Input, Terminated
from launcher.core.members import Member, Members
from launcher.core.state import Booster, BoosterPhase, JobFacts, State
from launcher.scheduler.cluster import SeenAllocation
from launcher.supervisor import allocations as allocations_module
from launcher.supervisor.allocations import Allocations
from slurm import SlurmError

QUEUED, RUNNING, ENDED = AllocationState.QUEUED, AllocationState.RUNNING, AllocationState.ENDED
ASK = AskAllocation(allocation="b9", nodes=1, exclude=("n1",))
DEADLINE_S = 20.0


class Scheduler:
    """A scheduler's boosters: number -> state."""

    def __init__(self, **states: AllocationState) -> None:
        self.states = dict(states)
        self.refuses = False
        self.is_silent = False
        self.answers = asyncio.Event()
        self.answers.set()
        self.looks: list[set[str]] = []

    async def ask_allocation(
        self, allocation: str, nodes: int, exclude: Collection[str], environment: Mapping[str, str]
    ) -> str:
        await self.answers.wait()
        self.states.setdefault(allocation, QUEUED)
        if self.refuses:
            raise SlurmError("no answer within 30 s")
        return f"job-{allocation}"

    async def allocations(self, known: Collection[str]) -> dict[str, SeenAllocation]:
        if self.is_silent:
            raise SlurmError("no answer within 30 s")
        self.looks.append({*known})
        return {name: SeenAllocation(self.states.get(name, ENDED), "why") for name in {*known, *self.states}}

    async def end_allocation(self, name: str) -> None:
        if self.is_silent:
            raise SlurmError("no answer within 30 s")
        if name in self.states:
            self.states[name] = ENDED


def play(
    scene: Callable[[Scheduler, Allocations, asyncio.Queue[Input]], Any], *known: str, **states: AllocationState
) -> None:
    """Plays a scene with a scheduler that has these boosters; those of `known` have been recorded."""

    async def run() -> None:
        scheduler, inbox = Scheduler(**states), asyncio.Queue[Input]()
        cluster: Any = scheduler
        allocations = Allocations(cluster, inbox.put_nowait)
        following = asyncio.create_task(allocations.follow([Booster(allocation=number) for number in known]))
        try:
            await asyncio.wait_for(scene(scheduler, allocations, inbox), DEADLINE_S)
        finally:
            following.cancel()

    asyncio.run(run())


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocations_module, "LOOK_S", 0.01)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def test_those_of_an_earlier_start_are_reported_until_they_have_ended() -> None:
    async def scene(scheduler: Scheduler, allocations: Allocations, inbox: asyncio.Queue[Input]) -> None:
        for _ in range(2):
            assert await inbox.get() == AllocationsSeen(states={"b2": QUEUED}, reasons={"b2": "why"})
        await allocations.end(EndAllocation(allocation="b2"))
        await until(lambda: not inbox.empty() and inbox.get_nowait().states == {"b2": ENDED})

    play(scene, b2=QUEUED)


def test_one_that_the_scheduler_has_in_spite_of_its_error_is_reported() -> None:
    async def scene(scheduler: Scheduler, allocations: Allocations, inbox: asyncio.Queue[Input]) -> None:
        await until(lambda: scheduler.looks)
        scheduler.refuses = True
        await allocations.ask(ASK)
        assert await inbox.get() == AllocationAsked(allocation="b9", error="no answer within 30 s")
        assert await inbox.get() == AllocationsSeen(states={"b9": QUEUED}, reasons={"b9": "why"})

    play(scene)


def test_one_that_is_being_submitted_does_not_count_as_ended_where_the_scheduler_does_not_have_it_yet() -> None:
    async def scene(scheduler: Scheduler, allocations: Allocations, inbox: asyncio.Queue[Input]) -> None:
        scheduler.answers.clear()
        asking = asyncio.create_task(allocations.ask(ASK))
        await asyncio.create_task(allocations.end(EndAllocation(allocation="b9")))
        await until(lambda: len(scheduler.looks) >= 3)
        assert inbox.empty()
        scheduler.answers.set()
        await asking
        assert await inbox.get() == AllocationAsked(allocation="b9", job_id="job-b9")
        assert await inbox.get() == AllocationsSeen(states={"b9": QUEUED}, reasons={"b9": "why"}), "it is ended again"

    play(scene)


def test_one_that_was_never_submitted_has_ended_once_it_is_to_end() -> None:
    async def scene(scheduler: Scheduler, allocations: Allocations, inbox: asyncio.Queue[Input]) -> None:
        await until(lambda: scheduler.looks)
        await allocations.end(EndAllocation(allocation="b9"))
        assert await inbox.get() == AllocationsSeen(states={"b9": ENDED}, reasons={"b9": "why"})

    play(scene)


def test_one_whose_answer_an_earlier_supervisor_awaited_does_not_count_as_ended_before_it_is_asked_for_again() -> None:
    async def scene() -> None:
        scheduler, inbox = Scheduler(), asyncio.Queue[Input]()
        cluster: Any = scheduler
        allocations = Allocations(cluster, inbox.put_nowait)
        awaited = Booster(allocation="b9", phase=BoosterPhase.QUEUED, is_asked=True)
        following = asyncio.create_task(allocations.follow([awaited, Booster(allocation="b8", has_ended=True)]))
        await until(lambda: scheduler.looks)
        following.cancel()
        assert scheduler.looks == [set()] and inbox.empty()

    asyncio.run(asyncio.wait_for(scene(), DEADLINE_S))


def test_one_whose_runner_comes_is_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be preempted already, and its runner too late to hear of that."""
    monkeypatch.setattr(allocations_module, "LOOK_S", 2 * DEADLINE_S)

    async def scene(scheduler: Scheduler, allocations: Allocations, inbox: asyncio.Queue[Input]) -> None:
        await inbox.get()
        scheduler.states["b1"] = AllocationState.PREEMPTED
        allocations.joined("stranger")
        allocations.joined("b1")
        assert await inbox.get() == AllocationsSeen(states={"b1": AllocationState.PREEMPTED}, reasons={"b1": "why"})
        assert len(scheduler.looks) == 2

    play(scene, "b1", b1=RUNNING)


def test_one_whose_end_the_scheduler_did_not_hear_of_is_reported_again() -> None:
    async def scene(scheduler: Scheduler, allocations: Allocations, inbox: asyncio.Queue[Input]) -> None:
        await inbox.get()
        scheduler.is_silent = True
        await allocations.end(EndAllocation(allocation="b1"))
        assert scheduler.states == {"b1": RUNNING}
        scheduler.is_silent = False
        seen = await inbox.get()  # upon which the core orders it again
        assert seen == AllocationsSeen(states={"b1": RUNNING}, reasons={"b1": "why"})

    play(scene, "b1", b1=RUNNING)


def test_nobody_is_asked_while_there_are_none() -> None:
    async def scene(scheduler: Scheduler, allocations: Allocations, inbox: asyncio.Queue[Input]) -> None:
        while (await inbox.get()) != AllocationsSeen(states={"b1": ENDED}, reasons={"b1": "why"}):
            pass
        looks = len(scheduler.looks)
        await allocations.ask(ASK)
        assert await inbox.get() == AllocationAsked(allocation="b9", job_id="job-b9")
        await inbox.get()
        assert scheduler.looks[looks:] and scheduler.looks[-1] == {"b9"}

    play(scene, "b1", b1=ENDED)


def test_a_boosters_sigterm_comes_with_slurms_reason_and_without_it_if_slurm_does_not_answer() -> None:
    class Word:
        def __init__(self) -> None:
            self.is_silent = False

        async def why_terminated_booster(self, allocation: str) -> str:
            if self.is_silent:
                raise SlurmError("no answer")
            return f"{allocation} cancelled"

    members = Members().add("x1", Member(allocation="b1")).add("n1", Member(allocation="17"))
    boosters = (Booster(allocation="b1", phase=BoosterPhase.RUNNING, nodes=("x1",)),)
    state = State(job=JobFacts(nodes=("n1",), sizes=(2, 1)), members=members, boosters=boosters)
    word: Any = Word()
    allocations = Allocations(word, lambda given: None)

    def why(node: str | None) -> str:
        return asyncio.run(allocations.explained(Terminated(node=node), state)).why

    assert [why(node) for node in ("x1", "n1", "unknown", None)] == ["b1 cancelled", "", "", ""]
    word.is_silent = True
    assert why("x1") == ""
