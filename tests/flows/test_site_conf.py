"""Jobs on clusters whose slurm.conf is another than ours: prologs and epilogs that fail, PrologFlags without Alloc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broken_job import RECOVERY_S, BrokenJob
from site_conf import site_conf
from slurm_kit import ends_as, job_state, shown
from waiting import until

from slurm.preemption_conf import elastic_lines
from slurm.testbed import TestCluster

pytestmark = [pytest.mark.slurm, pytest.mark.faults, pytest.mark.timeout(300)]

FAILS_ON = """#!/bin/sh
[ "$SLURMD_NODENAME" != {node} ]
"""
QUIET: dict[str, str | None] = {"HealthCheckInterval": None}  # the testbed's are many
HOLDING = "batch_sched_delay=0,sched_interval=1,bf_interval=1"  # the testbed's, without nohold_on_prolog_fail


@pytest.fixture(scope="module")
def hooked() -> Iterator[TestCluster]:
    cluster = TestCluster.up(f"pytest-{os.getpid()}-site", nodes=3, hooks=True)
    yield cluster
    cluster.down()


def beside_ours(cluster: Any, hook: str, text: str) -> str:
    """A pattern for slurm.conf: a script of the site's, called before ours of the testbed."""
    directory = Path(cluster.env["SLURM_CONF"]).parent / f"{hook}.d"
    directory.mkdir(exist_ok=True)
    script, ours = directory / "z-site", directory / "holdfast"
    script.write_text(text)
    script.chmod(0o755)
    ours.unlink(missing_ok=True)
    ours.symlink_to(directory.parent / "hooks" / f"{hook}.sh")
    return f"{directory}/*"


def reasons(cluster: Any) -> dict[str, str]:
    """Node -> why it gets no jobs."""
    said = cluster.run_as_user(["sinfo", "-h", "-N", "-p", "train", "-t", "drain", "-o", "%N %E"]).stdout
    return dict(line.strip().split(" ", 1) for line in said.splitlines())


def resume(cluster: Any, node: str) -> None:
    cluster.run_on_node(node, ["scontrol", "update", f"NodeName={node}", "State=RESUME"])


@pytest.mark.parametrize("site", ["holds", "requeues", "requeues, no PrologFlags=Alloc"])
def test_a_node_whose_prolog_fails(hooked: Any, steady_digests: dict[int, str], site: str) -> None:
    """Slurm drains it and requeues the job, held or not; it starts on others as if for the first time.

    Without Alloc the prolog runs at the first step: the runners', while the supervisor is at work already.
    """
    sick = hooked.nodes[0] if site == "holds" else hooked.nodes[1]  # the batch host, or another
    lines = {"Prolog": beside_ours(hooked, "prolog", FAILS_ON.format(node=sick)), **QUIET}
    lines |= {"SchedulerParameters": HOLDING} if site == "holds" else {}
    lines |= {"PrologFlags": None} if site.endswith("Alloc") else {}
    with site_conf(hooked, **lines):
        job = BrokenJob(hooked, hooked.home / f"prolog-{site.split(',')[0]}-{len(lines)}", spares=0)
        if site == "holds":
            release = f"scontrol release {job.job_id}"
            job.watch.until(lambda: release in shown(hooked, job.job_id) or None, 60, "job that is held")
            hooked.run_on_node(hooked.nodes[-1], release.split())
        job.settle()
        assert sick not in job.attempt["nodes"], job.watch.story()
        faults = job.watch.events("fault")  # at the runners' start it may know before Slurm requeues it
        assert all(site.endswith("Alloc") and sick in fault["reason"] for fault in faults), job.watch.story()
        assert job.attempt["attempt"] == 0, job.watch.story()
        assert reasons(hooked) == {sick: "Prolog error"}
        job.finish(steady_digests)


