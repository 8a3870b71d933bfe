"""What launched the runners says of nodes that it could not reach."""

from __future__ import annotations

from pathlib import Path

from launcher.clusters.slurm.srun_log import Launches

NODES = ("n1", "n2", "n3", "n4")

# As srun of 22.05 says it, with --quiet.
SAID = """\
srun: error: slurm_receive_msgs: [[n3]:6818] failed: Socket timed out on send/recv operation
srun: error: Task launch for StepId=1.0 failed on node n3: Socket timed out on send/recv operation
srun: error: Application launch failed: Socket timed out on send/recv operation
srun: error: n1: task 0: Killed
"""


def test_what_srun_says_of_a_launch_names_its_node(tmp_path: Path) -> None:
    log = tmp_path / "srun.log"
    first = Launches(log)
    assert first.failed(NODES) == {}
    log.write_text(SAID)
    why = "srun could start no process there: Socket timed out on send/recv operation"
    assert first.failed(NODES) == {"n3": why}
    assert first.failed(("n1", "n2")) == {}
    assert Launches(log).failed(NODES) == {}  # the next srun's has yet to say something


def test_a_task_that_cannot_be_launched_names_its_node(tmp_path: Path) -> None:
    """As srun of 22.05 says it where PMIx's files of an earlier step of this number are left on the node."""
    log = tmp_path / "srun.log"
    launches = Launches(log, tasks=("n2", "n3"))
    log.write_text("srun: error: task 1 launch failed: Unspecified error\nsrun: error: n2: task 0: Killed\n")
    assert launches.failed(NODES) == {"n3": "srun could start no process there: Unspecified error"}
    assert Launches(tmp_path / "none", tasks=("n2",)).failed(NODES) == {}


def test_a_step_of_which_no_task_can_be_launched_names_no_node(tmp_path: Path) -> None:
    """As srun of 22.05 says it after a slurmctld that was killed has given a step's number a second time."""
    log = tmp_path / "srun.log"
    launches, alone = Launches(log, tasks=("n2", "n3")), Launches(log, tasks=("n2",))
    log.write_text("".join(f"srun: error: task {task} launch failed: Unspecified error\n" for task in (0, 1)))
    assert launches.failed(NODES) == {}
    assert list(alone.failed(NODES)) == ["n2"]  # of one node nothing tells whether it or the step is at fault
    with log.open("a") as file:
        file.write("srun: error: Task launch for StepId=1.3 failed on node n3: Communication connection failure\n")
    assert list(launches.failed(NODES)) == ["n3"]


def test_a_job_that_slurm_is_ending_says_nothing_of_its_nodes(tmp_path: Path) -> None:
    """As srun of 22.05 says it where the job was requeued a moment before."""
    log = tmp_path / "srun.log"
    launches = Launches(log)
    log.write_text(
        "".join(f"srun: error: Task launch for StepId=16.2 failed on node {n}: Job credential revoked\n" for n in NODES)
    )
    assert launches.failed(NODES) == {}
