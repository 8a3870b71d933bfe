"""The batch scripts to copy, submitted to a real Slurm as their users would."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "sbatch_templates"

HELLO = """
from mpi4py import MPI
nodes = MPI.COMM_WORLD.allgather(MPI.Get_processor_name())
if MPI.COMM_WORLD.rank == 0:
    print(f"{len(nodes)} ranks on {len(set(nodes))} nodes")
"""

# The heat program, which goes no further than step 60 before a node has crashed: however fast or slow the machine is,
# it crashes after a save and before the end, and few steps are left to compute.
GATED = """
import time
from pathlib import Path
import heat
diffuse, steps = heat.diffuse, 0
def gated(comm, plate):
    global steps
    steps += 1
    while steps == 60 and not Path("crashed").exists():
        time.sleep(0.05)
    diffuse(comm, plate)
heat.diffuse = gated
heat.main()
"""


# Trains until it has grown to three nodes, and for three steps more.
GROWING = """
import os, time
from holdfast import Checkpointer
state = {"weights": 1.0}
with Checkpointer.from_env() as ckpt:
    first = step = ckpt.load(state) or 0
    while os.environ["WORLD_SIZE"] != "3" or step < first + 3:
        time.sleep(0.1)
        step += 1
        if ckpt.should_save(step):
            ckpt.save(step, state)
        if ckpt.should_stop(step):
            break
"""


@pytest.fixture
def folder(slurm_cluster: Any) -> Path:
    """A user's folder with the templates copied into it."""
    folder = slurm_cluster.home / "templates"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(TEMPLATES, folder)
    shutil.copy(ROOT / "examples" / "heat_mpi" / "heat.py", folder)
    (folder / "hello.py").write_text(HELLO)
    (folder / "gated.py").write_text(GATED)
    (folder / "train.py").write_text("import os, sys; print(os.environ['RANK'], sys.argv[1:])\n")
    (folder / "job.yaml").write_text("script: train.py\nargs: [--lr, 3e-4]\nnodes: 1\n")
    subprocess.run(["chown", "-R", slurm_cluster.user, folder], check=True)
    return Path(folder)


def sbatch(cluster: Any, folder: Path, *arguments: str) -> str:
    """Submits with this project's Python in front of PATH; returns the job's number."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = cluster.run_as_user(["sbatch", "--parsable", *arguments], cwd=folder, env={"PATH": path})
    return done.stdout.strip().split(";")[0]


def ended(cluster: Any, job_id: str, folder: Path, timeout_s: float = 120) -> tuple[str, str]:
    """Waits for the job's end; returns its exit code and its output."""
    deadline = time.monotonic() + timeout_s
    output = folder / f"slurm-{job_id}.out"
    while time.monotonic() < deadline:
        shown = cluster.run_as_user(["scontrol", "show", "job", "--oneliner", job_id]).stdout
        if any(f"JobState={state} " in shown for state in ("COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED", "TIMEOUT")):
            code = next(word for word in shown.split() if word.startswith("ExitCode="))
            return code.removeprefix("ExitCode="), output.read_text()
        time.sleep(0.2)
    pytest.fail(f"job {job_id} has not ended within {timeout_s} s:\n{output.read_text() if output.exists() else ''}")


def test_each_template_runs_to_its_end(slurm_cluster: Any, folder: Path) -> None:
    train = sbatch(slurm_cluster, folder, "--nodes=1", "train.sbatch", "job.yaml")
    spares = sbatch(slurm_cluster, folder, "--nodes=2", "train_with_spares.sbatch")
    yielding = "--export=ALL,OMPI_MCA_mpi_yield_when_idle=1"
    mpi = sbatch(slurm_cluster, folder, "--nodes=2", f"{yielding},SPARES=0", "mpi.sbatch", "hello.py")
    heat_options = ("--nodes=1", "--ntasks-per-node=2", "--overcommit", f"{yielding},SPARES=0")
    heat = sbatch(slurm_cluster, folder, *heat_options, "mpi.sbatch", "heat.py", "--steps", "40")
    nccl = sbatch(slurm_cluster, folder, "--nodes=2", "--ntasks-per-node=2", "nccl_tests.sbatch")

    deep = sbatch(slurm_cluster, folder, "--nodes=2", "--export=ALL,LEVEL=prolog", "deep_check.sbatch")

    code, said = ended(slurm_cluster, train, folder)
    assert code == "0:0" and "attempt_start" in said, said
    assert (folder / "runs" / train / "log/attempt-0/rank-0.log").read_text() == "0 ['--lr', '3e-4']\n"

    code, said = ended(slurm_cluster, spares, folder)
    assert code == "0:0", said
    attempt = json.loads(next(line for line in _events(folder, spares) if '"attempt_start"' in line))
    assert len(attempt["nodes"]) == 1  # the other one is the spare
    assert (folder / "runs" / spares / "log/attempt-0/rank-0.log").read_text() == "0 ['--steps', '1000']\n"

    code, said = ended(slurm_cluster, mpi, folder)
    assert code == "0:0" and "2 ranks on 2 nodes" in said, said
    code, said = ended(slurm_cluster, heat, folder)
    assert code == "0:0" and "started at step 0, done at step 40, heat" in said, said

    code, said = ended(slurm_cluster, deep, folder)
    lines = said.splitlines()
    assert {line[0] for line in lines if "check " in line} == {"0", "1"}, said  # --label: both nodes told
    assert code == "0:0" or any("critical" in line for line in lines), said

    if shutil.which("nvidia-smi") is None:
        code, said = ended(slurm_cluster, nccl, folder)
        assert code == "69:0" and said.count("SKIPPED: no NVIDIA GPU on n") == 2, said


