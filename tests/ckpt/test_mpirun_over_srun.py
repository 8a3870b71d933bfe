"""One MPI world by mpirun, whose daemons an srun starts on each node. Here a script stands in for srun, on one machine;
flows/test_without_pmix.py has the real one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

from ckpt.agent.process.launch import environment, mpirun_over_srun

MPIRUN = str(Path(sys.executable).with_name("mpirun"))
SRUN = """#!/bin/sh
echo $$ "$*" >> {log}
while [ "$1" != sh ]; do
    case "$1" in --nodelist=*) export SLURMD_NODENAME=${{1#--nodelist=}};; esac
    shift
done
exec "$@"
"""
PROGRAM = """
import os, pathlib, signal, sys
from mpi4py import MPI
at = pathlib.Path(sys.argv[1]) / os.environ["SLURMD_NODENAME"]
at.write_text(f"{MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size} {os.getpid()}")
signal.pause()
"""


@pytest.fixture
def srun(tmp_path: Path) -> Path:
    """The log of what srun was asked for, each line after its pid."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").write_text(SRUN.format(log=tmp_path / "srun.log"))
    (tmp_path / "bin" / "srun").chmod(0o755)
    return tmp_path / "srun.log"


def test_it_spans_nodes_of_several_jobs_and_ends_when_a_node_is_lost(srun: Path, tmp_path: Path) -> None:
    at = tmp_path / "at"
    at.mkdir()
    argv, more = mpirun_over_srun(MPIRUN, {"n1": 7, "n2": "8+1"}, str(tmp_path))
    env = {**os.environ, **environment(loopback=True), **more, "PATH": f"{srun.parent / 'bin'}:{os.environ['PATH']}"}
    program = [sys.executable, "-c", PROGRAM, str(at)]
    with subprocess.Popen([*argv, *program], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as mpirun:
        try:
            until(lambda: len([path for path in at.iterdir() if path.stat().st_size]) == 2, "both processes")
            found = {path.name: path.read_text().split() for path in at.iterdir()}
            assert {name: words[:3] for name, words in found.items()} == {
                "n1": ["0", "of", "2"],
                "n2": ["1", "of", "2"],
            }
            asked = {line.partition("--jobid=")[2].split()[0]: line for line in srun.read_text().splitlines()}
            assert asked.keys() == {"7", "8+1"}
            assert "--nodes=1 --ntasks=1 --ntasks-per-node=1 --nodelist=n2 --no-kill" in asked["8+1"]
            assert "--overlap" in asked["7"] and "--mpi=none" in asked["7"]
            os.kill(int(asked["8+1"].split()[0]), signal.SIGKILL)  # the daemon
            mpirun.wait(60)
            until(lambda: not Path(f"/proc/{found['n1'][3]}").exists(), "the survivor's end")
        finally:
            mpirun.kill()
            for path in at.iterdir():
                if (words := path.read_text().split()) and Path(f"/proc/{words[3]}").exists():
                    os.kill(int(words[3]), signal.SIGKILL)
