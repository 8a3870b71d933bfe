"""Faults of nodes, on a real Slurm: spares take over, nodes that come back are left alone, nothing stays behind."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from broken_job import EVERY, RECOVERY_S, BrokenJob
from slurm_kit import ends_as, job_state, shown, status, submit, write_job

from launcher.core.outcomes import JobOutcome
from lifecycle.heal.lemons import read_incidents

pytestmark = [pytest.mark.slurm, pytest.mark.faults]

SLURMD_TIMEOUT_S = 30.0  # of the testbed: after so long Slurm itself finds a node lost


def test_two_nodes_at_once(fault_cluster: Any, steady_digests: dict[int, str]) -> None:
    """Cut off together, with Reed-Solomon parity for two: both spares, and nothing lost that was committed."""
    checkpoint = {
        "namespace": "two",
        "memory": {"every_steps": EVERY, "keep": 2},
        "redundancy": {"scheme": "rs", "parity": 2},
    }
    folder = fault_cluster.home / "two-nodes"
    job = BrokenJob(fault_cluster, folder, nodes=3, spares=2, workers_per_node=1, checkpoint=checkpoint)
    job.settle()
    _, *lost = job.attempt["nodes"]

    def cut_both_off() -> None:
        for node in lost:
            fault_cluster.node_down(node)

    comeback = job.recover(cut_both_off)

    assert comeback.fault["kind"] == "node_lost" and comeback.fault["node"] in lost
    assert (comeback.recovery.rung, comeback.recovery.restored_from) == ("spare", "memory"), job.watch.story()
    assert comeback.lost_nothing_committed, job.watch.story()
    assert comeback.recovery.detect_s is not None and comeback.recovery.detect_s < SLURMD_TIMEOUT_S / 3
    job.settle()
    job.finish(steady_digests)
    assert set(status(fault_cluster, job.job_id)["out"]) == set(lost)


def test_more_nodes_than_spares_are_lost_and_an_elastic_job_shrinks(
    fault_cluster: Any, steady_digests: dict[int, str]
) -> None:
    """Two of three nodes at once, and one spare: two train on, with what parity gives back."""
    checkpoint = {"namespace": "shrink", "memory": {"every_steps": EVERY}, "redundancy": {"scheme": "rs", "parity": 2}}
    job = BrokenJob(
        fault_cluster,
        fault_cluster.home / "shrink",
        nodes=3,
        spares=1,
        workers_per_node=1,
        elastic={"min_nodes": 2},
        checkpoint=checkpoint,
    )
    job.settle()
    kept, *lost = job.attempt["nodes"]
    idle = lambda node: node not in job.attempt["nodes"]  # noqa: E731
    spare = job.watch.wait_for("node_ready", RECOVERY_S, node=idle)["node"]

    def cut_one_off_after_the_other() -> None:
        for node in lost:
            fault_cluster.node_down(node)

    comeback = job.recover(cut_one_off_after_the_other)

    assert (comeback.recovery.rung, comeback.recovery.restored_from) == ("shrink", "memory"), job.watch.story()
    assert set(job.attempt["nodes"]) == {kept, spare}, job.watch.story()
    job.settle()
    job.finish(steady_digests)


@pytest.mark.pmix
def test_a_node_on_which_slurm_cannot_start_agents_is_replaced(
    fault_cluster: Any, steady_digests: dict[int, str]
) -> None:
    """As where a slurmstepd was killed: PMIx finds the directory of an earlier step of this number."""
    job = BrokenJob(fault_cluster, fault_cluster.home / "no-agents", nodes=2, spares=1, workers_per_node=1)
    job.settle()
    first, second = job.attempt["nodes"]
    config = fault_cluster.run_on_node(second, ["scontrol", "show", "config"]).stdout
    spool = next(line.split("=")[1].strip() for line in config.splitlines() if line.startswith("SlurmdSpoolDir"))
    spool = spool.replace("%n", second).replace("%h", second)
    left = [f"{spool}/pmix.{job.job_id}.{step}" for step in range(2, 30)]
    fault_cluster.run_on_node(second, ["mkdir", *left])

    job.signal("KILL", 0)

    out = job.watch.wait_for("node_out", RECOVERY_S, node=lambda node: node == second)
    assert out["reason"].startswith("srun could start no process there: ")
    job.settle()
    assert set(job.attempt["nodes"]) >= {first} and second not in job.attempt["nodes"], job.watch.story()
    job.finish(steady_digests)


def test_runners_and_nodes_that_die_one_after_another(fault_cluster: Any, steady_digests: dict[int, str]) -> None:
    """An idle spare, then a node's runner, then the node that replaces it, while it restores; and a node comes back.

    Before all that a checkpoint agent dies in the middle of a save's redundancy, and all others with it: what is saved,
    and protected, by those in their place is what the nodes' loss is survived with.
    """
    job = BrokenJob(fault_cluster, fault_cluster.home / "one-after-another", nodes=2, spares=3)
    job.settle()
    idle, first, _second = job.attempt["spares"]

    job.kill_runner(idle)
    out = job.watch.wait_for("node_out", 10, node=idle)
    assert "runner" in out["reason"]
    job.trains_to(max(job.digests()) + 2 * EVERY)
    assert len(job.watch.events("attempt_start")) == 1 and not job.watch.events("fault"), job.watch.story()
    assert idle not in status(fault_cluster, job.job_id)["spares"]

    lost = job.attempt["nodes"][1]
    saved = job.lose_agent(lost, in_protect=True)

    def lose_node_and_replacement() -> None:
        job.kill_runner(lost)
        job.watch.wait_for("attempt_start", 30, attempt=1)
        fault_cluster.crash_node(first)

    comeback = job.recover(lose_node_and_replacement)

    assert (comeback.fault["kind"], comeback.fault["node"]) == ("node_lost", lost), job.watch.story()
    assert (comeback.recovery.rung, comeback.recovery.restored_from) == ("spare", "memory"), job.watch.story()
    assert comeback.lost_nothing_committed, job.watch.story()
    assert (comeback.recovery.step_resumed or 0) >= saved, job.watch.story()
    assert first in {event["node"] for event in job.watch.events("fault")}, job.watch.story()

    fault_cluster.restart_node(first)
    job.settle()
    job.recover(lambda: job.signal("KILL", 2))
    assert first not in job.attempt["nodes"] + job.attempt["spares"], job.watch.story()
    job.settle()
    job.finish(steady_digests)
    assert set(status(fault_cluster, job.job_id)["out"]) == {idle, lost, first}


def test_a_job_that_slurm_shrinks(fault_cluster: Any, steady_digests: dict[int, str]) -> None:
    """A training node is taken from it; from then on SLURM_JOB_NODELIST names a node that is not the job's."""
    job = BrokenJob(fault_cluster, fault_cluster.home / "shrunk")
    job.settle()
    (first, taken), (spare,) = job.attempt["nodes"], job.attempt["spares"]
    shrink = ["scontrol", "update", f"JobId={job.job_id}", f"NodeList={first},{spare}"]

    comeback = job.recover(lambda: fault_cluster.run_as_user(shrink))

    assert (comeback.fault["kind"], comeback.fault["node"]) == ("node_lost", taken), job.watch.story()
    assert (comeback.recovery.rung, comeback.recovery.restored_from) == ("spare", "memory"), job.watch.story()
    assert comeback.lost_nothing_committed, job.watch.story()
    assert job.attempt["nodes"] == [first, spare]
    job.settle()
    job.finish(steady_digests)
    job.watch.until(ends_as(fault_cluster, job.job_id, "COMPLETED"), 60, "end of the batch script")