@pytest.mark.faults
def test_the_elastic_template_grows_by_boosters(slurm_cluster: Any, folder: Path) -> None:
    script = folder / "elastic.sbatch"
    edits = {"MAX_NODES=8": "MAX_NODES=3", "STEP=2": "STEP=1", "  step: $STEP": "  step: $STEP\n  scaling_timeout_s: 1"}
    text = script.read_text()
    for line, instead in edits.items():
        assert line in text
        text = text.replace(line, instead)
    script.write_text(text)
    (folder / "train.py").write_text(GROWING)
    job_id = sbatch(slurm_cluster, folder, "--nodes=2", "--partition=base", "elastic.sbatch")
    code, said = ended(slurm_cluster, job_id, folder, timeout_s=200)
    assert code == "0:0", said
    starts = [json.loads(line) for line in _events(folder, job_id) if '"attempt_start"' in line]
    assert [len(starts[at]["nodes"]) for at in (0, -1)] == [1, 3], said
    queue = slurm_cluster.run_as_user(["squeue", "--noheader", "--partition=boost", "--states=PD,R"]).stdout
    assert queue == "", "boosters end with the job"


@pytest.mark.faults
def test_an_mpi_program_goes_on_with_a_spare_for_a_crashed_node_and_ends_with_the_same_heat(
    slurm_cluster: Any, folder: Path
) -> None:
    program = ["gated.py", "--rows", "1536", "--steps", "200"]
    yielding = "--export=ALL,OMPI_MCA_mpi_yield_when_idle=1"
    options = ("--nodes=4", "--ntasks-per-node=2", "--overcommit", yielding)
    job_id = sbatch(slurm_cluster, folder, *options, "mpi.sbatch", *program)
    output = folder / f"slurm-{job_id}.out"
    deadline = time.monotonic() + 60
    while not (output.exists() and "committed step 40 in the memory" in output.read_text()):
        assert time.monotonic() < deadline, f"no save within 60 s: {output.read_text() if output.exists() else ''}"
        time.sleep(0.05)
    slurm_cluster.crash_node("n2")
    (folder / "crashed").touch()
    code, said = ended(slurm_cluster, job_id, folder, timeout_s=180)
    assert code == "0:0", said
    assert "node n2 does not answer: n4 takes its place" in said
    first = int(re.findall(r"loaded step (\d+) of namespace .* from memory", said)[-1])
    assert first >= 40 and f"started at step {first}, done at step 200" in said

    alone = [sys.executable, folder / "heat.py", "--namespace", "alone", "--folder", folder / "alone", *program[1:]]
    whole = slurm_cluster.run_as_user(list(map(str, alone)), cwd=folder, timeout_s=120).stdout
    for memory in Path("/dev/shm").glob("holdfast-*/solo-alone-*"):
        shutil.rmtree(memory)
    assert said.split("heat ")[-1] == whole.split("heat ")[-1]
    for node in ("n1", "n3", "n4"):
        left = slurm_cluster.run_on_node(node, ["find", "/dev/shm", "-name", f"slurm-*-{job_id}"]).stdout
        assert not left, f"memory of the job is left on {node}"


def _events(folder: Path, job_id: str) -> list[str]:
    return (folder / "runs" / job_id / "events.jsonl").read_text().splitlines()
