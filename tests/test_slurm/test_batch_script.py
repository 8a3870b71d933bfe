"""The SBATCH_* variables that would override a batch script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurm.batch_script import batch_script, overriding

SCRIPT = "#!/bin/bash\n#SBATCH --time=1-0\n#SBATCH --mem=4G\n#SBATCH --requeue\n#SBATCH --partition=a\n"


@pytest.mark.parametrize(
    ("variable", "overrides"),
    [
        ("SBATCH_TIMELIMIT", True),
        ("SBATCH_PARTITION", True),
        ("SBATCH_NO_REQUEUE", True),
        ("SBATCH_MEM_PER_NODE", True),
        ("SBATCH_MEM_PER_CPU", True),
        ("SBATCH_ARRAY_INX", True),
        ("SBATCH_ACCOUNT", False),
        ("SBATCH_DEBUG", False),
        ("SLURM_CONF", False),
        ("PATH", False),
    ],
)
def test_what_a_script_has_no_variable_sets_and_the_rest_are_defaults(variable: str, overrides: bool) -> None:
    assert overriding({variable: "x"}, SCRIPT, ["array"]) == ((variable,) if overrides else ())


def test_without_a_line_a_variable_is_a_default() -> None:
    assert overriding({"SBATCH_TIMELIMIT": "3"}, "#!/bin/sh\necho '#SBATCH'\n") == ()


def test_a_batch_script_has_each_option_that_was_given_quoted_for_the_shell_that_sbatch_is_not() -> None:
    options = {
        "nodes": "2-4",
        "no-kill": True,
        "constraint": "a100&ib",
        "comment": "",
        "exclusive": False,
        "time": None,
    }
    assert batch_script(options, ["exec true"]) == (
        "#!/bin/bash\n#SBATCH --nodes=2-4\n#SBATCH --no-kill\n#SBATCH --constraint='a100&ib'\nexec true\n"
    )


def test_nothing_else_writes_lines_for_sbatch() -> None:
    root = Path(__file__).resolve().parents[2]
    writers = {
        str(file.relative_to(root))
        for package in ("slurm", "launcher", "lifecycle", "ckpt", "holdfast")
        for file in (root / package).rglob("*.py")
        if re.search(r'f?"#SBATCH', file.read_text())
    }
    assert writers == {"slurm/batch_script.py"}
