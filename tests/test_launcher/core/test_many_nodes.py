"""4,096 nodes: what each of them reports must not cost a walk over all the others, or deadlines pass meanwhile.

The clock is the CPU time of the core. It needs a fifth of what is allowed here, or less.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.core import begin, decide
from launcher.core.commands import Purpose, Record
from launcher.core.gains import Event
from launcher.core.inputs import (
    FolderProbed,
    Input,
    NodeJoined,
    NodeLost,
    UnusableAnswered,
    WorkersKilled,
)
from launcher.core.members import Network
from launcher.core.state import AttemptPhase, JobFacts
from slurm.topology import Switch, Topology

COUNT = 4096
OF_BOOSTER = 512
OF_LEAF = 32
LONGEST_S = 1.0  # of a decision; a supervisor that does not renew its lease for 1.5 s is taken over


class Supervisor:
    """A supervisor that begins with the events of others. Its clock is the CPU time that it uses."""

    def __init__(self, job: JobFacts, past: list[Event]) -> None:
        self._used_s = 1000.0
        self._records: list[Record] = []
        self.longest_s = 0.0
        self.state, _ = begin(job, past, self._used_s)

    def give(self, *inputs: Input) -> None:
        for each in inputs:
            before_s = time.process_time()
            self.state, commands = decide(self.state, each, self._used_s)
            took_s = time.process_time() - before_s
            self.longest_s = max(self.longest_s, took_s)
            self._used_s += took_s
            self._records += [command for command in commands if isinstance(command, Record)]

    def records(self, event: str) -> list[Record]:
        return [record for record in self._records if record.event == event]

    @property
    def phase(self) -> AttemptPhase | None:
        return self.state.attempt.phase if self.state.attempt is not None else None


def event(name: str, **fields: Any) -> Event:
    return {"time": 1.0, "event": name, **fields}


def names(count: int) -> list[str]:
    return [f"n{index:04d}" for index in range(count)]


def take_over(base: int) -> Supervisor:
    """Takes over a job that trains on all nodes, of which `base` are not of boosters. No runner has connected yet."""
    nodes = names(COUNT)
    past = [event("job_start"), *(event("node_ready", node=node, warm=True) for node in nodes[:base])]
    for at in range(base, COUNT, OF_BOOSTER):
        allocation = allocation_of(at, base)
        past.append(event("booster_asked", allocation=allocation, nodes=OF_BOOSTER))
        of_booster = nodes[at : at + OF_BOOSTER]
        past += [event("node_ready", node=node, warm=True, allocation=allocation) for node in of_booster]
    past.append(event("attempt_start", attempt=0, nodes=nodes, spares=[], rung="start"))
    past += [event("workers_started", attempt=0, seconds=1), event("restore", attempt=0, step=0)]
    job = JobFacts(
        nodes=tuple(nodes[:base]),
        sizes=tuple(range(COUNT, base - 1, -OF_BOOSTER)),
        allocations=dict.fromkeys(nodes[:base], "1"),
        base_nodes=base,
        booster_nodes=OF_BOOSTER,
        most_boosters=(COUNT - base) // OF_BOOSTER,
        is_take_over=True,
    )
    return Supervisor(job, past)


def allocation_of(at: int, base: int) -> str:
    return "1" if at < base else f"b{(at - base) // OF_BOOSTER}"


def joined(base: int) -> Iterator[NodeJoined]:
    for at, node in enumerate(names(COUNT)):
        yield NodeJoined(node=node, attempt=0, is_warm=True, allocation=allocation_of(at, base))


@pytest.mark.parametrize("base", [COUNT, OF_BOOSTER])
def test_all_runners_return_in_time_after_a_take_over(base: int) -> None:
    supervisor = take_over(base)
    supervisor.give(*joined(base))
    assert not supervisor.records("node_out") and not supervisor.records("fault")
    assert supervisor.phase is AttemptPhase.TRAINING


@pytest.mark.parametrize("base", [COUNT, OF_BOOSTER])
def test_all_nodes_confirm_in_time_that_their_workers_have_ended(base: int) -> None:
    supervisor = take_over(base)
    supervisor.give(*joined(base), NodeLost(node=names(COUNT)[-1], reason="its connection closed"))
    assert supervisor.phase is AttemptPhase.KILLING
    supervisor.give(*(WorkersKilled(node=node, attempt=0) for node in names(COUNT)[:-1]))
    assert [record.fields["node"] for record in supervisor.records("node_out")] == names(COUNT)[-1:]
    assert supervisor.records("attempt_end")


@pytest.mark.parametrize("fresh", [200, COUNT], ids=["some", "all"])
def test_nodes_are_chosen_soon_when_a_requeue_brings_others(fresh: int) -> None:
    nodes = names(2 * COUNT)
    past = [event("job_start"), *(event("node_ready", node=node, warm=True) for node in nodes[:COUNT])]
    past.append(event("attempt_start", attempt=0, nodes=nodes[:COUNT], spares=[], rung="start"))
    past.append(event("attempt_end", attempt=0, outcome="stopped", step=9))
    supervisor = Supervisor(facts(nodes[fresh : COUNT + fresh], (COUNT,), nodes), past)
    start(supervisor)
    assert supervisor.longest_s < LONGEST_S


def test_nodes_are_chosen_soon_when_the_job_grows() -> None:
    nodes = names(COUNT)
    few = nodes[: COUNT // 8]
    past = [event("job_start"), event("attempt_start", attempt=0, nodes=few, spares=[], rung="start")]
    past.append(event("attempt_end", attempt=0, outcome="stopped", step=9))
    supervisor = Supervisor(facts(nodes, (COUNT, len(few)), nodes), past)
    start(supervisor)
    assert supervisor.longest_s < LONGEST_S


def facts(nodes: list[str], sizes: tuple[int, ...], cluster: list[str]) -> JobFacts:
    """A job in a cluster with two levels of switches."""
    switches = [Switch(name="core", level=1, nodes=frozenset(cluster))]
    for at in range(0, len(cluster), OF_LEAF):
        switches.append(Switch(name=f"leaf{at}", level=0, nodes=frozenset(cluster[at : at + OF_LEAF])))
    topology = Topology(switches)
    network = Network(leaf=topology.leaf, distance=topology.distance)
    return JobFacts(nodes=tuple(nodes), sizes=sizes, allocations=dict.fromkeys(nodes, "1"), network=network)


def start(supervisor: Supervisor) -> None:
    """Starts the job; all runners connect, and an attempt begins on all nodes."""
    nodes = supervisor.state.job.nodes
    supervisor.give(UnusableAnswered(asked=nodes, purpose=Purpose.START), FolderProbed())
    supervisor.give(*(NodeJoined(node=node, is_warm=True, allocation="1") for node in nodes))
    begun = supervisor.records("attempt_start")
    assert [sorted(record.fields["nodes"]) for record in begun] == [sorted(nodes)]
