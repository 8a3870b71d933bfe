"""The hooks on a real Slurm: unfit nodes are drained, jobs start elsewhere, strays end, reboots come back checked."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hooks_kit import state
from waiting import until

from slurm.command import Result
from slurm.hooks.drains import is_ours
from slurm.testbed import TestCluster

pytestmark = [pytest.mark.slurm, pytest.mark.faults]


@pytest.fixture(scope="module")
def hooked() -> Iterator[TestCluster]:
    cluster = TestCluster.up(f"pytest-{os.getpid()}-hooks", nodes=2, hooks=True)
    yield cluster
    cluster.down()


@pytest.fixture
def cluster(hooked: TestCluster) -> Iterator[TestCluster]:
    yield hooked
    for node in hooked.nodes:
        verdict(hooked, node).unlink(missing_ok=True)
        if "DRAIN" in state(hooked, node).flags:
            hooked.run_on_node(node, ["scontrol", "update", f"NodeName={node}", "State=RESUME"])
        until(lambda node=node: state(hooked, node).is_idle, f"{node} idle")


def verdict(cluster: TestCluster, node: str, drain: str = "off") -> Path:
    return cluster.set_hooks(node, drain=drain) / "var/lib/holdfast/verdict.json"


def fail_a_check(cluster: TestCluster, node: str, drain: str = "on") -> None:
    """What a deep check would have left: it stays until a run as deep looks again."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    now_s = time.time()
    row = {"name": "gpu_count", "status": "critical", "measured": "7", "expected": "8", "advice": "", "seconds": 0.1}
    content = {"version": 1, "node": node, "time_s": now_s, "boot_id": boot_id, "level": "deep", "status": "critical"}
    path = verdict(cluster, node, drain)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | {"checks": [row | {"time_s": now_s, "level": "deep"}]}))


def test_a_task_is_told_where_its_memory_is(cluster: TestCluster) -> None:
    said = cluster.run_as_user(["srun", "-N1", "sh", "-c", "cd $HOLDFAST_MEMORY_DIR && touch mine && pwd"]).stdout
    assert said.startswith("/dev/shm/holdfast-")


def test_what_a_job_left_running_ends_with_it(cluster: TestCluster) -> None:
    stray = "setsid bash -c 'exec -a stray-of-mine sleep 600' </dev/null >/dev/null 2>&1 &"
    leave = f"{stray} until pgrep -x -f 'stray-of-mine 600'; do :; done"
    assert cluster.run_as_user(["srun", "-w", "n1", "bash", "-c", leave]).stdout.strip()
    gone = ["sh", "-c", "! pgrep -x -f 'stray-of-mine 600'"]
    until(lambda: cluster.run_on_node("n1", gone, check=False).returncode == 0, "the end of the stray")


def test_a_job_that_meets_an_unfit_node_starts_elsewhere(cluster: TestCluster) -> None:
    """The prolog refuses, Slurm drains the node and queues the job again, not held."""
    fail_a_check(cluster, "n1")
    output = cluster.home / "elsewhere"
    cluster.run_as_user(["sbatch", "-N1", "-o", str(output), "--wrap", "hostname"])
    until(lambda: output.exists() and output.read_text().strip(), "the job's output")
    assert output.read_text().strip() == "n2"
    assert state(cluster, "n1").reason.startswith("holdfast: gpu_count: 7, expected 8")  # not Slurm's "Prolog error"
    assert "DRAIN" in state(cluster, "n1").flags


def test_prologs_drain_no_more_nodes_than_allowed(cluster: TestCluster) -> None:
    """A check that is wrong finds fault with every node: jobs go on running on the others."""
    fail_a_check(cluster, "n1")
    until(lambda: "DRAIN" in state(cluster, "n1").flags, "n1 drained")
    fail_a_check(cluster, "n2")
    said = cluster.run_as_user(["srun", "-w", "n2", "hostname"]).stdout
    assert said.strip() == "n2"
    assert "DRAIN" not in state(cluster, "n2").flags
    log = (cluster.set_hooks("n2") / "var/log/holdfast/hooks.log").read_text()
    assert "the job starts all the same: 1 others are drained, max_drained is 10% of 2" in log


def test_a_drain_that_its_prolog_did_not_live_to_look_at_again_is_taken_back(cluster: TestCluster) -> None:
    """The node was repaired, or the check was wrong; what an admin or healing drains stays."""
    draining = verdict(cluster, "n1").with_name("draining")
    draining.parent.mkdir(parents=True, exist_ok=True)
    reason = "holdfast: gpu_count: 7, expected 8 (seen)"
    cluster.run_on_node("n1", ["scontrol", "update", "NodeName=n1", "State=DRAIN", f"Reason={reason}"])
    draining.write_text(reason)
    until(lambda: state(cluster, "n1").is_idle, "n1 idle")
    assert not draining.exists()


def test_an_idle_node_that_fails_its_checks_is_drained_with_the_reason(cluster: TestCluster) -> None:
    fail_a_check(cluster, "n1")
    until(lambda: "DRAIN" in state(cluster, "n1").flags, "n1 drained")
    assert state(cluster, "n1").reason.startswith("holdfast: gpu_count: 7, expected 8")
    assert state(cluster, "n2").is_idle


