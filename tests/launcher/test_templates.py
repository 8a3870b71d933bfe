"""The batch scripts to copy: the shell accepts them, and they ask Slurm for what a supervised job rests on."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from launcher.executor import sbatch_script
from launcher.jobfile import JobSpec

TEMPLATES = sorted((Path(__file__).resolve().parents[2] / "sbatch_templates").glob("*.sbatch"))


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_the_shell_accepts_the_template(template: Path) -> None:
    subprocess.run(["bash", "-n", template], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", template], check=True)


def options(script: str) -> dict[str, str]:
    """The script's #SBATCH options, without the comments behind them."""
    lines = (line[len("#SBATCH --") :].split(" #")[0] for line in script.splitlines() if line.startswith("#SBATCH --"))
    return {option: value.strip() for option, _, value in (line.strip().partition("=") for line in lines)}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_the_template_asks_for_what_submission_asks_for(template: Path) -> None:
    submitted = options(sbatch_script(JobSpec(name="job", script=Path("/train.py"), nodes=4, spares=1))[0])
    written = options(template.read_text())
    for option in ("nodes", "ntasks-per-node", "no-kill", "requeue", "signal", "open-mode"):
        assert written[option] == submitted[option]


def test_the_supervisor_takes_the_shells_place(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$$ $*"\n')
    python.chmod(0o755)
    process = subprocess.Popen(
        ["bash", TEMPLATES[0], "job.yaml"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.communicate(timeout=20)[0] == f"{process.pid} -m launcher.supervisor job.yaml\n"


def test_without_a_job_file_the_template_says_how_to_use_it() -> None:
    done = subprocess.run(["bash", TEMPLATES[0]], check=False, capture_output=True, text=True)
    assert done.returncode != 0 and "sbatch train.sbatch JOB.yaml" in done.stderr
