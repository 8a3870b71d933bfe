"""Agents that an MPI program starts itself: which layouts it may have, what the agents inherit, and how they end."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from agent_kit import World, config, run, until
from test_heat import HEAT, MPIRUN, OPTIONS
from trainer_kit import solo_namespace

from ckpt import CheckpointConfig, Checkpointer
from ckpt.agent.agent import Agent
from ckpt.agent.process.launch import environment, outside_our_step
from ckpt.agent.process.lifetime import MemoryDirectory
from ckpt.agent.rpc.transport import SoloTransport
from ckpt.config import Place
from ckpt.errors import ConfigError
from ckpt.timeouts import AgentDeadlines
from ckpt.worker.standalone.memory_dir import memory_directory
from ckpt.worker.standalone.mpi import Seat, nodes_of


def seats(*places: str) -> list[Seat]:
    """One for each rank, from names of nodes in rank order."""
    return [
        Seat(node=node, local_rank=places[:rank].count(node), ranks_on_node=places.count(node))
        for rank, node in enumerate(places)
    ]


def test_nodes_come_in_the_order_of_their_ranks() -> None:
    assert nodes_of(seats("n4", "n4", "n1", "n1", "n3", "n3")) == ("n4", "n1", "n3")


@pytest.mark.parametrize("places", [("a", "b", "a", "b"), ("a", "a", "b"), ("a", "b", "b")])
def test_ranks_that_do_not_lie_node_after_node_are_refused_and_told_how_to(places: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"ranks \d on a, \d on b; expected .* --distribution=block"):
        nodes_of(seats(*places))


def test_two_nodes_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 ranks say that they run on node a, MPI finds 1"):
        nodes_of([Seat(node="a", local_rank=0, ranks_on_node=1)] * 2)


class TwoNodes:
    """A communicator whose other rank is on another node."""

    rank = 0

    def allgather(self, seat: Seat) -> list[Seat]:
        return [seat, Seat(node="elsewhere", local_rank=0, ranks_on_node=1)]


def test_several_nodes_outside_a_slurm_job_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    monkeypatch.setattr("ckpt.worker.engine.world_of", lambda comm: alone)
    with solo_namespace() as namespace, pytest.raises(ConfigError, match="elsewhere, and this is not a Slurm job"):
        Checkpointer(TwoNodes(), namespace=namespace)


def test_agents_inherit_settings_and_nothing_of_the_step_that_starts_them() -> None:
    settings = {"PATH": "/bin", "SLURM_CONF": "/c", "OMPI_MCA_btl": "tcp", "PMIX_MCA_gds": "hash", "AWS_PROFILE": "x"}
    step = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "6", "SLURM_HOSTFILE": "/h", "SLURMD_NODENAME": "n1"}
    step |= {"PMIX_RANK": "0", "OMPI_COMM_WORLD_RANK": "0", "OMPI_MCA_ess_base_jobid": "7", "PMI_FD": "3"}
    assert outside_our_step(settings | step) == settings


def test_a_jobs_memory_lies_where_slurms_hooks_look_for_it() -> None:
    job = f"slurm-test-{os.getpid()}"
    directory = memory_directory(config(), job)
    try:
        assert directory.parent == Path(f"/dev/shm/holdfast-{os.getuid()}") / job
        assert {path.stat().st_mode & 0o777 for path in (directory, directory.parent)} == {0o700}
    finally:
        directory.rmdir()
        directory.parent.rmdir()


def test_agents_leave_together_once_no_process_of_the_program_is_left(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path, ["a", "b"], 0, config(), until_unused=True) as world:
            await world.save(10, 0)
            for link in (world.workers[0], world.monitors[0]):  # node a's, without a word, as when killed
                await link.close()
            await until(lambda: not world.agents[0]._listener.clients)
            assert (await world.workers[1].request("plan"))["step"] is None
            assert not any(task.done() for task in world.tasks)
            for link in (world.workers[1], world.monitors[1]):
                await link.close()
            await until(lambda: all(task.done() for task in world.tasks))

    run(test)


def test_an_agent_whose_peers_are_lost_leaves_with_its_own_processes(tmp_path: Path) -> None:
    async def test() -> None:
        deadlines = AgentDeadlines(leave_s=0.5)
        async with World(tmp_path, ["a", "b"], 0, config(), deadlines=deadlines, until_unused=True) as world:
            world.tasks[0].cancel()  # node a, silent from now on
            for link in (world.workers[1], world.monitors[1]):
                await link.close()
            await until(world.tasks[1].done)

    run(test)


def test_an_agent_that_nobody_connects_to_leaves(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    place = Place(run_id="run", attempt=0, node="a", nodes=("a",), ranks_per_node=1, ram_dir=tmp_path)

    async def test() -> None:
        memory = MemoryDirectory(place.ram_dir, 1)
        await Agent(place, config(), SoloTransport(), AgentDeadlines(use_s=0.1), memory).run(until_unused=True)

    run(test)


def test_a_namespace_in_use_is_an_error_on_every_rank(tmp_path: Path) -> None:
    with solo_namespace() as namespace:
        section = {"namespace": namespace, "shared": {"path": str(tmp_path)}}
        directory = memory_directory(CheckpointConfig.from_mapping(section))
        with open(directory / "solo.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = subprocess.run(
                [MPIRUN, *OPTIONS, "-n", "2", sys.executable, HEAT, "--namespace", namespace, "--folder", tmp_path],
                env={**os.environ, **environment(loopback=True)}, capture_output=True, text=True, timeout=60,
                check=False,
            )  # fmt: skip
    assert done.returncode != 0
    assert f"namespace {namespace!r} is in use by another process on node {os.uname().nodename}" in done.stderr
