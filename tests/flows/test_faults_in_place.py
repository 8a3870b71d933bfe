"""Faults of processes, which leave the nodes as they are: one job on a real Slurm, broken again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from broken_job import EVERY, HANG_S, RECOVERY_S, BrokenJob, Comeback

from launcher.runner.watch import AGENT_START_TIMEOUT_S

pytestmark = [pytest.mark.slurm, pytest.mark.faults]


OUTAGE_S = 60.0


@pytest.fixture(scope="module")
def submitted(shared_fault_cluster: Any, small_share: Path) -> Iterator[Callable[[], BrokenJob]]:
    """The module's job; another one where a test has ended it."""
    jobs: list[BrokenJob] = []

    def job() -> BrokenJob:
        if not jobs or jobs[-1].is_over:
            jobs.append(BrokenJob(shared_fault_cluster, small_share / f"in-place-{len(jobs)}"))
        return jobs[-1]

    yield job


@pytest.fixture
def job(submitted: Callable[[], BrokenJob], steady_digests: dict[int, str]) -> Iterator[BrokenJob]:
    """A job in mid-training. Whatever a test did to it, its weights are those of a run that nothing interrupts."""
    job = submitted()
    job.settle()
    yield job
    if not job.is_over:
        job.settle()
    job.check_digests(steady_digests)


@contextmanager
def filled(share: Path) -> Iterator[None]:
    """No byte more can be written to a file system meanwhile."""
    filler = share / "filler"
    try:
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        yield
    finally:
        filler.unlink()


def check_in_place(job: BrokenJob, comeback: Comeback, kind: str) -> None:
    """It came back on the lowest rung, from memory, with all that was committed there."""
    story = job.watch.story()
    assert comeback.fault["kind"] == kind, story
    assert (comeback.recovery.rung, comeback.recovery.restored_from) == ("workers", "memory"), story
    assert comeback.lost_nothing_committed, story
    assert not job.watch.events("node_out"), story


def test_a_killed_worker(job: BrokenJob) -> None:
    comeback = job.recover(lambda: job.signal("KILL", 3))
    check_in_place(job, comeback, "process_exit")
    assert comeback.fault["node"] == job.node_of(3) and comeback.fault["rank"] == 3
    assert "was ended by SIGKILL" in comeback.fault["reason"]


def test_a_worker_with_an_exception(job: BrokenJob) -> None:
    comeback = job.recover(lambda: job.tell("raise-2"))
    check_in_place(job, comeback, "user_error")
    assert comeback.fault["node"] == job.node_of(2) and comeback.fault["rank"] == 2
    assert "RuntimeError: told to fail at rank 2" in comeback.fault["traceback"]


def test_all_workers_of_a_node(job: BrokenJob) -> None:
    comeback = job.recover(lambda: job.signal("KILL", 2, 3))
    check_in_place(job, comeback, "process_exit")
    assert comeback.fault["node"] == job.node_of(2)


def test_a_stopped_worker(job: BrokenJob) -> None:
    comeback = job.recover(lambda: job.signal("STOP", 1))
    check_in_place(job, comeback, "hang")
    assert comeback.fault["rank"] == 1 and "stopped" in comeback.fault["reason"]
    assert comeback.fault["detect"] >= HANG_S


def test_a_collective_that_waits_for_one_rank(job: BrokenJob) -> None:
    comeback = job.recover(lambda: job.tell("away-2"))
    check_in_place(job, comeback, "hang")
    assert comeback.fault["rank"] == 2 and "steady.py" in comeback.fault["reason"]
    attempt = job.watch.job_dir / "log" / f"attempt-{comeback.fault['attempt']}"
    assert "all_reduce" in (attempt / "rank-0.stack").read_text()


