"""Signals that Slurm sends to every process of a job, at any time; and what a script has forked by then."""

from __future__ import annotations

import re
from typing import Any

import pytest
from broken_job import EVERY, BrokenJob

pytestmark = [pytest.mark.slurm, pytest.mark.faults]

LOADERS = 2
RANKS = range(4)


class LoadingJob(BrokenJob):
    """Each rank reads from a DataLoader with forked workers."""

    def log(self, rank: int, attempt: int | None = None) -> str:
        number = self.attempt["attempt"] if attempt is None else attempt
        return (self.watch.job_dir / "log" / f"attempt-{number}" / f"rank-{rank}.log").read_text()

    def loaders(self, rank: int) -> list[str]:
        """Pids of a rank's DataLoader workers in the pid namespace of its node."""
        return re.findall(r"^loader (\d+)$", self.log(rank), re.MULTILINE)

    def heard(self, rank: int) -> list[str]:
        """Pids of those of a rank's processes that have heard SIGUSR1."""
        return re.findall(r"^(\d+) heard SIGUSR1$", self.log(rank), re.MULTILINE)

    def memory_held_by(self, rank: int, pid: str) -> str:
        """The files of the node's memory that a process has open."""
        look = f"ls -l /proc/{pid}/fd | grep -o '/dev/shm/holdfast-.*' || true"
        return self.cluster.run_on_node(self.node_of(rank), ["sh", "-c", look]).stdout

    def send(self, name: str, *options: str) -> None:
        """As Slurm sends a job's `--signal`: to all its steps, or with --batch to its script."""
        self.cluster.run_as_user(["scancel", f"--signal={name}", *options, self.job_id], check=False)

    def wait_for_batch_script(self) -> None:
        """Until the batch script has run its first line, and so ignores SIGUSR1. Before that, the signal ends it."""
        look = (
            "for pid in $(pgrep -f 'slurm_script|launcher.submission.batch'); do "
            "mask=$(awk '/^SigIgn/ {print $2}' /proc/$pid/status); "
            "[ $((0x$mask & 0x200)) != 0 ] && echo $pid; done; true"
        )

        def ignores() -> bool | None:
            names = self.cluster.run_as_user(["squeue", "--noheader", "--format=%B", f"--jobs={self.job_id}"])
            host = names.stdout.strip()
            return (
                bool(host in self.cluster.nodes and self.cluster.run_on_node(host, ["sh", "-c", look]).stdout) or None
            )

        self.watch.until(ignores, 60, "batch script that runs")

    def settle_under(self, name: str, *options: str) -> int:
        """Signals it again and again from its start to its first step."""

        def trains() -> bool | None:
            self.send(name, *options)
            return bool(self.watch.events("first_step")) or None

        self.watch.until(trains, 120, "first step")
        return self.settle()


def test_signals_to_all_processes_of_a_job_that_loads_data(fault_cluster: Any, steady_digests: dict[int, str]) -> None:
    """USR1 from the first moment on, as `--signal=USR1@N` may send it; a SIGTERM as at a preemption; a lost rank."""
    home = fault_cluster.home / "signals"
    args, limit = ["--loaders", str(LOADERS)], {"time": 11, "slurm": {"signal": "USR1@600"}}
    job = LoadingJob(fault_cluster, home, args=args, **limit)
    job.settle_under("USR1")
    before = {rank: len(job.heard(rank)) for rank in RANKS}
    job.send("USR1")
    job.watch.until(lambda: all(len(job.heard(r)) > before[r] for r in RANKS) or None, 30, "word of every rank")

    for rank in RANKS:
        assert set(job.heard(rank)) == {job.pid_of(rank)}, job.log(rank)
        loaders = job.loaders(rank)
        assert len(loaders) == LOADERS
        assert "board" in job.memory_held_by(rank, job.pid_of(rank))
        assert [job.memory_held_by(rank, loader) for loader in loaders] == [""] * LOADERS
    job.trains_to(max(job.digests()) + 2 * EVERY)
    assert not job.watch.events("fault") and len(job.watch.events("attempt_start")) == 1, job.watch.story()
    assert not job.watch.events("stop_requested"), job.watch.story()

    job.send("TERM")
    agreed = job.watch.wait_for("attempt_end", 60, attempt=0)
    assert agreed["outcome"] == "stopped", job.watch.story()
    restored = job.watch.wait_for("restore", 90, attempt=1)
    assert (restored["step"], restored["tier"]) == (agreed["step"], "memory"), job.watch.story()
    assert not job.watch.events("fault"), job.watch.story()
    assert not [rank for rank in RANKS if re.search("Traceback|Error|killed", job.log(rank, attempt=0))]

    job.settle()
    node, orphans = job.node_of(3), job.loaders(3)
    comeback = job.recover(lambda: job.signal("KILL", 3))
    assert comeback.fault["kind"] == "process_exit" and comeback.recovery.rung == "workers", job.watch.story()
    for orphan in orphans:
        job.wait_until_gone(node, orphan)
    job.settle()
    job.finish(steady_digests)


def test_a_warning_to_the_batch_script_before_it_listens(fault_cluster: Any, steady_digests: dict[int, str]) -> None:
    """`--signal=B:USR1@60`: at first it ends nothing and stops nothing; near the limit the job saves and goes on."""
    limit = {"time": 10, "slurm": {"signal": "B:USR1@60"}}
    job = LoadingJob(fault_cluster, fault_cluster.home / "warned", **limit)
    job.wait_for_batch_script()
    job.settle_under("USR1", "--batch")
    assert "Slurm warns that the time limit is near" in (job.watch.job_dir / "log" / "supervisor.log").read_text()
    assert not job.watch.events("stop_requested") and not job.watch.events("takeover"), job.watch.story()

    job.set_time_limit(120)
    told = job.watch.wait_for("stop_requested", 130)
    agreed = job.watch.wait_for("attempt_end", 30, attempt=0)
    job.set_time_limit(600)
    restored = job.watch.wait_for("restore", 90, attempt=1)
    job.settle()
    job.finish(steady_digests)

    assert told["reason"] == "time_limit" and agreed["outcome"] == "stopped", job.watch.story()
    assert (restored["step"], restored["tier"]) == (agreed["step"], "memory"), job.watch.story()
    assert not job.watch.events("fault")
