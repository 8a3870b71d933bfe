"""A node that is lost, or frozen, while the job's runners are started: Slurm would end all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broken_job import BrokenJob
from slurm_kit import ends_as

SRUN_GIVES_UP_S = 45.0  # 20 s on Slurm 22.05, 40 s on 24.11
PACE_S = 0.05  # a step takes no less

pytestmark = [pytest.mark.slurm, pytest.mark.faults]

# Stands before the system's own on PATH, and waits until it is let go. The job's first srun only lists the MPI plugins.
HELD = """\
#!/bin/sh
[ "$1" != --mpi=list ] || exec /usr/bin/$(basename "$0") "$@"
touch "$(dirname "$0")/$(basename "$0")-held"
while [ ! -e "$(dirname "$0")/$(basename "$0")-go" ]; do sleep 0.05; done
exec /usr/bin/$(basename "$0") "$@"
"""


class Hold:
    """The job's srun waits, between the supervisor's look at its nodes and the start of the runners; so do those."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        for program in ("srun", "sh"):  # a runner begins as a shell
            (folder / program).write_text(HELD)
            (folder / program).chmod(0o755)
        folder.chmod(0o777)

    @property
    def flag(self) -> str:
        return f"--export=ALL,PATH={self._folder}:/usr/local/bin:/usr/bin:/bin"

    def is_reached(self, program: str) -> bool | None:
        return (self._folder / f"{program}-held").exists() or None

    def let_go(self, program: str) -> None:
        (self._folder / f"{program}-go").touch()


@pytest.fixture
def hold(fault_cluster: Any) -> Iterator[Hold]:
    yield Hold(fault_cluster.home / "held-srun")


def test_a_node_that_dies_before_the_runners_start(
    fault_cluster: Any, hold: Hold, steady_digests: dict[int, str]
) -> None:
    """Slurm ends the step for all; the job starts it again without that node, and nobody is blamed but the node."""
    dead = fault_cluster.nodes[-1]
    job = BrokenJob(fault_cluster, fault_cluster.home / "dies-at-launch", hold.flag, spares=3)
    job.watch.until(lambda: hold.is_reached("srun"), 60, "srun of the runners")
    fault_cluster.kill_daemon(dead)
    hold.let_go("srun")
    job.watch.until(lambda: hold.is_reached("sh"), 30, "start of a runner")
    out = job.watch.wait_for("node_out", 90)
    hold.let_go("sh")

    job.settle()

    assert out["node"] == dead and "srun could start no process there" in out["reason"], job.watch.story()
    assert len(job.watch.events("node_out")) == 1, job.watch.story()
    assert any("runners are started again" in event["what"] for event in job.watch.events("problem"))
    assert not job.watch.events("fault") and len(job.watch.events("attempt_start")) == 1, job.watch.story()
    job.finish(steady_digests)


def test_a_frozen_node_that_slurm_still_believes_in(fault_cluster: Any, steady_digests: dict[int, str]) -> None:
    """Its slurmd is stopped: it takes calls and answers none. srun would give up later, and end the step for all."""
    frozen = fault_cluster.nodes[-1]
    job = BrokenJob(fault_cluster, fault_cluster.home / "frozen-at-launch", spares=3)
    job.watch.until(ends_as(fault_cluster, job.job_id, "RUNNING"), 30, "start of the batch script")
    fault_cluster.freeze_daemon(frozen)
    job.settle()
    assert frozen not in job.attempt["nodes"] + job.attempt["spares"], job.watch.story()

    job.trains_to(max(job.digests(), default=0) + round(SRUN_GIVES_UP_S / PACE_S))
    assert not job.watch.events("fault") and len(job.watch.events("attempt_start")) == 1, job.watch.story()
    job.finish(steady_digests)


def test_a_node_that_freezes_before_agents_start(fault_cluster: Any, steady_digests: dict[int, str]) -> None:
    """Its runner lives, so it looks ready; srun names it, and a spare takes its place."""
    job = BrokenJob(fault_cluster, fault_cluster.home / "frozen-at-agents", spares=3)
    job.settle()
    frozen = job.attempt["nodes"][1]
    fault_cluster.freeze_daemon(frozen)

    comeback = job.recover(lambda: job.signal("KILL", 0))

    assert comeback.fault["kind"] == "process_exit"
    (out,) = job.watch.events("node_out")
    assert out["node"] == frozen and "srun could start no process there" in out["reason"], job.watch.story()
    assert (comeback.recovery.rung, comeback.recovery.restored_from) == ("spare", "memory"), job.watch.story()
    assert comeback.lost_nothing_committed, job.watch.story()
    job.settle()
    job.finish(steady_digests)