def test_a_killed_checkpoint_agent(job: BrokenJob) -> None:
    """Slurm ends the whole step with it: all agents are replaced while the workers train on."""
    before = job.attempt
    saved = job.lose_agent(job.node_of(2))
    assert job.attempt == before, job.watch.story()
    assert "agents_lost" in [event["event"] for event in job.watch.events()], job.watch.story()

    comeback = job.recover(lambda: job.signal("KILL", 0))
    check_in_place(job, comeback, "process_exit")
    assert comeback.recovery.step_resumed is not None and comeback.recovery.step_resumed >= saved, job.watch.story()


def test_agents_are_forked_from_their_nodes_templates_and_none_is_needed(job: BrokenJob) -> None:
    node = job.node_of(2)

    def parent() -> str:
        pid = job.watch.until(lambda: job.agent_of(node, in_mpi=True), 30, f"agent on {node}")
        look = f"tr '\\0' ' ' </proc/$(ps -o ppid= -p {pid} | tr -d ' ')/cmdline"
        return str(job.cluster.run_on_node(node, ["sh", "-c", look]).stdout)

    check_in_place(job, job.recover(lambda: job.signal("KILL", 0)), "process_exit")
    assert "ckpt.agent.template" in parent()
    template = r"^[^ ]*python.* ckpt\.agent\.template"
    job.cluster.run_on_node(node, ["pkill", "-STOP", "-f", template])
    check_in_place(job, job.recover(lambda: job.signal("KILL", 3)), "process_exit")
    assert "slurmstepd" in parent()
    job.cluster.run_on_node(node, ["pkill", "-CONT", "-f", template])


@pytest.mark.parametrize("in_mpi", [False, True], ids=["before it starts MPI", "in MPI_Init"])
def test_a_checkpoint_agent_killed_before_the_restore(job: BrokenJob, in_mpi: bool) -> None:
    """Agents that wait for it in MPI_Init end with it, long before the runners give it up."""
    before, waiting, other = job.attempt["attempt"], job.node_of(0), job.node_of(2)

    def kill_in_the_next_attempt() -> None:
        with job.agent_held_back(waiting):
            job.signal("KILL", 3)
            job.watch.wait_for("attempt_start", 30, attempt=before + 1)
            pid = job.watch.until(lambda: job.agent_of(other, in_mpi=True), 30, f"agent on {other} in MPI_Init")
            node = other if in_mpi else waiting
            pid = pid if in_mpi else job.watch.until(lambda: job.agent_of(waiting, in_mpi=False), 30, "waiting agent")
            job.cluster.run_on_node(node, ["kill", "-KILL", pid])
            job.watch.wait_for("fault", AGENT_START_TIMEOUT_S / 2, attempt=before + 1, kind="agent_lost")

    check_in_place(job, job.recover(kill_in_the_next_attempt), "process_exit")


def test_a_checkpoint_agent_that_is_stuck_before_the_restore(job: BrokenJob) -> None:
    """All agents wait for it in MPI_Init; their runners wait no longer than ten times what it took before."""
    before, waiting, other = job.attempt["attempt"], job.node_of(0), job.node_of(2)

    def stop_in_the_next_attempt() -> None:
        with job.agent_held_back(waiting):
            job.signal("KILL", 3)
            job.watch.wait_for("attempt_start", 30, attempt=before + 1)
            pid = job.watch.until(lambda: job.agent_of(other, in_mpi=True), 30, f"agent on {other} in MPI_Init")
            job.cluster.run_on_node(other, ["kill", "-STOP", pid])
        fault = job.watch.wait_for("fault", RECOVERY_S, attempt=before + 1)
        assert fault["kind"] == "agent_lost", job.watch.story()
        job.wait_until_gone(other, pid)

    check_in_place(job, job.recover(stop_in_the_next_attempt), "process_exit")