def test_without_alloc_a_job_has_its_directories_and_recovers(hooked: Any, steady_digests: dict[int, str]) -> None:
    """The prolog runs on every node at its first step, before its tasks: in time for all of them, spares too."""
    with site_conf(hooked, PrologFlags=None, **QUIET):
        job = BrokenJob(hooked, hooked.home / "no-alloc")
        job.settle()
        lost, (spare,) = job.attempt["nodes"][1], job.attempt["spares"]
        told = f"grep -qz HOLDFAST_MEMORY_DIR=/dev/shm/ /proc/$(pgrep -o -u {hooked.user} -f launcher.runner)/environ"
        for node in hooked.nodes:
            assert hooked.run_on_node(node, ["sh", "-c", told], check=False).returncode == 0, node
        comeback = job.recover(lambda: job.kill_runner(lost))
        assert spare in job.attempt["nodes"] and comeback.recovery.restored_from == "memory", job.watch.story()
        job.settle()
        job.finish(steady_digests)


def test_nodes_whose_epilog_fails(hooked: Any, steady_digests: dict[int, str]) -> None:
    """Slurm drains them as the job leaves, and calls no epilog of ours; too few are left for the job's next run.

    It waits, and says for whom. One node is returned: the job goes on from memory, where what the other held has its
    copy. The other's own memory goes when its time is over.
    """
    with site_conf(hooked, Epilog=beside_ours(hooked, "epilog", "#!/bin/sh\nexit 3\n")):
        job = BrokenJob(hooked, hooked.home / "epilog", spares=0)
        job.settle()
        back, drained = job.attempt["nodes"]
        hooked.set_hooks(drained, keep_memory_s=0)
        hooked.run_as_user(["scontrol", "requeue", job.job_id])
        agreed = job.watch.wait_for("attempt_end", 60, outcome="stopped")
        named = [f"{node}: Epilog error" for node in (back, drained)]
        waits = lambda: all(name in " ".join(shown(hooked, job.job_id).split()) for name in named) or None  # noqa: E731
        job.watch.until(waits, 60, "status that names the drained nodes")
        assert set(reasons(hooked)) == {back, drained}

        resume(hooked, back)
        restored = job.watch.wait_for("restore", RECOVERY_S, attempt=1)
        assert (restored["step"], restored["tier"]) == (agreed["step"], "memory"), job.watch.story()
        job.settle()
        assert drained not in job.attempt["nodes"] and not job.watch.events("node_out"), job.watch.story()
        gone = ["sh", "-c", "! ls -d /dev/shm/holdfast-*/* 2>/dev/null"]
        is_gone = lambda: hooked.run_on_node(drained, gone, check=False).returncode == 0 or None  # noqa: E731
        job.watch.until(is_gone, 60, f"end of the job's memory on {drained}")
        job.finish(steady_digests)
        job.watch.until(ends_as(hooked, job.job_id, "COMPLETED"), 60, "end of the last epilog")


def test_the_lines_for_elastic_jobs_take_nodes_from_boosters_and_from_no_other_job(hooked: Any) -> None:
    site = ["PartitionName=main Nodes=ALL Default=YES", "PartitionName=fast Nodes=ALL PriorityTier=9"]
    lines = [line for line in elastic_lines() if line.startswith("PartitionName=")]
    lines[1:1] = site
    text = "\n".join(lines).removeprefix("PartitionName=")

    def submit(partition: str, nodes: int) -> str:
        argv = ["sbatch", "--parsable", f"--partition={partition}", f"--nodes={nodes}", "--exclusive", "--no-requeue"]
        return str(
            hooked.run_as_user([*argv, "--output=/dev/null", "--wrap=srun --mpi=none sleep 1000"]).stdout.strip()
        )

    def is_running(job: str) -> bool | None:
        return job_state(hooked, job) == "RUNNING" or None

    with site_conf(hooked, PartitionName=text, **QUIET):
        booster = submit("boost", 3)
        until(lambda: is_running(booster), "the booster's start")
        owner = submit("main", 2)
        until(lambda: is_running(owner), "the start of a job that takes the booster's nodes")
        assert not is_running(booster)
        urgent = submit("fast", 3)
        reason = ["squeue", "-h", "-o", "%r", "-j", urgent]
        until(lambda: "Resources" in hooked.run_as_user(reason).stdout or None, "a job that waits for the other")
        assert is_running(owner)
        hooked.run_as_user(["scancel", urgent, owner])
