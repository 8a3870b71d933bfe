from __future__ import annotations

import pytest

from slurm import JobEnvironment, SlurmError
from slurm.environment import NotInJobError

INSIDE = {
    "SLURM_JOB_ID": "7",
    "SLURM_CLUSTER_NAME": "t1",
    "SLURM_JOB_PARTITION": "train",
    "SLURM_JOB_NODELIST": "n[1-4]",
    "SLURMD_NODENAME": "n2",
}


def test_reads_the_job_and_the_place_in_it() -> None:
    assert JobEnvironment.from_env(INSIDE) == JobEnvironment(
        job_id=7,
        cluster="t1",
        partition="train",
        nodes=("n1", "n2", "n3", "n4"),
        restart_count=0,
        node="n2",
        reference="7",
    )


def test_a_task_of_an_array_is_not_called_by_its_number_which_may_be_the_whole_arrays() -> None:
    found = JobEnvironment.from_env({**INSIDE, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"})
    assert (found.job_id, found.reference) == (7, "7_3")


def test_a_requeued_job_knows_how_often() -> None:
    assert JobEnvironment.from_env({**INSIDE, "SLURM_RESTART_COUNT": "2"}).restart_count == 2


@pytest.mark.parametrize("variable", INSIDE)
def test_outside_a_job_the_error_names_the_variable_and_the_next_step(variable: str) -> None:
    env = {name: value for name, value in INSIDE.items() if name != variable}
    with pytest.raises(NotInJobError, match=f"{variable} is not set; start this inside a Slurm job") as caught:
        JobEnvironment.from_env(env)
    assert caught.value.variable == variable and isinstance(caught.value, SlurmError)


@pytest.mark.parametrize("value", ["", "-1", "x", "1.5", "²"])
def test_a_job_id_that_is_no_number_is_refused(value: str) -> None:
    with pytest.raises(NotInJobError, match="SLURM_JOB_ID"):
        JobEnvironment.from_env({**INSIDE, "SLURM_JOB_ID": value})