@pytest.mark.timeout(300)
def test_a_controller_that_is_away(job: BrokenJob) -> None:
    """For over a minute. Training needs no slurmctld. A restart waits for it, and ends in a requeue if need be."""
    before = job.attempt
    with ExitStack() as outage:
        outage.callback(job.cluster.start_daemon, "ctl")
        job.cluster.kill_daemon("ctl")
        back_s = time.monotonic() + OUTAGE_S
        outlasted = lambda: max(job.digests()) if time.monotonic() > back_s else None  # noqa: E731
        job.trains_to(job.watch.until(outlasted, OUTAGE_S + 10, "end of the outage") + 2 * EVERY)
        assert job.attempt == before and not job.watch.events("problem"), job.watch.story()

        def lose_a_worker_meanwhile() -> None:
            job.signal("KILL", 1)
            job.watch.wait_for("fault", 60, kind="scheduler_lost")
            outage.close()

        comeback = job.recover(lose_a_worker_meanwhile)
    story = job.watch.story()
    assert comeback.fault["kind"] == "process_exit", story
    assert comeback.recovery.rung in ("workers", "requeue") and comeback.recovery.restored_from == "memory", story
    assert comeback.lost_nothing_committed, story
    assert not job.watch.events("node_out"), story


def test_a_controller_that_has_forgotten_the_newest_step(job: BrokenJob) -> None:
    """Killed before it has saved its state, it gives the number of the agents' step again. No node can start that
    step, because the files of the first one are there; the step after it starts."""
    job.recover(lambda: job.signal("KILL", 1))
    job.cluster.kill_daemon("ctl")
    job.cluster.start_daemon("ctl")
    check_in_place(job, job.recover(lambda: job.signal("KILL", 1)), "process_exit")


def test_a_full_job_folder(job: BrokenJob, small_share: Path) -> None:
    """Training and saving in memory go on; what is told meanwhile is told later."""
    attempt = job.attempt
    with filled(small_share):
        job.saves(0, times=3)
    job.settle()
    assert job.attempt == attempt, job.watch.story()


def test_a_worker_killed_while_the_job_folder_is_full(job: BrokenJob, small_share: Path) -> None:
    def kill_meanwhile() -> None:
        pid, node = job.pid_of(0), job.node_of(0)
        with filled(small_share):
            job.signal("KILL", 3)
            job.wait_until_gone(node, pid)  # the attempt is being cleared; the next one needs room

    comeback = job.recover(kill_meanwhile)
    check_in_place(job, comeback, "process_exit")


def test_a_worker_killed_while_the_job_folder_is_read_only(job: BrokenJob) -> None:
    denied = "Permission denied"

    def kill_meanwhile() -> None:
        folders = [job.watch.job_dir, *(path for path in job.watch.job_dir.rglob("*") if path.is_dir())]
        for folder in folders:
            folder.chmod(0o500)
        try:
            job.signal("KILL", 3)
            job.watch.wait_for("problem", 30, what=lambda what: "folder cannot be written" in what and denied in what)
        finally:
            for folder in folders:
                folder.chmod(0o700)

    comeback = job.recover(kill_meanwhile)
    check_in_place(job, comeback, "process_exit")


def test_a_slurmstepd_of_agents_killed_as_the_job_ends(job: BrokenJob, steady_digests: dict[int, str]) -> None:
    """The srun of the agents waits for it for ever, but the job does not: `finish` has no more time than a recovery."""
    log = job.watch.job_dir / "log" / f"attempt-{job.attempt['attempt']}" / "agents.log"
    ends = f"touch '{job.watch.job_dir}/finish'; until grep -q 'has finished' '{log}'; do :; done"
    kill = r"pkill -KILL -f '^slurmstepd: \[[0-9]+\.[1-9]'"  # those of the runners have step 0
    job.cluster.run_on_node(job.node_of(2), ["sh", "-c", f"{ends}; {kill}"])
    job.finish(steady_digests)
    late = [event for event in job.watch.events("problem") if "were killed" in event["what"]]
    assert not late, job.watch.story()


def test_the_job_ends_as_if_nothing_had_happened(job: BrokenJob, steady_digests: dict[int, str]) -> None:
    job.finish(steady_digests)
