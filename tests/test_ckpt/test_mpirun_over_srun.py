"""One MPI world by mpirun, whose daemons an srun starts on each node. Here a script stands in for srun, on one machine;
flows/test_without_pmix.py has the real one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

from ckpt.agent.process.launch import environment, mpirun_over_srun
from holdfast.base.processes import descendants, state_of, status_of

MPIRUN = str(Path(sys.executable).with_name("mpirun"))
SRUN = """#!/bin/sh
# The step runs in a session of its own: it goes on without srun, as a step of Slurm does.
options=
while :; do
    case "$1" in
        --nodelist=*) export SLURMD_NODENAME=${{1#--nodelist=}};;
        --*) ;;
        *) break;;
    esac
    options="$options $1"
    shift
done
setsid sh -c 'echo $$ "$0" >> {log}; exec "$@"' "$options" "$@" &
wait $!
"""
PROGRAM = """
import os, pathlib, sys, time
from mpi4py import MPI
folder = pathlib.Path(sys.argv[1])
world, ram_dir = MPI.COMM_WORLD, os.environ["HOLDFAST_RAM_DIR"]
(folder / os.environ["SLURMD_NODENAME"]).write_text(f"{world.rank} of {world.size} {os.getpid()} {ram_dir}")
while not (folder / "end").exists():
    time.sleep(0.01)
"""


class World:
    """A running MPI world of n1 (job 7) and n2 (job 8).

    Attributes:
        found: node -> words of its process: "0 of 2 PID RAM_DIR".
        asked: job -> words of its srun; in place of the first word, the pid of the daemon that it has started.
    """

    def __init__(self, mpirun: subprocess.Popen[bytes], srun_log: Path, at: Path) -> None:
        self.mpirun = mpirun
        self.at = at
        until(lambda: len([path for path in at.iterdir() if path.stat().st_size]) == 2, "both processes")
        self.found = {path.name: path.read_text().split() for path in at.iterdir()}
        self.asked = {
            line.partition("--jobid=")[2].split()[0]: line.split() for line in srun_log.read_text().splitlines()
        }

    def lives(self, node: str) -> bool:
        return Path(f"/proc/{self.found[node][3]}").exists()


@pytest.fixture
def srun(tmp_path: Path) -> Path:
    """The log of what srun was asked for, each line after its pid."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").write_text(SRUN.format(log=tmp_path / "srun.log"))
    (tmp_path / "bin" / "srun").chmod(0o755)
    return tmp_path / "srun.log"


@pytest.fixture
def world(srun: Path, tmp_path: Path) -> Iterator[World]:
    at = tmp_path / "at"
    at.mkdir()
    environments = {job: {"HOLDFAST_RAM_DIR": str(tmp_path / f"memory-{job}")} for job in ("7", "8")}
    argv, more = mpirun_over_srun(MPIRUN, {"n1": "7", "n2": "8"}, environments, str(tmp_path / "session"))
    env = {**os.environ, **environment(loopback=True), **more, "PATH": f"{srun.parent / 'bin'}:{os.environ['PATH']}"}
    program = [sys.executable, "-c", PROGRAM, str(at)]
    with subprocess.Popen([*argv, *program], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as mpirun:
        try:
            yield World(mpirun, srun, at)
        finally:
            mpirun.kill()
            for path in at.iterdir():
                if (words := path.read_text().split()) and Path(f"/proc/{words[3]}").exists():
                    os.kill(int(words[3]), signal.SIGKILL)


def test_it_spans_nodes_of_several_jobs_and_ends_when_a_node_is_lost(world: World) -> None:
    assert {name: words[:3] for name, words in world.found.items()} == {"n1": ["0", "of", "2"], "n2": ["1", "of", "2"]}
    assert world.asked.keys() == {"7", "8"}
    asked = " ".join(world.asked["8"])
    assert "--nodes=1 --ntasks=1 --ntasks-per-node=1 --nodelist=n2 --no-kill" in asked
    assert "--overlap" in asked and "--mpi=none" in asked
    daemon = int(world.asked["8"][0])
    for pid in (daemon, *descendants(daemon)):
        os.kill(pid, signal.SIGKILL)
    world.mpirun.wait(60)
    until(lambda: not world.lives("n1"), "the survivor's end")


def test_each_job_has_a_memory_of_its_own_and_mpiruns_files_are_there(world: World, tmp_path: Path) -> None:
    for node, job in (("n1", "7"), ("n2", "8")):
        memory = tmp_path / f"memory-{job}"
        assert world.found[node][4] == str(memory)
        assert any(memory.iterdir()), "the daemon's session directory"
    (world.at / "end").touch()
    assert world.mpirun.wait(60) == 0


def test_a_job_that_slurm_warns_stays_in_the_world(world: World) -> None:
    """Each process of the job has a SIGTERM when it is preempted; its memory still serves the others."""
    daemons = [int(world.asked["8"][0]), *descendants(int(world.asked["8"][0]))]
    daemons.remove(int(world.found["n2"][3]))
    daemons += [world.mpirun.pid, *descendants(world.mpirun.pid)]  # in the batch step
    for pid in daemons:
        os.kill(pid, signal.SIGTERM)

    def waits_for_ever(pid: int) -> bool:
        return bool(int(status_of(pid)["ShdPnd"], 16) >> (signal.SIGTERM - 1) & 1)

    until(lambda: all(state_of(pid) in ("", "Z") or waits_for_ever(pid) for pid in daemons), "what follows the signal")
    assert world.mpirun.poll() is None
    (world.at / "end").touch()
    assert world.mpirun.wait(60) == 0
