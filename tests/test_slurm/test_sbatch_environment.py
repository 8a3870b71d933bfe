"""The SBATCH_* variables that would override a batch script."""

from __future__ import annotations

import pytest

from slurm.sbatch_environment import overriding

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
