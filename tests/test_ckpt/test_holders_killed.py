"""SIGKILL in a resize: of all processes before every change of a file, and of one agent at a time."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from pathlib import Path

import pytest
from agent_kit import World, content, lose, run, until
from crash_kit import Fuse, Trainers, crashes
from mpi_kit import WAIT_S, AgentProcesses
from test_agent_process import dying
from test_killed_anywhere import CALM, KEEP, beyond, memory, run_for, saved

from ckpt.errors import AgentError

NODES = ["a", "b", "c", "d"]


async def shrink(scheme: str, root: Path, fuse: Fuse) -> None:
    """To a and b; then c and d leave, and steps are saved."""
    fuse.arm()
    async with World(root, ["a", "b"], 1, memory(scheme), deadlines=CALM, holders=["c", "d"]) as world:
        trainers = Trainers(world, KEEP)
        await trainers.load()
        await world.contents(4)
    async with World(root, ["a", "b"], 1, memory(scheme), deadlines=CALM, generation=1) as world:
        trainers.go_on(world)
        answers = await asyncio.gather(*(worker.request("rejoin", generation=0) for worker in world.workers))
        assert {answer["step"] for answer in answers} == {20}
        fuse.tell(20)
        for step in (30, 40):  # copies of the restored step lie where those of step 30 would
            await trainers.save(step)
            fuse.tell(step)
        await until(lambda: not any(beyond(KEEP, place.ram_dir) for place in world.places))


async def newest(root: Path, nodes: list[str], holders: list[str], scheme: str) -> int:
    """The step that a new attempt restores: every byte of it is right."""
    async with World(root, nodes, 2, memory(scheme), deadlines=CALM, holders=holders) as world:
        plan = await world.plan()
        ranks = range(plan["world_size"])
        assert await world.contents(len(ranks)) == [content(rank, plan["step"]) for rank in ranks]
        return int(plan["step"])


@pytest.mark.faults
@pytest.mark.timeout(600)  # some hundred runs
@pytest.mark.parametrize("scheme", ["partner", "xor", "rs"])
def test_killed_anywhere_in_a_shrink_no_committed_step_is_lost(tmp_path: Path, scheme: str) -> None:
    """Until the holders are let go they come back with the others; afterwards a node that trains is lost as well."""
    before, seen = tmp_path / "before", set()
    before.mkdir()
    run(lambda: saved(before, NODES, memory(scheme)))
    for crash in crashes(partial(shrink, scheme), before, tmp_path):
        training, holders = (NODES, []) if crash.moment % 2 else (["a", "b"], ["c", "d"])
        if crash.told:
            lost, left = ("a", "b") if crash.moment % 2 else ("b", "a")
            lose(crash.root, "c", "d", lost)
            training, holders = [left], []
        step = run_for(partial(newest, crash.root, training, holders, scheme))
        assert step >= max(crash.told, 20), crash
        seen.add(step)
    assert seen == {20, 30, 40}


# one agent of several, over MPI

SERVES = "ckpt.agent.exchange:Exchange:_on_shard_bytes"
NBYTES = 2_000_001


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def saved_by_four(root: Path) -> None:
    with AgentProcesses(root, NODES, 0) as agents:
        agents.save(10, 0, NBYTES)
        agents.save(20, 1, NBYTES)


def restores(agents: AgentProcesses, step: int) -> None:
    """Every rank of the four that saved it can be read on every node that trains."""
    for worker in agents.workers:
        plan = worker.request("plan", timeout_s=WAIT_S)
        assert (plan["step"], plan["tier"], plan["world_size"]) == (step, "memory", 4), agents.log()
    for number in range(len(agents.workers)):
        assert [agents.read(number, rank) for rank in range(4)] == [content(rank, step, NBYTES) for rank in range(4)]


@pytest.mark.parametrize("with_its_node", [False, True])
def test_a_holder_killed_while_others_restore_from_it_leaves_what_the_next_attempt_needs(
    root: Path, with_its_node: bool
) -> None:
    saved_by_four(root)
    with AgentProcesses(root, ["a", "b"], 1, programs={"c": dying(SERVES)}, holders=["c", "d"]) as agents:
        for worker in agents.workers:
            with pytest.raises(AgentError):
                worker.request("plan", timeout_s=WAIT_S)
                agents.read(0, 2)
        assert "c" not in agents.pids()
    if with_its_node:
        lose(root, "c")
    holders = ["d"] if with_its_node else ["c", "d"]
    with AgentProcesses(root, ["a", "b"], 2, holders=holders) as agents:
        restores(agents, 20)
    lose(root, *holders)
    with AgentProcesses(root, ["a", "b"], 3) as agents:
        restores(agents, 20)


def test_a_holder_killed_while_others_save_costs_that_save_at_most(root: Path) -> None:
    """The agents without holders take the place of the lost ones, and saving goes on."""
    saved_by_four(root)
    with AgentProcesses(root, ["a", "b"], 1, holders=["c", "d"]) as agents:
        restores(agents, 20)
        agents.seal(30, 0, NBYTES)
        os.kill(agents.pids()["d"], signal.SIGKILL)
        for worker in agents.workers:
            events: list[str] = []
            while "world_lost" not in events:
                fresh = worker.events(WAIT_S)
                assert fresh, agents.log()
                events += [event["event"] for event in fresh]
    lose(root, "c", "d")
    with AgentProcesses(root, ["a", "b"], 1, generation=1) as agents:
        steps = {w.request("rejoin", timeout_s=WAIT_S, generation=0)["step"] for w in agents.workers}
        assert steps in ({20}, {30}), agents.log()
        agents.save(40, 0, NBYTES)
    with AgentProcesses(root, ["a", "b"], 2) as agents:
        assert {worker.request("plan", timeout_s=WAIT_S)["step"] for worker in agents.workers} == {40}


def test_a_booster_lost_in_mid_save_costs_that_save_and_the_rest_of_its_allocation_serves_the_step_before(
    root: Path,
) -> None:
    """a and b are the base, c and d a booster. c dies with its node; d is told to leave."""
    with AgentProcesses(root, NODES, 0, programs={"c": dying(SERVES)}) as agents:
        agents.save(10, 0, NBYTES)
        agents.seal(20, 1, NBYTES)
        for node in (0, 1, 3):
            events: list[str] = []
            while "world_lost" not in events:
                fresh = agents.workers[node].events(WAIT_S)
                assert fresh, agents.log()
                events += [event["event"] for event in fresh]
    lose(root, "c")
    with AgentProcesses(root, ["a", "b"], 1, holders=["d"]) as agents:
        restores(agents, 10)
    lose(root, "d")
    with AgentProcesses(root, ["a", "b"], 1, generation=1) as agents:
        steps = {w.request("rejoin", timeout_s=WAIT_S, generation=0)["step"] for w in agents.workers}
        assert steps == {10}, agents.log()
    lose(root, "a")
    with AgentProcesses(root, ["b"], 2) as agents:
        restores(agents, 10)


def test_a_joining_node_killed_while_it_loads_leaves_the_step_with_those_that_had_it(root: Path) -> None:
    with AgentProcesses(root, ["a", "b"], 0) as agents:
        agents.save(10, 0, NBYTES)
        agents.save(20, 1, NBYTES)
    joining = dying("ckpt.agent.restore.serve:Loading:_remote")
    with AgentProcesses(root, NODES, 1, programs={"c": joining}) as agents:
        for worker in agents.workers:
            assert worker.request("plan", timeout_s=WAIT_S)["step"] == 20
        with pytest.raises(AgentError):
            agents.read(2, 0)
        assert "c" not in agents.pids()
    lose(root, "c")
    for attempt, nodes in ((2, ["a", "b", "d"]), (3, ["b"])):  # and once more with as few as the scheme allows
        with AgentProcesses(root, nodes, attempt) as agents:
            for number, worker in enumerate(agents.workers):
                plan = worker.request("plan", timeout_s=WAIT_S)
                assert (plan["step"], plan["tier"], plan["world_size"]) == (20, "memory", 2), agents.log()
                found = [agents.read(number, rank) for rank in range(2)]
                assert found == [content(rank, 20, NBYTES) for rank in range(2)]
        lose(root, *(node for node in ("a", "d") if attempt == 2))