FAILS = "raise RuntimeError('told to fail')\n"


def test_a_script_that_fails_makes_a_job_that_has_failed(fault_cluster: Any) -> None:
    """The runners' srun ends with 0 whatever happens: what Slurm is told is the outcome."""
    folder = fault_cluster.home / "fails"
    job_file = write_job(fault_cluster, folder, {"script": "fails.py", "nodes": 1})
    (folder / "fails.py").write_text(FAILS)
    job_id, watch = submit(fault_cluster, job_file)
    watch.until(ends_as(fault_cluster, job_id, "FAILED"), 90, "failed job")
    record = fault_cluster.run_as_user(["scontrol", "show", "job", "--oneliner", job_id]).stdout
    assert f"ExitCode={JobOutcome.USER_ERROR.exit_code}:0" in record, watch.story()
    assert "RuntimeError: told to fail" in shown(fault_cluster, job_id)


def test_a_python_without_torch_ends_the_job_and_is_held_against_no_node(fault_cluster: Any) -> None:
    """Not requeued: on the next nodes it would be the same, and those after them."""
    folder = fault_cluster.home / "torchless"
    job = {"script": "train.py", "nodes": 2, "spares": 1, "env": {"PYTHONPATH": str(folder)}}
    job_file = write_job(fault_cluster, folder, job)
    (folder / "train.py").write_text("")
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    job_id, watch = submit(fault_cluster, job_file)
    watch.until(ends_as(fault_cluster, job_id, "FAILED"), 90, "failed job")
    record = fault_cluster.run_as_user(["scontrol", "show", "job", "--oneliner", job_id]).stdout
    assert f"ExitCode={JobOutcome.USER_ERROR.exit_code}:0" in record and "Restarts=0" in record, watch.story()
    assert "ExcNodeList=(null)" in record or "ExcNodeList" not in record, record
    assert "cannot load torch" in shown(fault_cluster, job_id)
    assert read_incidents(watch.job_dir / "events.jsonl") == []


