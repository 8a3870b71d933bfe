"""The testbed does what real clusters do, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slurm import Job, Node, Slurm
from slurm.command import CommandError, run
from slurm.testbed import TestbedError, TestCluster, namespaces
from slurm.testbed.plan import DATA_ROOT, RUN_ROOT, ClusterPlan, load_plan

pytestmark = pytest.mark.slurm

WAIT_S = 90.0  # far longer than anything here takes

WHO_AND_WHERE = """
import os, socket
from mpi4py import MPI
print(MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank, socket.gethostname(), os.getuid(), flush=True)
"""

# The commands can read it, and slurmctld cannot start with it.
OF_NO_CONTROLLER = """\
ClusterName={name}
SlurmctldHost=ctl({controller})
StateSaveLocation=/proc/none
{nodes}
"""


@pytest.fixture
def name() -> Iterator[str]:
    """A name for a cluster of the test's own; whatever the test leaves of it is removed."""
    name = f"pytest-{os.getpid()}-own"
    yield name
    if name in TestCluster.list():
        TestCluster.load(name).down()


def until(condition: Callable[[], bool]) -> None:
    start_s = time.monotonic()
    while not condition():
        assert time.monotonic() - start_s < WAIT_S, "condition did not come true in time"
        time.sleep(0.1)


def node_of(cluster: TestCluster, name: str) -> Node:
    return next(node for node in Slurm(env=cluster.env).nodes() if node.name == name)


def job_of(cluster: TestCluster, job_id: int) -> Job:
    job = Slurm(env=cluster.env).job(job_id)
    assert job is not None
    return job


def submit(cluster: TestCluster, *arguments: str) -> int:
    return int(cluster.run_as_user(["sbatch", "--parsable", *arguments]).stdout)


def start_job(cluster: TestCluster, *arguments: str) -> int:
    """Submit a job and wait until it runs."""
    job_id = submit(cluster, *arguments)
    until(lambda: job_of(cluster, job_id).state == "RUNNING")
    return job_id


def left_of(plan: ClusterPlan) -> list[str]:
    """Everything of a cluster that is still on this machine."""
    paths = (str(plan.run_dir), str(plan.data_dir))
    left = [path for path in paths if os.path.exists(path)]
    left += [link for link in links() if link == plan.bridge or link.startswith(f"{plan.bridge}-")]
    for file in ("/proc/self/mountinfo", "/etc/hosts"):
        left += [line for line in Path(file).read_text().splitlines() if any(path in line for path in paths)]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            text = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
        except OSError:
            continue
        left += [f"{process}: {text!r}" for path in paths if path.encode() in text]
    return left


def links() -> list[str]:
    return os.listdir("/sys/class/net")


def plan_of(name: str) -> ClusterPlan:
    plan = load_plan(RUN_ROOT / name)
    assert plan is not None
    return plan


@pytest.mark.pmix
def test_an_mpi_program_spans_the_nodes_and_runs_as_the_ordinary_user(slurm_cluster: TestCluster) -> None:
    slurm_cluster.run_as_user(["tee", "who.py"], input=WHO_AND_WHERE)
    wrapped = f"srun --mpi=pmix {sys.executable} who.py"
    job_id = submit(slurm_cluster, "-N4", "-o", "who.out", "--wrap", wrapped)
    until(lambda: job_of(slurm_cluster, job_id).has_ended)
    uid = slurm_cluster.home.stat().st_uid
    assert uid != 0
    said = sorted((slurm_cluster.home / "who.out").read_text().splitlines())
    assert said == [f"4 {rank} {node} {uid}" for rank, node in enumerate(slurm_cluster.nodes)]


def test_srun_works_from_the_host_and_nodes_know_each_other_by_name(slurm_cluster: TestCluster) -> None:
    said = slurm_cluster.run_as_user(["srun", "-N4", "--label", "getent", "hosts", "n4"]).stdout
    assert sorted(line.split()[1:] for line in said.splitlines()) == [[address(slurm_cluster, "n4"), "n4"]] * 4


def address(cluster: TestCluster, node: str) -> str:
    return next(entry["address"] for entry in cluster.status()["nodes"] if entry["name"] == node)


