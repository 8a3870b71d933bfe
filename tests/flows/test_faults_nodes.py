"""Faults of nodes, on a real Slurm: spares take over, nodes that come back are left alone, nothing stays behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broken_job import EVERY, BrokenJob
from slurm_kit import ends_as, job_state, shown, status

pytestmark = [pytest.mark.slurm, pytest.mark.faults]


def test_two_nodes_at_once(fault_cluster: Any, steady_digests: dict[int, str]) -> None:
    """Cut off together, with Reed-Solomon parity for two: both spares, and nothing lost but the last steps."""
    checkpoint = {
        "namespace": "two",
        "ram": {"every_steps": EVERY, "keep": 2},
        "peers": {"scheme": "rs", "parity": 2},
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
    assert 0 <= comeback.lost_steps <= EVERY, job.watch.story()
    assert comeback.recovery.detect_s is not None and comeback.recovery.detect_s < 3
    job.settle()
    job.finish(steady_digests)
    assert set(status(fault_cluster, job.job_id)["out"]) == set(lost)
    fault_cluster.restore()


def test_runners_and_nodes_that_die_one_after_another(fault_cluster: Any, steady_digests: dict[int, str]) -> None:
    """An idle spare, then a node's runner, then the node that replaces it, while it restores; and a node comes back.

    Before all that the checkpoint agents are lost: what the nodes' loss is survived with was saved by others.
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
    saved = job.lose_agent(lost)

    def lose_node_and_replacement() -> None:
        job.kill_runner(lost)
        job.watch.wait_for("attempt_start", 30, attempt=1)
        fault_cluster.crash_node(first)

    comeback = job.recover(lose_node_and_replacement)

    assert (comeback.fault["kind"], comeback.fault["node"]) == ("node_lost", lost), job.watch.story()
    assert (comeback.recovery.rung, comeback.recovery.restored_from) == ("spare", "memory"), job.watch.story()
    assert 0 <= comeback.lost_steps <= EVERY, job.watch.story()
    assert (comeback.recovery.step_resumed or 0) >= saved, job.watch.story()
    assert first in {event["node"] for event in job.watch.events("fault")}, job.watch.story()

    fault_cluster.restart_node(first)
    job.settle()
    job.recover(lambda: job.signal("KILL", 2))
    assert first not in job.attempt["nodes"] + job.attempt["spares"], job.watch.story()
    job.settle()
    job.finish(steady_digests)
    assert set(status(fault_cluster, job.job_id)["out"]) == {idle, lost, first}
    fault_cluster.restore()


def test_a_node_whose_slurmd_is_killed(fault_cluster: Any, steady_digests: dict[int, str]) -> None:
    """Its processes train on; only when agents are to start there, it turns out that they cannot."""
    job = BrokenJob(fault_cluster, fault_cluster.home / "slurmd")
    job.settle()
    node = job.attempt["nodes"][1]
    fault_cluster.kill_daemon(node)
    job.trains_to(max(job.digests()) + 2 * EVERY)
    assert not job.watch.events("fault"), job.watch.story()

    comeback = job.recover(lambda: job.signal("KILL", 0))

    assert comeback.fault["kind"] == "process_exit"
    (blamed,) = job.watch.events("node_out")
    assert blamed["node"] == node and "slurmd" in blamed["reason"], job.watch.story()
    assert (comeback.recovery.rung, comeback.recovery.restored_from) == ("spare", "memory"), job.watch.story()
    assert 0 <= comeback.lost_steps <= EVERY, job.watch.story()
    job.settle()
    job.finish(steady_digests)
    fault_cluster.restore()


@pytest.fixture
def prolog_fails_on(fault_cluster: Any) -> Iterator[str]:
    """The name of a node on which Slurm's Prolog fails."""
    node = fault_cluster.nodes[1]
    conf = Path(fault_cluster.env["SLURM_CONF"])
    before = conf.read_text()
    script = conf.with_name("prolog.sh")
    script.write_text(f'#!/bin/sh\n[ "$SLURMD_NODENAME" != {node} ]\n')
    script.chmod(0o755)
    held = before.replace("SchedulerParameters=", "SchedulerParameters=nohold_on_prolog_fail,")
    conf.write_text(f"{held}Prolog={script}\nPrologFlags=Alloc\n")
    fault_cluster.run_on_node(node, ["scontrol", "reconfigure"])
    yield node
    conf.write_text(before)
    fault_cluster.run_on_node(node, ["scontrol", "reconfigure"])
    fault_cluster.restore()


def test_a_node_whose_prolog_fails(fault_cluster: Any, prolog_fails_on: str, steady_digests: dict[int, str]) -> None:
    """Slurm drains it and requeues the job, which starts on other nodes as if for the first time."""
    job = BrokenJob(fault_cluster, fault_cluster.home / "prolog")
    job.settle()
    attempt = job.attempt
    assert prolog_fails_on not in attempt["nodes"] + attempt["spares"], job.watch.story()
    drained = fault_cluster.run_as_user(["sinfo", "-h", "-n", prolog_fails_on, "-o", "%T"]).stdout
    assert "drain" in drained
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
    limit = ["scontrol", "update", f"JobId={job.job_id}", "TimeLimit=2"]  # its warning comes 90 s before that
    fault_cluster.run_on_node(job.attempt["nodes"][0], limit)

    told = job.watch.wait_for("stop_requested", 60)
    agreed = job.watch.wait_for("attempt_end", 30, attempt=0)
    fault_cluster.run_on_node(fault_cluster.nodes[0], [*limit[:-1], "TimeLimit=10"])  # as an admin: users only lower it
    restored = job.watch.wait_for("restore", 90, attempt=1)
    again = job.watch.wait_for("attempt_start", 1, attempt=1)
    job.settle()
    job.finish(steady_digests)

    assert told["reason"] == "time_limit" and agreed["outcome"] == "stopped", job.watch.story()
    assert again["rung"] == "requeue"
    assert (restored["step"], restored["tier"]) == (agreed["step"], "memory"), job.watch.story()
    assert not job.watch.events("fault")