def test_a_requeued_job_whose_batch_host_lacks_the_environment(
    fault_cluster: Any, steady_digests: dict[int, str]
) -> None:
    """As where a file system is not mounted: nothing of the job can run there. Slurm gives it another host."""
    *_, unwanted = fault_cluster.nodes
    job = BrokenJob(fault_cluster, fault_cluster.home / "no-environment", f"--exclude={unwanted}")
    job.settle()
    record = fault_cluster.run_as_user(["scontrol", "show", "job", "--oneliner", job.job_id]).stdout
    (host,) = re.findall(r" BatchHost=(\S+)", record)
    packages = str(Path(sys.prefix) / "lib")
    fault_cluster.run_on_node(host, ["mount", "-t", "tmpfs", "tmpfs", packages])
    try:
        fault_cluster.run_as_user(["scontrol", "requeue", job.job_id])
        again = job.watch.wait_for("attempt_start", 240, rung="requeue")
    finally:
        fault_cluster.run_on_node(host, ["umount", "--lazy", packages])
    assert not {host, unwanted} & {*again["nodes"], *again["spares"]}
    job.settle()
    job.finish(steady_digests)


def test_a_node_whose_slurmd_is_killed(fault_cluster: Any, steady_digests: dict[int, str]) -> None:
    """Before the runners start: the job starts without the node. Later: its processes train on, until agents are due.

    In both cases Slurm has not noticed yet.
    """
    never_came = fault_cluster.nodes[-1]
    job = BrokenJob(fault_cluster, fault_cluster.home / "slurmd", spares=3)
    job.watch.until(ends_as(fault_cluster, job.job_id, "RUNNING"), 30, "start of the batch script")
    fault_cluster.kill_daemon(never_came)
    job.settle()
    blamed = {event["node"]: event["reason"] for event in job.watch.events("node_out")}
    assert blamed.keys() == {never_came} and "slurmd" in blamed[never_came], job.watch.story()
    assert not job.watch.events("fault"), job.watch.story()

    node = job.attempt["nodes"][1]
    fault_cluster.kill_daemon(node)
    job.trains_to(max(job.digests()) + 2 * EVERY)
    assert not job.watch.events("fault"), job.watch.story()

    comeback = job.recover(lambda: job.signal("KILL", 0))

    assert comeback.fault["kind"] == "process_exit"
    _, blamed_later = job.watch.events("node_out")
    assert blamed_later["node"] == node and "slurmd" in blamed_later["reason"], job.watch.story()
    assert (comeback.recovery.rung, comeback.recovery.restored_from) == ("spare", "memory"), job.watch.story()
    assert comeback.lost_nothing_committed, job.watch.story()
    job.settle()
    job.finish(steady_digests)


def test_a_cancelled_job_leaves_nothing_on_its_nodes(fault_cluster: Any) -> None:
    job = BrokenJob(fault_cluster, fault_cluster.home / "cancelled")
    job.settle()
    fault_cluster.run_as_user(["scancel", job.job_id])

    job.watch.until(ends_as(fault_cluster, job.job_id, "CANCELLED"), 60, "cancelled job")

    assert status(fault_cluster, job.job_id)["state"] == "cancelled", job.watch.story()
    assert "cancelled" in shown(fault_cluster, job.job_id)
    for node in fault_cluster.nodes:
        left = fault_cluster.run_on_node(node, ["pgrep", "-a", "-u", fault_cluster.user], check=False).stdout
        assert left == "", f"{node}: {left}"
        memory = fault_cluster.run_on_node(
            node, ["sh", "-c", f"ls -d /dev/shm/holdfast-*/*-{job.job_id} || true"]
        ).stdout
        assert memory == "", f"{node}: {memory}"
    assert job_state(fault_cluster, job.job_id) == "CANCELLED"


def test_a_job_whose_time_is_nearly_up_goes_on_in_its_next_run(
    fault_cluster: Any, steady_digests: dict[int, str], small_share: Path
) -> None:
    job = BrokenJob(fault_cluster, small_share / "time-limit")
    job.settle()
    job.set_time_limit(120)  # its warning comes 90 s before that

    told = job.watch.wait_for("stop_requested", 60)
    agreed = job.watch.wait_for("attempt_end", 30, attempt=0)
    job.set_time_limit(600)
    restored = job.watch.wait_for("restore", 90, attempt=1)
    again = job.watch.wait_for("attempt_start", 1, attempt=1)
    job.settle()
    job.finish(steady_digests)

    assert told["reason"] == "time_limit" and agreed["outcome"] == "stopped", job.watch.story()
    assert again["rung"] == "requeue"
    assert (restored["step"], restored["tier"]) == (agreed["step"], "memory"), job.watch.story()
    assert not job.watch.events("fault")