def test_each_node_has_memory_and_disk_of_its_own(slurm_cluster: TestCluster) -> None:
    for directory in ("/dev/shm", "/tmp", str(slurm_cluster.nvme)):
        slurm_cluster.run_as_user(["srun", "-N1", "-w", "n1", "touch", f"{directory}/mine"])
        found = slurm_cluster.run_as_user(["srun", "-N2", "-w", "n[1-2]", "--label", "ls", directory]).stdout
        assert found.splitlines().count("0: mine") == 1 and "1: mine" not in found
        assert not Path(directory, "mine").exists()


@pytest.mark.faults
def test_a_node_that_is_cut_off_goes_on_unheard_and_comes_back(slurm_cluster: TestCluster) -> None:
    start_job(slurm_cluster, "-N3", "--wrap", "srun -N3 sleep 300")
    until(lambda: slurm_cluster.run_on_node("n2", ["pgrep", "-x", "sleep"], check=False).returncode == 0)
    slurm_cluster.node_down("n2")
    assert slurm_cluster.status()["nodes"][1]["link"] is False
    connect = f"import socket; socket.create_connection(('{address(slurm_cluster, 'n2')}', 6818), timeout=0.5)"
    assert slurm_cluster.run_on_node("n1", [sys.executable, "-S", "-c", connect], check=False).returncode == 1
    assert slurm_cluster.run_on_node("n2", ["pgrep", "-x", "sleep"]).returncode == 0
    until(lambda: not node_of(slurm_cluster, "n2").responds)
    slurm_cluster.node_up("n2")
    until(lambda: node_of(slurm_cluster, "n2").responds)


@pytest.mark.skipif(shutil.which("slurmd-wlm") is None, reason="Debian's name")
def test_a_daemon_that_has_executed_itself_again_is_found_by_its_files_name(slurm_cluster: TestCluster) -> None:
    slurm_cluster.kill_daemon("n2")
    itself = "exec -a slurmd slurmd-wlm -N n2"  # as `scontrol reconfigure` has it; 24.11 ends under another name
    slurm_cluster.run_on_node("n2", ["bash", "-c", itself])
    slurm_cluster.freeze_daemon("n2")
    slurm_cluster.restore()
    slurm_cluster.run_on_node("n2", ["pgrep", "-x", "slurmd-wlm"])
    slurm_cluster.kill_daemon("n2")
    assert slurm_cluster.run_on_node("n2", ["pgrep", "-f", "^slurmd"], check=False).returncode == 1


def test_a_crash_takes_all_processes_and_the_memory_but_not_the_disk(slurm_cluster: TestCluster) -> None:
    start_job(slurm_cluster, "-N1", "-w", "n3", "--no-requeue", "--wrap", "sleep 4711")
    for directory in ("/dev/shm", str(slurm_cluster.nvme)):
        slurm_cluster.run_on_node("n3", ["touch", f"{directory}/kept"])
    slurm_cluster.crash_node("n3")
    assert slurm_cluster.status()["nodes"][2]["running"] is False
    assert run(["pgrep", "-f", "sleep 4711"], check=False).returncode == 1
    with pytest.raises(TestbedError, match=r"n3 of cluster .* is not running \(crashed\); restart it first"):
        slurm_cluster.run_on_node("n3", ["true"])
    with pytest.raises(TestbedError, match=r"n3 of cluster .* has no network link \(crashed\); restart it first"):
        slurm_cluster.node_up("n3")
    slurm_cluster.restart_node("n3")
    assert slurm_cluster.run_on_node("n3", ["ls", "/dev/shm"]).stdout == ""
    assert "kept" in slurm_cluster.run_on_node("n3", ["ls", str(slurm_cluster.nvme)]).stdout
    slurm_cluster.restore()
    assert slurm_cluster.run_as_user(["srun", "-N1", "-w", "n3", "hostname"]).stdout == "n3\n"


