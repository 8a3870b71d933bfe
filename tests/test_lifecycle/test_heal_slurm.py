"""Healing on a real Slurm: what a node's probe, its health hook, RebootProgram and the healer do together."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lifecycle.errors import LifecycleError
from lifecycle.heal import comparison
from lifecycle.heal.case import RESERVATION
from lifecycle.heal.healer import Healer
from lifecycle.heal.history import Case, HealHistory
from lifecycle.heal.lemons import offenders
from lifecycle.heal.settings import HealSettings
from slurm.client import Slurm
from slurm.command import CommandError
from slurm.records import Node
from slurm.testbed import TestCluster

pytestmark = [pytest.mark.slurm, pytest.mark.faults]

WAIT_S = 60.0  # far longer than anything here takes
DEEP_S = 200.0  # torch is loaded anew in each rank
PAIRS = (sys.executable, "-m", "launcher", "node", "check", "--only", "allreduce_pairs", "--brief")
CHECK = (sys.executable, "-m", "launcher", "node", "check", "--only", "memory_file_system")


class Site:
    """A cluster whose nodes break when told, and a healer on its controller."""

    def __init__(self, cluster: TestCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.slurm = Slurm(env=os.environ | cluster.env)
        self.state = folder / "heal.json"
        self.settings = HealSettings(heal="on", check=CHECK, check_pairs=(), reboot_again_s=10)

    def node(self, name: str) -> Node:
        return next(node for node in self.slurm.nodes() if node.name == name)

    def set_hooks(self, name: str, *, reboot_repairs: bool, **settings: str) -> Path:
        """Its health hook drains; what is broken ends with a reboot, or does not. Returns the node's verdict."""
        root = self.cluster.set_hooks(name)
        power_cycle = (root / "etc/holdfast/hooks.yaml").read_text().partition("reboot: ")[2].split()[0]
        script = self.cluster.home / f"reboot-{name}"  # /tmp is each node's own
        repair = "umount /dev/shm\n" if reboot_repairs else ""
        script.write_text(f"#!/bin/bash\n{repair}exec {power_cycle}\n")
        script.chmod(0o755)
        return (
            self.cluster.set_hooks(name, drain="on", reboot=str(script), **settings) / "var/lib/holdfast/verdict.json"
        )

    def break_(self, name: str) -> None:
        """Leaves no room for checkpoints in memory: the node's own probe finds that."""
        self.cluster.run_on_node(name, ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm"])

    def repair(self, name: str) -> None:
        self.cluster.run_on_node(name, ["umount", "/dev/shm"])

    def is_released(self) -> bool:
        """No reservation is left; Slurm keeps those whose jobs still end."""
        for reservation in self.slurm.reservations():
            with contextlib.suppress(CommandError):
                self.slurm.release(reservation)
        return not self.slurm.reservations()

    def look(self) -> list[str]:
        """One pass of a new healer, as after a crash: all it knows is in the file."""
        return [one.what for one in Healer(self.slurm, self.settings, HealHistory.read(self.state)).look()]

    def told(self, name: str) -> list[str]:
        return [event.what for event in HealHistory.read(self.state).of(name)]

    def until(
        self, condition: Callable[[], object], what: str, *, heal: bool = True, deadline_s: float = WAIT_S
    ) -> None:
        end_s = time.monotonic() + deadline_s
        while not condition():
            assert time.monotonic() < end_s, f"waited {deadline_s} s for {what}; {self.slurm.nodes()}"
            if heal:
                self.look()
            time.sleep(0.2)


@pytest.fixture(scope="module")
def hooked() -> Iterator[TestCluster]:
    cluster = TestCluster.up(f"pytest-{os.getpid()}-heal", nodes=4, hooks=True)
    yield cluster
    cluster.down()


@pytest.fixture
def site(hooked: TestCluster, tmp_path: Path) -> Iterator[Site]:
    site = Site(hooked, tmp_path)
    yield site
    for name in hooked.nodes:
        (hooked.set_hooks(name) / "var/lib/holdfast/verdict.json").unlink(missing_ok=True)
        while "size=1024k" in hooked.run_on_node(name, ["grep", " /dev/shm ", "/proc/mounts"]).stdout:
            site.repair(name)
    hooked.run_on_node("n1", ["scancel", "--user=root"])
    site.until(site.is_released, "the end of the reservations", heal=False)
    hooked.restore()


def test_a_node_whose_probe_fails_is_rebooted_and_returns_after_its_check(site: Site) -> None:
    site.set_hooks("n1", reboot_repairs=True)
    site.break_("n1")
    site.until(lambda: "DRAIN" in site.node("n1").flags, "n1 drained", heal=False)
    assert "memory_file_system" in site.node("n1").reason
    before = site.node("n1").slurmd_started
    seen: list[str] = []

    def is_back() -> bool:
        seen.extend(site.look())
        reserved = RESERVATION + "n1" in site.slurm.reservations()
        assert reserved or site.told("n1")[-1] == "returned"  # nobody's job gets it before
        return not reserved

    site.until(is_back, "n1 back", heal=False)
    assert site.told("n1") == ["reboot", "returned"]
    assert "checking" in seen
    assert site.node("n1").slurmd_started != before
    site.until(lambda: site.node("n1").is_idle, "n1 idle")
    assert site.slurm.reservations() == ()


def test_a_node_that_a_reboot_does_not_repair_stays_out(site: Site) -> None:
    """Slurm resumes it; in its reservation it gets no job; it is drained again and given up."""
    verdict = site.set_hooks("n1", reboot_repairs=False)
    site.break_("n1")
    site.until(lambda: site.told("n1")[-1:] == ["lemon"], "n1 given up")
    assert site.told("n1") == ["reboot", "failed", "lemon"]
    assert site.node("n1").reason.startswith("holdfast: lemon: 1 reboots in vain; ")
    assert "DRAIN" in site.node("n1").flags
    assert site.look() == []

    with pytest.raises(LifecycleError, match="n2: not drained"):
        Healer(site.slurm, site.settings, HealHistory.read(site.state)).bring_back("n2", lambda _: None)
    site.repair("n1")
    # A check that began before the repair may drain it once more.
    site.until(
        lambda: json.loads(verdict.read_text())["status"] != "critical", "the hook to see the repair", heal=False
    )
    healer = Healer(site.slurm, site.settings, HealHistory.read(site.state))
    assert healer.bring_back("n1", lambda _: time.sleep(0.2)).what == "repaired"
    site.until(lambda: site.node("n1").is_idle, "n1 idle")


def test_a_reboot_that_slurm_has_lost_is_ordered_again(site: Site) -> None:
    """RebootProgram ends well the first time, and nothing happens: Slurm waits for the node for ever."""
    site.settings = HealSettings(heal="on", check=CHECK, check_pairs=(), reboot_again_s=8)
    site.set_hooks("n1", reboot_repairs=False)
    script, asked = site.cluster.home / "reboot-n1", site.cluster.home / "asked"
    again = script.read_text().replace(
        "#!/bin/bash", f"#!/bin/bash\necho >>{asked}; (( $(wc -l <{asked}) > 1 )) || exit 0"
    )
    script.write_text(again)
    site.slurm.drain("n1", "holdfast: as the hook would")
    before = site.node("n1").slurmd_started
    site.until(lambda: site.told("n1")[-1:] == ["returned"], "n1 back", deadline_s=2 * WAIT_S)
    assert site.told("n1") == ["reboot", "returned"]
    assert len(asked.read_text().splitlines()) > 1
    assert site.node("n1").slurmd_started != before


def deep_check(site: Site, health: str) -> tuple[str, ...]:
    """The real deep level, with gloo's all-reduce within the node; what measures this machine's speed is left out."""
    home = site.cluster.home  # /tmp is each node's own
    settings = home / "deep.yaml"
    settings.write_text(f"skip: [cpu_speed, memory_bandwidth, shm_speed, nvme_speed, tcp_loopback]\n{health}")
    program = (sys.executable, "-m", "launcher", "node", "check", "--level", "deep", "--config", str(settings))
    return ("sh", "-c", f"{shlex.join(program)} --verdict {home}/deep.json >{home}/said 2>&1")


def test_a_node_returns_after_the_deep_check_and_one_that_fails_it_again_and_again_is_an_offender(site: Site) -> None:
    site.set_hooks("n1", reboot_repairs=False)
    site.settings = HealSettings(heal="on", check=deep_check(site, ""), check_pairs=(), reboot_again_s=10)
    site.slurm.drain("n1", "holdfast: as the hook would")
    site.until(lambda: len(site.told("n1")) == 2, "the end of n1's deep check", deadline_s=DEEP_S)
    assert site.told("n1") == ["reboot", "returned"], (site.cluster.home / "said").read_text()
    rows = {row["name"]: row for row in json.loads((site.cluster.home / "deep.json").read_text())["checks"]}
    assert rows["allreduce"]["status"] == "ok" and "2 ranks, gloo" in rows["allreduce"]["measured"]

    site.set_hooks("n2", reboot_repairs=False)  # fit for its own hooks; only the deep check finds fault with it
    fails = deep_check(site, "names: [storage.invalid]\n")
    site.settings = HealSettings(heal="on", check=fails, check_pairs=(), reboots=2, reboot_again_s=10, flap_s=0)
    site.slurm.drain("n2", "holdfast: as the hook would")
    site.until(lambda: site.told("n2")[-1:] == ["lemon"], "n2 given up", deadline_s=2 * DEEP_S)
    assert site.told("n2") == ["reboot", "failed", "reboot", "failed", "lemon"]
    assert "DRAIN" in site.node("n2").flags
    assert re.match(r"holdfast: lemon: 2 reboots in vain; .*its check failed \(job", site.node("n2").reason)
    (worst, *_) = offenders(HealHistory.read(site.state).events, [], since_s=0.0)
    assert (worst.node, worst.is_lemon, worst.reboots, worst.failed) == ("n2", True, 2, 2)


def test_a_node_that_a_deep_check_failed_returns_though_its_hook_looks_during_the_next_one(site: Site) -> None:
    """The hook's own looks leave what the deep check found."""
    verdict = site.set_hooks("n1", reboot_repairs=False)
    boot_id, now_s = Path("/proc/sys/kernel/random/boot_id").read_text().strip(), time.time()
    row = {"name": "allreduce", "status": "critical", "measured": "1", "expected": "9", "time_s": now_s}
    verdict.parent.mkdir(parents=True, exist_ok=True)
    head = {"version": 1, "node": "n1", "time_s": now_s, "boot_id": boot_id, "level": "deep", "status": "critical"}
    verdict.write_text(json.dumps(head | {"checks": [row | {"level": "deep", "advice": "", "seconds": 0.1}]}))
    site.until(lambda: "DRAIN" in site.node("n1").flags, "n1 drained", heal=False)

    looked = f"grep -q 'under maintenance.*allreduce' {verdict.parents[2] / 'log/holdfast/hooks.log'}"
    passes = ("sh", "-c", f"until {looked}; do sleep 0.1; done; rm {verdict}")
    site.settings = HealSettings(heal="on", check=passes, check_pairs=())
    healer = Healer(site.slurm, site.settings, HealHistory.read(site.state))
    assert healer.bring_back("n1", lambda _: time.sleep(0.2)).what == "repaired"
    site.until(lambda: site.node("n1").is_idle, "n1 idle", heal=False)


def slow_down(site: Site, *names: str) -> None:
    """Their links pass a small part of what they did."""
    for name in site.cluster.nodes:
        site.cluster.run_on_node(name, ["tc", "qdisc", "del", "dev", "eth0", "root"], check=False)
    for name in names:
        shape = ["tbf", "rate", "40mbit", "burst", "64kb", "latency", "400ms"]
        site.cluster.run_on_node(name, ["tc", "qdisc", "add", "dev", "eth0", "root", *shape])


@pytest.mark.timeout(600)
def test_a_node_that_is_slow_with_neighbours_which_do_well_without_it_stays_out(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = site.cluster.home / "pairs.log"
    monkeypatch.setattr(comparison, "PAIRS_LOG", log)
    site.settings = HealSettings(heal="on", check=("true",), check_pairs=PAIRS, replace="none")
    bring_back = lambda: Healer(site.slurm, site.settings, HealHistory.read(site.state)).bring_back(  # noqa: E731
        "n2", lambda _: time.sleep(0.2)
    )
    site.slurm.drain("n2", "holdfast: as the hook would")
    try:
        slow_down(site, "n2")
        assert bring_back().what == "failed", log.read_text()
        assert "slow or wrong with n1, n3, which do well without it" in site.node("n2").reason
        assert "DRAIN" in site.node("n2").flags and " on n[1-3]: " in log.read_text()
        assert site.node("n1").is_idle and site.node("n3").is_idle

        slow_down(site, "n1")
        assert bring_back().what == "repaired", log.read_text()
        assert "warning" in log.read_text().splitlines()[-1]  # it is n1's, and said so
        site.until(lambda: site.node("n2").is_idle, "n2 idle")
    finally:
        slow_down(site)


def test_without_an_idle_neighbour_a_node_returns_when_its_time_for_that_is_up(site: Site) -> None:
    for name in ("n2", "n3", "n4"):
        site.slurm.drain(name, "disk swap")
    site.settings = HealSettings(heal="on", check=("true",), check_pairs=PAIRS, pairs_timeout_s=2)
    site.slurm.drain("n1", "holdfast: as the hook would")
    outcome = Healer(site.slurm, site.settings, HealHistory.read(site.state)).bring_back(
        "n1", lambda _: time.sleep(0.2)
    )
    assert (outcome.what, outcome.why) == (
        "repaired",
        "as the hook would (between nodes nothing was measured in time)",
    )


def test_healers_that_are_killed_one_after_the_other_bring_a_node_back(site: Site) -> None:
    """Real processes, SIGKILL, a real Slurm; test_heal_killed.py has every point."""
    site.set_hooks("n1", reboot_repairs=True)
    settings = site.folder / "heal.yaml"
    settings.write_text("heal: on\ncheck: ['true']\ncheck_pairs: ['true']\n")
    settings.chmod(0o644)
    site.slurm.drain("n1", "holdfast: as the hook would")
    argv = [sys.executable, "-m", "launcher", "node", "heal", "--every", "0.1"]
    argv += ["--config", str(settings), "--state", str(site.state)]
    reached: list[Callable[[Case], object]] = [
        lambda case: True,
        lambda case: case.asked,
        lambda case: case.job,
        lambda case: case.passed_s,
    ]
    for condition in [*reached, None]:
        healer = subprocess.Popen(argv, env=os.environ | site.cluster.env, stdout=subprocess.DEVNULL)
        try:
            site.until(
                lambda condition=condition: (
                    site.told("n1")[-1:] == ["returned"]
                    or (condition and (found := HealHistory.read(site.state).cases.get("n1")) and condition(found))
                ),
                "the healer",
                heal=False,
            )
        finally:
            healer.kill()
            healer.wait()
    assert site.told("n1") == ["reboot", "returned"]
    site.until(lambda: site.node("n1").is_idle and not site.slurm.reservations(), "n1 idle")


def test_a_flapping_node_is_not_rebooted_again_and_again(site: Site) -> None:
    site.set_hooks("n1", reboot_repairs=True)
    site.break_("n1")
    site.until(lambda: site.told("n1")[-1:] == ["returned"], "n1 back")
    site.break_("n1")
    site.until(lambda: site.told("n1")[-1:] == ["lemon"], "n1 given up")
    assert site.told("n1") == ["reboot", "returned", "lemon"]
    assert "failed again within 60 min of its return" in site.node("n1").reason


def test_a_node_whose_mount_does_not_answer_is_drained_in_time_and_the_others_are_not(site: Site) -> None:
    """The hook's own check, beside a file system that holds whoever asks it."""
    place, served_by, log = (site.cluster.home / name for name in ("hung", "hung.pid", "hung.log"))
    place.mkdir(exist_ok=True)
    root = site.cluster.set_hooks("n1", drain="on", check="quick")
    skip = "skip: [cpu_speed, memory_bandwidth, shm_speed, nvme_speed, tcp_loopback]\n"
    (root / "etc/holdfast/health.yaml").write_text(skip)
    serve = shlex.join((sys.executable, str(Path(__file__).with_name("hung_mount.py")), str(place), "sleep", "600"))
    script = f"setsid sh -c 'echo $$ >{served_by}; exec {serve}' >{log} 2>&1 </dev/null &"
    try:
        site.cluster.run_on_node("n1", ["sh", "-c", script])
        site.until(lambda: "DRAIN" in site.node("n1").flags, f"n1 drained; {log}", heal=False)
        assert f"network_mounts: {place} (fuse.hung): no answer within 3 s" in site.node("n1").reason
        assert all(site.node(name).is_idle for name in ("n2", "n3", "n4"))
    finally:
        (root / "etc/holdfast/health.yaml").unlink()
        # Without its server a mount answers: by errors.
        site.cluster.run_on_node("n1", ["kill", "-KILL", "--", f"-{served_by.read_text().strip()}"], check=False)
        site.cluster.run_on_node("n1", ["umount", "--lazy", str(place)], check=False)


def test_jobs_that_fail_drain_no_node(site: Site) -> None:
    """With hooks that drain and a healer that heals: exit codes, signals, tracebacks that speak of GPUs, a cancel."""
    verdicts = {name: site.set_hooks(name, reboot_repairs=False) for name in site.cluster.nodes}
    ways = {
        "n1": "exit 3",
        "n2": "kill -SEGV $$",
        "n3": "python3 -c 'raise SystemError(\"CUDA error: uncorrectable ECC error, Xid 79\")'",
        "n4": "touch /dev/shm/left; sleep 600",
    }
    jobs = {}
    for node, script in ways.items():
        asked = ["sbatch", "--parsable", f"--nodelist={node}", "--output=/dev/null", "--no-requeue", f"--wrap={script}"]
        jobs[node] = int(site.cluster.run_as_user(asked).stdout)
    state = lambda node: job.state if (job := site.slurm.job(jobs[node])) else ""  # noqa: E731
    site.until(lambda: state("n4") == "RUNNING", "the last job", heal=False)
    site.cluster.run_as_user(["scancel", str(jobs["n4"])])
    site.until(lambda: all(state(node) in ("FAILED", "CANCELLED") for node in ways), "the jobs' ends", heal=False)
    site.until(lambda: all(site.node(name).is_idle for name in ways), "idle nodes", heal=False)
    ended_s = time.time()
    site.until(
        lambda: all(path.exists() and path.stat().st_mtime > ended_s for path in verdicts.values()),
        "a look of every node's health hook",
        heal=False,
    )
    assert site.look() == [] and all(site.node(name).is_idle for name in ways)
    assert not site.state.exists()


def test_four_nodes_that_fail_at_once_are_not_all_drained(site: Site) -> None:
    for name in site.cluster.nodes:
        site.set_hooks(name, reboot_repairs=True, max_drained="1")
    for name in site.cluster.nodes:
        site.break_(name)
    logs = {name: site.cluster.set_hooks(name, drain="on", max_drained="1") for name in site.cluster.nodes}
    held = "max_drained is 1 of 4"
    drained = lambda: [node.name for node in site.slurm.nodes() if "DRAIN" in node.flags]  # noqa: E731
    site.until(
        lambda: (
            sum(held in (root / "var/log/holdfast/hooks.log").read_text() for root in logs.values()) == 3
            and len(drained()) == 1
        ),
        "three nodes that are held back",
        heal=False,
    )


def test_no_more_nodes_are_healed_at_once_than_allowed(site: Site) -> None:
    for name in ("n1", "n2"):
        site.slurm.drain(name, "holdfast: as the hook would")
        site.set_hooks(name, reboot_repairs=True)
    assert sorted(site.look()) == ["reboot", "waits"]
    assert site.slurm.reservations() == (RESERVATION + "n1",)
    site.until(lambda: site.told("n2")[-1:] == ["returned"], "n2 back")
    assert [event.node for event in HealHistory.read(site.state).events] == ["n1", "n1", "n2", "n2"]


def test_what_an_admin_drains_is_his(site: Site) -> None:
    site.slurm.drain("n1", "disk swap")
    assert site.look() == []
    with pytest.raises(LifecycleError, match="n1: drained by root, not by holdfast: disk swap"):
        Healer(site.slurm, site.settings, HealHistory.read(site.state)).bring_back("n1", lambda _: None)
    assert "DRAIN" in site.node("n1").flags

    site.set_hooks("n2", reboot_repairs=True)
    site.slurm.drain("n2", "holdfast: as the hook would")
    site.until(lambda: HealHistory.read(site.state).cases["n2"].job if site.look() else None, "n2's check")
    site.slurm.drain("n2", "hands off")
    site.until(lambda: site.told("n2")[-1] == "left", "the healer to leave it")
    site.until(lambda: not site.slurm.reservations(), "the end of the reservation")
    assert "DRAIN" in site.node("n2").flags


def test_a_node_that_hyperpod_replaced_returns_after_its_check(site: Site) -> None:
    """HyperPod acts on the state and the reason; here the new machine is a slurmd that starts anew."""
    site.settings = HealSettings(heal="on", check=CHECK, check_pairs=(), reboots=0, replace="hyperpod")
    site.slurm.drain("n1", "holdfast: as the hook would")
    assert site.look() == ["replace"]
    assert site.node("n1").reason.startswith("Action:Replace [")
    assert "FAIL" in site.node("n1").flags
    assert site.look() == ["waits"]
    site.until(lambda: site.node("n1").slurmd_started != time.strftime("%Y-%m-%dT%H:%M:%S"), "the next second")
    site.cluster.kill_daemon("n1")
    site.cluster.start_daemon("n1")
    site.until(lambda: site.told("n1") == ["replace", "returned"], "n1 back")
    site.until(lambda: site.node("n1").is_idle, "n1 idle")


def test_by_default_nothing_is_changed(site: Site) -> None:
    site.slurm.drain("n1", "holdfast: as the hook would")
    argv = [sys.executable, "-m", "launcher", "node", "heal", "--json", "--config", str(site.folder / "none.yaml")]
    said = subprocess.check_output([*argv, "--state", str(site.state)], env=os.environ | site.cluster.env, text=True)
    told = json.loads(said)
    assert told == {
        "heal": "off",
        "nodes": [{"node": "n1", "what": "would reboot", "why": "as the hook would (reboot 1 of 1)"}],
    }
    assert not list(site.folder.glob("heal.*"))
    assert site.node("n1").flags == {"DRAIN"}
    assert site.slurm.reservations() == ()