def test_what_the_checks_really_find_reaches_the_prolog_and_drains_where_the_admin_allows_it(
    cluster: TestCluster,
) -> None:
    root = cluster.set_hooks("n1", drain="off", check="quick")
    site = root / "etc/holdfast/health.yaml"
    log = root / "var/log/holdfast/hooks.log"
    site.write_text("names: [login1.invalid]\n")
    try:
        until(lambda: "not fit: names: login1.invalid (unknown)" in log.read_text(), "the check's finding")
        cluster.run_as_user(["srun", "-w", "n1", "true"])
        assert "this node is not fit: names: login1.invalid" in log.read_text().partition("] ERROR job ")[2]
        assert "DRAIN" not in state(cluster, "n1").flags
        cluster.set_hooks("n1", drain="on", check="quick")
        until(lambda: state(cluster, "n1").reason.startswith("holdfast: names: login1.invalid (unknown)"), "the drain")
    finally:
        site.unlink()


def test_by_default_a_node_that_fails_its_checks_is_only_spoken_of(cluster: TestCluster) -> None:
    log = verdict(cluster, "n1").parents[2] / "log/holdfast/hooks.log"
    fail_a_check(cluster, "n1", drain="off")
    until(lambda: "would drain it" in log.read_text(), "a line in the log")
    assert state(cluster, "n1").is_idle


def order_reboot(cluster: TestCluster, node: str) -> None:
    cluster.run_on_node("n1", ["scontrol", "reboot", "ASAP", "nextstate=RESUME", "reason=holdfast: test", node])


def order_lost_reboot_again(cluster: TestCluster, node: str) -> None:
    """Slurm now and then loses a reboot that takes only seconds: an answer of the old slurmd ends the node's DOWN."""
    found = state(cluster, node)
    if found.state == "IDLE" and "REBOOT_ISSUED" in found.flags:
        cluster.run_on_node("n1", ["scontrol", "update", f"NodeName={node}", "State=RESUME"])
        order_reboot(cluster, node)


def test_a_rebooted_node_returns_if_it_is_fit_and_is_drained_again_if_not(cluster: TestCluster) -> None:
    """Slurm resumes it as it registers, whatever the check before that found; the next check drains it."""
    slurmd = ["pgrep", "-x", "slurmd"]
    before = cluster.run_on_node("n2", slurmd).stdout

    def is_back() -> bool:
        order_lost_reboot_again(cluster, "n2")
        return state(cluster, "n2").is_idle

    order_reboot(cluster, "n2")
    until(lambda: cluster.run_on_node("n2", slurmd, check=False).stdout not in ("", before), "slurmd anew")
    until(is_back, "n2 back")

    fail_a_check(cluster, "n2")
    again = "rebooting node n2"
    log = verdict(cluster, "n2", drain="on").parents[2] / "log/holdfast/hooks.log"
    reboots = log.read_text().count(again)

    def is_drained_again() -> bool:
        order_lost_reboot_again(cluster, "n2")
        since = log.read_text().rpartition(again)[2]
        found = state(cluster, "n2")  # without accounts, Slurm 24.11 keeps the reason of a node that it resumes
        return "] ERROR drained: gpu_count" in since and is_ours(found) and "gpu_count" in found.reason

    order_reboot(cluster, "n2")
    until(lambda: log.read_text().count(again) > reboots, "the second reboot")
    until(is_drained_again, "n2 drained again")


# Stops the checks of the health hook that runs; prints their process, the hook's body, and slurmd's script, which leads
# a process group of its own.
FREEZE = """
checks=$(pgrep -o -f '[-]m launcher node check') && kill -STOP $checks || exit 1
body=$(ps -o ppid= $checks) && echo $checks $body $(ps -o pgid= $(ps -o ppid= $body))
"""


def run(cluster: TestCluster, node: str, script: str) -> Result:
    return cluster.run_on_node(node, ["sh", "-c", script], check=False)


def test_health_checks_that_hang_end_by_themselves_before_slurm_would_kill_them(cluster: TestCluster) -> None:
    """Slurm kills a HealthCheckProgram after 60 s, and whenever slurmd is stopped: then its script, and no more."""
    logs = {node: cluster.home.parent / "log" / f"{node}.log" for node in cluster.nodes}
    before = {node: log.stat().st_size for node, log in logs.items()}
    frozen = {
        node: until(lambda node=node: run(cluster, node, FREEZE).stdout.split(), f"a health check on {node}")
        for node in cluster.nodes
    }
    verdicts = [verdict(cluster, node) for node in cluster.nodes]
    for path in verdicts:
        path.unlink(missing_ok=True)
    cluster.run_on_node("n2", ["kill", "-KILL", "--", f"-{frozen['n2'][2]}"])

    for node, pids in frozen.items():
        gone = f"for pid in {' '.join(pids)}; do kill -0 $pid && exit 1; done; exit 0"
        until(lambda node=node, gone=gone: run(cluster, node, gone).returncode == 0, f"their end on {node}", 90)
        until(lambda node=node: state(cluster, node).is_idle, f"{node} idle")
    until(lambda: all(path.exists() for path in verdicts), "the verdicts of the next checks")
    assert [json.loads(path.read_text())["version"] for path in verdicts] == [1, 1]
    assert "no answer within" in (verdicts[0].parents[2] / "log/holdfast/hooks.log").read_text()
    said = {node: logs[node].read_text()[before[node] :] for node in logs}
    assert "health_check" not in said["n1"] and "health_check killed by signal 9" in said["n2"], said