def test_a_requeued_job_starts_again_within_seconds(slurm_cluster: TestCluster) -> None:
    job_id = start_job(slurm_cluster, "-N2", "--requeue", "--wrap", "sleep 300")
    Slurm(env=slurm_cluster.env).requeue(job_id)
    until(lambda: job_of(slurm_cluster, job_id).state == "RUNNING" and job_of(slurm_cluster, job_id).restarts == 1)


def test_an_urgent_job_preempts_one_booster_and_spares_the_base(slurm_cluster: TestCluster) -> None:
    base = start_job(slurm_cluster, "-p", "base", "-N2", "--exclusive", "--wrap", "srun sleep 300")
    booster = ("-p", "train", "-N1", "--exclusive", "--wrap", "srun sleep 300")
    boosters = [start_job(slurm_cluster, *booster) for _ in range(2)]
    urgent = submit(slurm_cluster, "-p", "urgent", "-N1", "--exclusive", "--wrap", "srun sleep 300")
    until(lambda: job_of(slurm_cluster, urgent).state == "RUNNING")
    assert [job_of(slurm_cluster, job_id).state for job_id in boosters].count("RUNNING") == 1
    assert job_of(slurm_cluster, base).state == "RUNNING"


def test_restore_brings_back_whatever_was_lost(slurm_cluster: TestCluster) -> None:
    run(["ip", "link", "delete", plan_of(slurm_cluster.name).link("n4")])
    start_job(slurm_cluster, "-N4", "--wrap", "trap '' TERM; sleep 300")
    slurm_cluster.node_down("n1")
    slurm_cluster.crash_node("n2")
    Slurm(env=slurm_cluster.env).drain("n3", "a test")
    left = f"mkdir /dev/shm/left && touch /dev/shm/left/shard && chown -R {slurm_cluster.user} /dev/shm/left"
    slurm_cluster.run_on_node("n3", ["sh", "-c", left])
    slurm_cluster.restore()
    assert slurm_cluster.run_on_node("n3", ["ls", "/dev/shm"]).stdout == ""
    assert {entry["state"] for entry in slurm_cluster.status()["nodes"]} == {"IDLE"}
    assert len(slurm_cluster.run_as_user(["srun", "-N4", "hostname"]).stdout.split()) == 4


def test_clusters_stand_side_by_side_and_go_without_each_other(slurm_cluster: TestCluster, name: str) -> None:
    other = TestCluster.up(name, nodes=2)
    plan = plan_of(name)
    assert {slurm_cluster.name, name} <= set(TestCluster.list())
    assert sorted(other.run_as_user(["srun", "-N2", "hostname"]).stdout.split()) == ["n1", "n2"]
    start_job(other, "-N2", "--wrap", "srun sleep 300")
    assert left_of(plan)
    other.down()
    assert left_of(plan) == []
    other.down()  # nothing is there, so nothing happens
    assert len(slurm_cluster.run_as_user(["srun", "-N4", "hostname"]).stdout.split()) == 4


def test_up_of_a_cluster_that_exists_is_refused_and_does_no_harm(slurm_cluster: TestCluster) -> None:
    with pytest.raises(TestbedError, match="exists, perhaps only in part; `holdfast cluster down --name"):
        TestCluster.up(slurm_cluster.name)
    assert slurm_cluster.status()["controller"] == "up"


DIE_AT = """
import os, signal, sys

left = int(sys.argv[2])

def die(event, args):
    global left
    writes = event == "open" and args[2] & os.O_ACCMODE != os.O_RDONLY
    if writes or event in ("os.mkdir", "os.rename", "os.chown", "os.remove", "subprocess.Popen"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

from slurm.testbed import TestCluster
TestCluster.check = staticmethod(lambda user: None)
sys.addaudithook(die)
TestCluster.up(sys.argv[1], nodes=2)
"""


@pytest.mark.parametrize("step", range(0, 48, 2))
def test_down_leaves_nothing_of_an_up_that_was_killed(name: str, step: int) -> None:
    """`up` kills itself at its step-th action on the system (directory, file, program)."""
    died = subprocess.run([sys.executable, "-c", DIE_AT, name, str(step)], check=False, timeout=60)
    assert died.returncode in (-signal.SIGKILL, 0)
    plan = load_plan(RUN_ROOT / name)
    if plan is None:
        with pytest.raises(TestbedError, match="no cluster"):
            TestCluster.load(name)
    else:
        TestCluster.load(name).down()
        assert left_of(plan) == []
    assert name not in TestCluster.list()
    assert not (RUN_ROOT / ".draft").exists() and not (DATA_ROOT / name).exists()


