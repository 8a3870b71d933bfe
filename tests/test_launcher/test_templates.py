"""The batch scripts to copy: the shell accepts them, and they ask Slurm for what a supervised job rests on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.clusters.slurm.submission import sbatch_script
from launcher.job.booster_checks import require_booster
from launcher.job.jobfile import JobSpec, load_job

TEMPLATES = sorted((Path(__file__).resolve().parents[2] / "sbatch_templates").glob("*.sbatch"))
SUPERVISED = [path for path in TEMPLATES if path.name.startswith("train")]
ELASTIC = next(path for path in TEMPLATES if path.name == "elastic.sbatch")


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_the_shell_accepts_the_template(template: Path) -> None:
    subprocess.run(["bash", "-n", template], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", template], check=True)


def options(script: str) -> dict[str, str]:
    """The script's #SBATCH options, without the comments behind them."""
    lines = (line[len("#SBATCH --") :].split(" #")[0] for line in script.splitlines() if line.startswith("#SBATCH --"))
    return {option: value.strip() for option, _, value in (line.strip().partition("=") for line in lines)}


@pytest.mark.parametrize("template", SUPERVISED, ids=lambda path: path.name)
def test_the_template_asks_for_what_submission_asks_for(template: Path) -> None:
    submitted = options(sbatch_script(JobSpec(name="job", script=Path("/train.py"), nodes=4, spares=1))[0])
    written = options(template.read_text())
    for option in ("nodes", "ntasks-per-node", "no-kill", "requeue", "signal", "open-mode"):
        assert written[option] == submitted[option]


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str, str], None]:
    """Puts a program in front of PATH for the templates that are run here."""

    def put(name: str, text: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    return put


def run_template(name: str, tmp_path: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", TEMPLATES[0].with_name(name), *arguments],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"} | env,
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )


def test_the_job_that_the_template_with_spares_writes_is_one_that_can_be_loaded(tmp_path: Path, program: Any) -> None:
    (tmp_path / "train.py").touch()
    program("holdfast", 'echo "$*"')
    done = run_template("train_with_spares.sbatch", tmp_path, SLURM_JOB_NUM_NODES="5", SLURM_JOB_NAME="gpt")
    folder = tmp_path / "runs" / "7"
    assert done.stdout == f"supervise {folder}/job.yaml --job-dir {folder}\n" and not done.stderr
    spec = load_job(folder / "job.yaml")
    assert (spec.name, spec.script, spec.nodes, spec.spares) == ("gpt", tmp_path / "train.py", 4, 1)
    assert spec.args == ("--steps", "1000") and spec.checkpoint is not None
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_job_that_the_elastic_template_writes_grows_by_boosters(tmp_path: Path, program: Any) -> None:
    (tmp_path / "train.py").touch()
    program("holdfast", 'echo "$*"')
    done = run_template("elastic.sbatch", tmp_path, SLURM_JOB_NUM_NODES="3", SLURM_JOB_NAME="gpt")
    folder = tmp_path / "runs" / "7"
    assert done.stdout == f"supervise {folder}/job.yaml --job-dir {folder}\n" and not done.stderr
    spec = load_job(folder / "job.yaml")
    require_booster(spec)
    assert (spec.sizes, spec.spares, spec.most_boosters) == ((8, 6, 4, 2), 1, 3)
    assert spec.booster_options == {"partition": "boost", "exclusive": True}


def test_the_elastic_template_asks_for_the_base_as_any_supervised_job() -> None:
    template, fixed = (options(path.read_text()) for path in (ELASTIC, SUPERVISED[0]))
    assert {**template, "nodes": "", "partition": ""} == {**fixed, "nodes": "", "partition": ""}
    assert template["nodes"] == "3"


# A stand-in for srun: says which nodes the program was started on, ends it with the next of the codes given, has the
# nodes in LOST not answer, and frees memory by saying so.
SRUN = """
case "$*" in
*/dev/shm/*) echo "free $*" >> {folder}/asked ;;
*" true") for node in $LOST; do case "$*" in *=$node" true") exit 1 ;; esac; done ;;
*)
    echo "program $(uniq "$SLURM_HOSTFILE" | tr '\\n' ' ')" >> {folder}/asked
    read -r code rest < {folder}/codes
    echo "$rest" > {folder}/codes
    exit "$code" ;;
esac
"""


@pytest.fixture
def mpi_job(tmp_path: Path, program: Any) -> Callable[..., tuple[int, list[str]]]:
    """Runs mpi.sbatch on nodes n1 to n4, one of them a spare; returns its exit code and what it has asked for."""

    def start(codes: str, *, lost: str = "", restarts: str = "0") -> tuple[int, list[str]]:
        (tmp_path / "codes").write_text(f"{codes}\n")
        program("srun", SRUN.format(folder=tmp_path))
        program("scontrol", f'[ "$1" = show ] && printf "n%s\\n" 1 2 3 4 || echo "$*" >> {tmp_path}/asked')
        env = {"SLURM_JOB_NODELIST": "n[1-4]", "SLURM_NTASKS_PER_NODE": "2", "SLURM_CLUSTER_NAME": "c"}
        done = run_template("mpi.sbatch", tmp_path, "heat.py", **env, SLURM_RESTART_COUNT=restarts, LOST=lost)
        return done.returncode, (tmp_path / "asked").read_text().splitlines()

    return start


def test_an_mpi_program_that_ends_is_not_started_again_and_leaves_no_memory(mpi_job: Any) -> None:
    returned, asked = mpi_job("0")
    assert returned == 0 and asked[0] == "program n1 n2 n3 " and len(asked) == 2
    assert asked[-1].endswith(f"rm -rf /dev/shm/holdfast-{os.getuid()}/slurm-c-7")


def test_an_mpi_program_that_fails_twice_by_itself_is_given_up(mpi_job: Any) -> None:
    returned, asked = mpi_job("3 3 0")
    assert returned == 3 and asked[:-1] == ["program n1 n2 n3 "] * 2
    assert asked[-1].startswith("free ")


def test_an_mpi_program_that_was_killed_is_started_again_on_its_nodes(mpi_job: Any) -> None:
    returned, asked = mpi_job("137 137 0")
    assert returned == 0 and asked[:-1] == ["program n1 n2 n3 "] * 3


def test_a_spare_takes_a_lost_nodes_place_and_the_others_stay_in_theirs(mpi_job: Any) -> None:
    returned, asked = mpi_job("1 0", lost="n2")
    assert returned == 0 and asked[:-1] == ["program n1 n2 n3 ", "program n1 n4 n3 "]
    assert "--nodelist=n1,n3,n4 " in asked[-1]


def test_with_too_few_nodes_left_the_job_goes_back_into_the_queue_and_keeps_its_memory(mpi_job: Any) -> None:
    returned, asked = mpi_job("137", lost="n2 n3")
    assert returned == 137 and asked == ["program n1 n2 n3 ", "requeue 7"]


def test_an_mpi_program_that_is_killed_every_time_is_given_up(mpi_job: Any) -> None:
    returned, asked = mpi_job("137 137 137", restarts="9")
    assert returned == 137 and [line.split()[0] for line in asked] == ["program", "program", "free"]


def test_the_supervisor_takes_the_shells_place(tmp_path: Path, program: Any) -> None:
    program("holdfast", 'echo "$$ $*"')
    process = subprocess.Popen(
        ["bash", SUPERVISED[0], "job.yaml"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.communicate(timeout=20)[0] == f"{process.pid} supervise job.yaml\n"


@pytest.mark.parametrize("name", ["launcher", "ckpt", "slurm", "lifecycle", "typer"])
def test_a_module_beside_the_template_is_not_taken_for_one_of_ours(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("raise SystemExit('the user’s own')")
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text("script: train.py\n")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = run_template("train.sbatch", tmp_path, "job.yaml", PATH=path, SLURM_JOB_ID="")
    assert done.returncode == 2 and "environment: SLURM_JOB_ID" in done.stderr


def test_without_a_job_file_the_template_says_how_to_use_it() -> None:
    done = subprocess.run(["bash", SUPERVISED[0]], check=False, capture_output=True, text=True)
    assert done.returncode != 0 and "sbatch train.sbatch JOB.yaml" in done.stderr