@pytest.mark.parametrize("step", range(0, 16, 2))
def test_down_that_was_killed_can_be_repeated(name: str, step: int) -> None:
    plan = plan_of(TestCluster.up(name, nodes=1).name)
    code = DIE_AT.replace("TestCluster.up(sys.argv[1], nodes=2)", "cluster.down()")
    code = code.replace("sys.addaudithook", "cluster = TestCluster.load(sys.argv[1])\nsys.addaudithook")
    died = subprocess.run([sys.executable, "-c", code, name, str(step)], check=False, timeout=60)
    assert died.returncode in (-signal.SIGKILL, 0)
    if name in TestCluster.list():
        TestCluster.load(name).down()
    assert left_of(plan) == []


def test_a_down_that_comes_second_leaves_a_newer_cluster_in_the_same_network_alone(name: str) -> None:
    cluster = TestCluster.up(name, nodes=1)
    gone = TestCluster(replace(plan_of(name), name=f"{name}-gone"))  # its number, so its network, was given again
    gone.down()
    assert cluster.run_on_node("n1", ["hostname"]).stdout.strip() == "n1"
    assert plan_of(name).link("n1") in namespaces.links(run)


def test_an_up_that_fails_leaves_nothing_and_says_why(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm.testbed.daemons.SLURM_CONF", OF_NO_CONTROLLER)
    monkeypatch.setattr("slurm.testbed.cluster.READY_TIMEOUT_S", 1.0)
    plans: list[ClusterPlan] = []
    monkeypatch.setattr("slurm.testbed.namespaces.add_bridge", lambda plan, run: plans.append(plan))
    with pytest.raises((TestbedError, CommandError)):
        TestCluster.up(name, nodes=1)
    assert left_of(plans[0]) == []


def test_a_user_without_the_right_to_run_this_python_is_told_so(name: str, tmp_path: Path) -> None:
    hidden = tmp_path / "python"
    hidden.symlink_to(sys.executable)
    tmp_path.chmod(0o700)
    check = "import sys; from slurm.testbed import TestCluster; sys.executable = sys.argv[1]; TestCluster.check()"
    said = run([sys.executable, "-c", check, str(hidden)], check=False).stderr
    assert "TestbedError: user nobody cannot run" in said and "/usr/bin/python3" in said


def test_without_root_the_error_says_what_to_do(slurm_cluster: TestCluster) -> None:
    code = "from slurm.testbed import TestCluster; TestCluster.up('mine')"
    said = slurm_cluster.run_as_user([sys.executable, "-c", code], check=False).stderr
    assert said.splitlines()[-1].endswith("needs root (namespaces, a network bridge): run it with sudo")


@pytest.mark.parametrize("name", ["", "Upper", "../etc", "a" * 32, "1a", "a b", ".draft"])
def test_a_name_that_could_do_harm_is_refused(name: str) -> None:
    with pytest.raises(TestbedError, match="cluster name: got"):
        TestCluster.up(name)


@pytest.mark.parametrize("nodes", [0, -1, 65])
def test_a_size_that_cannot_be_is_refused(nodes: int) -> None:
    with pytest.raises(TestbedError, match="number of nodes: got"):
        TestCluster.up("mine", nodes=nodes)


@pytest.mark.parametrize("user", ["root", "no-such-user"])
def test_a_user_that_cannot_be_is_refused(user: str) -> None:
    with pytest.raises(TestbedError, match="user of the cluster"):
        TestCluster.up("mine", user=user)


def test_an_unknown_node_is_named_with_those_there_are(slurm_cluster: TestCluster) -> None:
    with pytest.raises(TestbedError, match=r"got 'n9', expected one of n1, n2, n3, n4"):
        slurm_cluster.node_down("n9")
