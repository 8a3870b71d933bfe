"""Checks of the host: real where this machine has the part, a directory as the node where it has not."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from node_kit import node_of, put

from lifecycle.health import allreduce as program
from lifecycle.health import clock, collective, cpu, disks, loopback, mounts, names, objects, processes, record
from lifecycle.health.check import CannotObserve, CheckedNode, NotHere
from lifecycle.health.clock import ClockState, judge_clock
from lifecycle.health.collective import Measured, judge_node, judge_pairs, pairs_of, read_measured, rounds_of
from lifecycle.health.finding import Status
from lifecycle.health.settings import Settings
from lifecycle.instance import expected, instance_type
from slurm.command import CommandError, Result, run
from tests.test_ckpt.s3_kit import BUCKET, KEY, SECRET, S3Server


def test_messages_come_back_through_libfabric() -> None:
    if not shutil.which("fi_pingpong"):
        pytest.skip("needs fi_pingpong (Debian: libfabric-bin)")
    finding = loopback.tcp_loopback.run(CheckedNode())
    assert finding.status is Status.OK and "MB/s at 64 KiB" in finding.measured


def test_a_loopback_without_libfabric_is_skipped(tmp_path: Path) -> None:
    assert loopback.tcp_loopback.run(node_of(tmp_path)).status is Status.SKIPPED


def test_an_all_reduce_on_this_machine_is_right_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "1")  # as on the second node of a step that checks each node for itself
    finding = collective.allreduce.run(CheckedNode())
    assert finding.status is Status.OK and "2 ranks, gloo" in finding.measured


@pytest.mark.slurm
def test_every_pair_of_an_allocation_is_measured(slurm_cluster: object) -> None:
    command = [sys.executable, "-m", "launcher", "node", "check", "--only", "allreduce_pairs", "--json"]
    done = slurm_cluster.run_as_user(["salloc", "-N3", "-t5", *command], timeout_s=120, check=False)  # type: ignore[attr-defined]
    [row] = json.loads(done.stdout)["checks"]
    slow_only = re.fullmatch(r"n\d-n\d: [\d.]+ GB/s(; n\d-n\d: [\d.]+ GB/s)*", row["measured"])  # on a busy machine
    assert row["status"] != "unknown" and (row["measured"].startswith("3 pairs, slowest ") or slow_only), row


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({}, "not in a Slurm allocation"),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}, "one node"),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-4]", "SLURM_STEP_NUM_NODES": "4"}, "from the batch script"),
    ],
)
def test_pairs_are_measured_once_for_an_allocation(environment: dict[str, str], why: str) -> None:
    finding = collective.allreduce_pairs.run(CheckedNode(environment=environment))
    assert finding.status is Status.SKIPPED and why in finding.measured


def test_each_node_is_in_two_pairs_and_never_in_two_at_once() -> None:
    assert pairs_of(["a", "b"]) == [("a", "b")]
    for count in range(3, 12):
        pairs = pairs_of([f"n{number}" for number in range(count)])
        rounds = rounds_of(pairs)
        named = [name for pair in pairs for name in pair]
        assert all(named.count(name) == 2 for name in named)
        assert sorted(pair for round_ in rounds for pair in round_) == sorted(pairs)
        for round_ in rounds:
            flat = [name for pair in round_ for name in pair]
            assert len(flat) == len(set(flat))
        assert len(rounds) <= 3


def gloo(bus_gb_s: float, **more: object) -> Measured:
    return Measured(ranks=4, backend="gloo", bus_gb_s=bus_gb_s, **more)  # type: ignore[arg-type]


def test_the_node_that_is_in_every_slow_pair_is_named() -> None:
    here = os.uname().nodename
    speeds = {("a", "b"): 2.0, ("b", here): 2.1, (here, "c"): 0.3, ("c", "d"): 0.4, ("d", "a"): 2.0}
    finding = judge_pairs({pair: gloo(speed) for pair, speed in speeds.items()}, {}, CheckedNode())
    assert finding.status is Status.WARNING and "drain c" in finding.advice
    speeds = {("a", here): 0.3, (here, "c"): 0.4, ("c", "d"): 2.1, ("d", "e"): 2.0, ("e", "a"): 2.0}
    finding = judge_pairs({pair: gloo(speed) for pair, speed in speeds.items()}, {}, CheckedNode())
    assert finding.status is Status.CRITICAL


@pytest.mark.parametrize(
    ("speeds", "status"),
    [
        ({("n1", "n2"): 0.2, ("n2", "n3"): 2.0, ("n3", "n1"): 0.2}, Status.CRITICAL),  # n1, by two neighbours
        ({("n1", "n2"): 0.2, ("n2", "n3"): 0.2, ("n3", "n1"): 2.0}, Status.WARNING),  # n2: n3 does well with n1
        ({("n1", "n2"): 0.2, ("n2", "n3"): 2.0, ("n3", "n1"): 2.0}, Status.WARNING),  # either, or the way between
        ({("n1", "n2"): 2.0, ("n2", "n3"): 2.1, ("n3", "n1"): 1.8}, Status.OK),
    ],
)
def test_one_node_is_blamed_only_where_its_neighbours_do_well_without_it(
    speeds: dict[tuple[str, str], float], status: Status
) -> None:
    node = CheckedNode(environment={"HOLDFAST_CHECKED_NODE": "n1", "SLURMD_NODENAME": "n3"})
    assert judge_pairs({pair: gloo(speed) for pair, speed in speeds.items()}, {}, node).status is status


def test_one_node_is_not_blamed_for_its_only_pair() -> None:
    wanted = Settings(pair_allreduce_gb_s=10)
    node = CheckedNode(environment={"HOLDFAST_CHECKED_NODE": "n1"}, settings=wanted)
    slow = {("n1", "n2"): gloo(2.0)}
    assert judge_pairs(slow, {}, node).status is Status.WARNING
    here = CheckedNode(environment={"SLURMD_NODENAME": "n1"}, settings=wanted)
    assert judge_pairs(slow, {}, here).status is Status.CRITICAL
    enough = judge_pairs({("n1", "n2"): gloo(8.0)}, {}, here)
    assert enough.status is Status.OK and enough.expected == "at least 8.00 GB/s, 0.8 of the site's 10"


def test_a_node_that_fails_with_every_neighbour_is_blamed_as_a_slow_one() -> None:
    node = CheckedNode(environment={"HOLDFAST_CHECKED_NODE": "n1"})
    failed = {("n1", "n2"): "no route", ("n3", "n1"): "no route"}
    finding = judge_pairs({("n2", "n3"): gloo(2.0)}, failed, node)
    assert finding.status is Status.CRITICAL and "n1-n2: no route" in finding.measured


@pytest.mark.parametrize(("reached", "status"), [(7.9, Status.CRITICAL), (8.0, Status.OK)])
def test_what_the_site_expects_of_an_all_reduce_is_held_to_four_fifths(reached: float, status: Status) -> None:
    finding = judge_node(gloo(reached), 10.0, None)
    assert finding.status is status and finding.expected == "at least 8 GB/s, 0.8 of the site's 10"


def test_the_all_reduce_runs_in_the_interpreter_that_the_site_names(tmp_path: Path) -> None:
    """One that has torch, and not this package: as on a node, where /opt/holdfast is without torch."""
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\necho "$1" >{tmp_path}/asked\ncd / && unset PYTHONPATH && exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    finding = collective.allreduce.run(CheckedNode(settings=Settings(python=str(python))))
    assert finding.status is Status.OK and "2 ranks, gloo" in finding.measured
    assert (tmp_path / "asked").read_text() == "-I\n"


def test_a_wrong_sum_is_critical_and_a_pair_without_result_unknown_alone() -> None:
    assert judge_node(gloo(2.0, right=False), None, None).status is Status.CRITICAL
    here = os.uname().nodename
    assert judge_pairs({("a", here): gloo(2.0, right=False)}, {}, CheckedNode()).status is Status.CRITICAL
    with pytest.raises(Exception, match="no route"):
        judge_pairs({}, {("a", "b"): "no route"}, CheckedNode())


NCCL = '{"ranks": 16, "backend": "nccl", "bus_gb_s": 330.0, "right": true, "nccl_log": "%s"}'
OLD_LIBFABRIC = r"h:1:1 [0] NCCL INFO NET/Plugin: dlerror=libefa.so.1: version `EFA_1.4' not found\n"
GOOD = (
    "n1:1:1 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.16.3\\n"
    "n1:1:1 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)\\n"
    "n1:1:1 [0] NCCL INFO Using network Libfabric\\n"
)
SOCKETS = "n1:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>\\nn1:1:1 [0] NCCL INFO Using network Socket\\n"


HERE = os.uname().nodename


def efa(bus_gb_s: float, interfaces: int, ranks: int = 16) -> Measured:
    return Measured(ranks=ranks, backend="nccl", bus_gb_s=bus_gb_s, network="Libfabric", interfaces=interfaces)


@pytest.mark.parametrize(
    ("instance", "interfaces", "least", "line"),
    [
        ("p4d.24xlarge", 4, 25, 50),
        ("p5.4xlarge", 1, 6.25, 12.5),
        ("p5.48xlarge", 32, 200, 400),
        ("p5en.48xlarge", 16, 200, 400),
        ("p6-b200.48xlarge", 8, 200, 400),
    ],
)
def test_pairs_that_are_all_slow_for_their_type_are_a_warning(
    instance: str, interfaces: int, least: float, line: float
) -> None:
    node = CheckedNode(expected=expected(instance), environment={"SLURMD_NODENAME": "n1"})
    words = f"at least {least:.2f} GB/s, 0.5 of {instance}'s line rate {line:g}"
    for pairs in ([("n1", "n2")], [("n1", "n2"), ("n2", "n3"), ("n3", "n1")]):
        slow = judge_pairs(dict.fromkeys(pairs, efa(least * 0.99, interfaces)), {}, node)
        assert (slow.status, slow.expected) == (Status.WARNING, words)
        enough = judge_pairs(dict.fromkeys(pairs, efa(least, interfaces)), {}, node)
        assert (enough.status, enough.expected) == (Status.OK, words)


def test_a_line_rate_takes_the_place_of_no_other_measure() -> None:
    """Neither the site's own figure, nor what is critical anyway: beside EFA, a wrong sum, far behind the others."""
    machine, here = expected("p5.48xlarge"), {"SLURMD_NODENAME": HERE}
    own = CheckedNode(expected=machine, environment=here, settings=Settings(pair_allreduce_gb_s=100))
    pair = (HERE, "n2")
    assert judge_pairs({pair: efa(80, 32)}, {}, own).status is Status.OK
    assert judge_pairs({pair: efa(79, 32)}, {}, own).status is Status.CRITICAL
    node = CheckedNode(expected=machine, environment=here)
    assert judge_pairs({pair: efa(390, 31)}, {}, node).status is Status.CRITICAL
    three = {pair: efa(100, 32), ("n2", "n3"): efa(390, 32), ("n3", HERE): efa(100, 32)}
    behind = judge_pairs(three, {}, node)
    assert behind.status is Status.CRITICAL and behind.expected.endswith("0.5 of the better pairs' 245.00")
    ahead = judge_pairs({each: efa(500, 32) for each in three}, {}, node)
    assert ahead.status is Status.OK and ahead.expected.endswith("0.5 of the better pairs' 500.00")


def test_a_node_that_is_healed_returns_to_a_cluster_that_is_slow_everywhere() -> None:
    node = CheckedNode(expected=expected("p5.48xlarge"), environment={"HOLDFAST_CHECKED_NODE": "n1"})
    three = [("n1", "n2"), ("n2", "n3"), ("n3", "n1")]
    assert judge_pairs(dict.fromkeys(three, efa(30, 32)), {}, node).status is Status.WARNING


def test_an_all_reduce_within_a_node_is_held_to_half_of_its_nvlinks() -> None:
    machine = expected("p4d.24xlarge")
    published = "at least 150.00 GB/s, 0.5 of p4d.24xlarge's line rate 300"
    slow = judge_node(efa(149, 4, ranks=8), None, machine)
    assert (slow.status, slow.expected) == (Status.WARNING, published)
    assert judge_node(efa(231, 4, ranks=8), None, machine).status is Status.OK  # NVIDIA/nccl#527
    assert judge_node(efa(149, 4, ranks=8), 180.0, machine).status is Status.OK  # the site knows better
    with pytest.raises(CannotObserve, match="sees no GPU"):
        judge_node(gloo(2.0), None, machine)
    with pytest.raises(NotHere, match="one GPU"):
        judge_node(efa(0, 1, ranks=1), 100.0, expected("p5.4xlarge"))


def test_what_is_as_fast_as_its_type_demands_is_measured_with_the_whole_message() -> None:
    """So that what stops earlier, after LONG_S, is below the line: a bandwidth is only known of the largest message."""
    types = yaml.safe_load((Path(program.__file__).parents[1] / "versions.yaml").read_text())["instances"]
    for name in types:
        machine = expected(name)
        assert machine and machine.network_gbit_s, name
        moved_bytes = 2 * program.GPU_BYTES  # by as many ranks as there may be
        for line_gb_s in (machine.network_gbit_s / 8, (machine.nvlink_gb_s or 1e9) / 2):
            assert moved_bytes / (line_gb_s / 2 * 1e9) < program.LONG_S, name


_STALLED = """
import sys, time
import torch.distributed as dist
from lifecycle.health import allreduce
reduce, seen = dist.all_reduce, []
def stalled(tensor, **options):
    seen.append(tensor.nbytes)
    if seen.count(1 << 20) == 2 and tensor.nbytes == 1 << 20:
        time.sleep(2 * allreduce.LONG_S)
    return reduce(tensor, **options)
dist.all_reduce = stalled
sys.exit(allreduce.main(sys.argv[1:]))
"""


def test_an_all_reduce_that_is_held_up_once_is_not_taken_for_slow() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    done = run([sys.executable, "-c", _STALLED, "--port", str(port), "--ranks", "2", "--bytes", str(4 << 20)])
    assert json.loads(done.stdout)["bytes"] == 4 << 20


@pytest.mark.parametrize(
    ("log", "status", "told"),
    [
        (GOOD, Status.OK, "330.00 GB/s Libfabric"),
        (GOOD.replace("Libfabric", "AWS Libfabric"), Status.OK, "AWS Libfabric"),
        (GOOD.replace("found 32", "found 31"), Status.CRITICAL, "NCCL found 31 of 32 EFA interfaces"),
        (SOCKETS, Status.CRITICAL, "NCCL used Socket instead of EFA"),
        (OLD_LIBFABRIC + SOCKETS, Status.CRITICAL, "instead of EFA: libefa.so.1: version `EFA_1.4' not found"),
        ("", Status.CRITICAL, "no network that it names"),
    ],
)
def test_traffic_beside_efa_is_critical_where_there_is_efa(log: str, status: Status, told: str) -> None:
    node = CheckedNode(expected=expected("p5.48xlarge"))
    finding = judge_pairs({(os.uname().nodename, "n2"): read_measured(NCCL % log)}, {}, node)
    assert finding.status is status and told in finding.measured


@pytest.mark.parametrize("speed", ["NaN", "Infinity", "-Infinity", '"fast"', "null"])
def test_a_speed_that_is_no_number_is_no_result(speed: str) -> None:
    with pytest.raises(CannotObserve, match="no result"):
        read_measured((NCCL % GOOD).replace("330.0", speed))


def test_memory_and_cores_are_timed() -> None:
    bandwidth = cpu.memory_bandwidth.run(CheckedNode())
    assert bandwidth.status is Status.OK and float(bandwidth.measured.split()[0]) > 0
    before = os.sched_getaffinity(0)
    assert cpu.cpu_speed.run(CheckedNode()).status in (Status.OK, Status.WARNING)
    assert os.sched_getaffinity(0) == before


def test_a_core_offline_and_memory_errors_are_found(tmp_path: Path) -> None:
    put(tmp_path, "/sys/devices/system/cpu/present", "0-3,8\n")
    put(tmp_path, "/sys/devices/system/cpu/online", "0-3\n")
    finding = cpu.cpus.run(node_of(tmp_path))
    assert finding.status is Status.WARNING and finding.measured == "4 of 5 online"
    for name, count in (("ue_count", "1"), ("ce_count", "12")):
        put(tmp_path, f"/sys/devices/system/edac/mc/mc0/{name}", count)
    finding = cpu.memory_errors.run(node_of(tmp_path))
    assert finding.status is Status.CRITICAL and finding.measured == "1 uncorrectable, 12 corrected"


def test_the_speed_of_disk_and_memory_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    node = CheckedNode(settings=Settings(nvme=str(tmp_path)))
    finding = disks.nvme_speed.run(node)
    assert finding.status in (Status.OK, Status.WARNING) and f"{tmp_path}: " in finding.measured
    assert not list(tmp_path.iterdir())
    assert disks.shm_speed.run(node).status in (Status.OK, Status.WARNING)
    assert not list(Path("/dev/shm").glob(".holdfast-check-*"))


def test_a_local_disk_that_is_missing_is_critical(tmp_path: Path) -> None:
    for number in range(7):
        put(tmp_path, f"/sys/block/nvme{number}n1/device/model", "Amazon EC2 NVMe Instance Storage        \n")
    put(tmp_path, "/sys/block/nvme7n1/device/model", "Amazon Elastic Block Store              \n")
    finding = disks.nvme_disks.run(node_of(tmp_path, expected=expected("p5.48xlarge")))
    assert finding.status is Status.CRITICAL and finding.measured == "7 of 8 NVMe disks are the instance's own"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
@pytest.mark.parametrize(
    ("full", "what", "status"),
    [
        (0.90, "bytes", Status.OK),
        (0.96, "bytes", Status.WARNING),
        (1.00, "bytes", Status.CRITICAL),
        (0.97, "files", Status.WARNING),
        (1.00, "files", Status.CRITICAL),
    ],
)
def test_a_system_disk_that_fills_is_told_by_bytes_and_by_files(
    tmp_path: Path, full: float, what: str, status: Status
) -> None:
    log = tmp_path / "var/log"
    log.mkdir(parents=True)
    run(("mount", "-t", "tmpfs", "-o", "size=4m,nr_inodes=401", "tmpfs", str(log)))  # one is its root's
    try:
        if what == "bytes":
            (log / "file").write_bytes(bytes(int((4 << 20) * full)))
        else:
            for number in range(int(400 * full)):
                (log / str(number)).touch()
        finding = disks.disk_space.run(node_of(tmp_path))
    finally:
        run(("umount", str(log)))
    assert finding.status is status
    if status is not Status.OK:
        assert finding.measured == f"/var/log: {full:.0%} of {what} used"


def test_a_disk_that_a_job_can_fill_is_a_warning_however_full(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    run(("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path / "tmp")))
    try:
        (tmp_path / "tmp/file").write_bytes(bytes(4 << 20))
        finding = disks.disk_space.run(node_of(tmp_path))
    finally:
        run(("umount", str(tmp_path / "tmp")))
    assert (finding.status, finding.measured) == (Status.WARNING, "/tmp: 100% of bytes used")


def test_a_disk_that_writes_slowly_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "_NVME_MIN_MB_S", 1e9)
    monkeypatch.setattr(disks, "_SAMPLE_BYTES", 8 << 20)
    finding = disks.nvme_speed.run(CheckedNode(settings=Settings(nvme=str(tmp_path))))
    assert finding.status is Status.WARNING and "MB/s" in finding.measured


@pytest.mark.parametrize(("uncorrected", "status"), [(0, Status.OK), (1, Status.CRITICAL)])
def test_a_memory_error_that_could_not_be_corrected_is_critical(
    tmp_path: Path, uncorrected: int, status: Status
) -> None:
    put(tmp_path, "/sys/devices/system/edac/mc/mc0/ue_count", f"{uncorrected}\n")
    put(tmp_path, "/sys/devices/system/edac/mc/mc0/ce_count", "0\n")
    assert cpu.memory_errors.run(node_of(tmp_path)).status is status


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "lustre", "cifs", "ceph", "gpfs", "fuse.mount-s3", "fuse.sshfs"])
def test_a_network_mount_of_any_kind_is_asked(tmp_path: Path, kind: str) -> None:
    put(
        tmp_path, "/proc/mounts", f"/dev/a / ext4 rw 0 0\nserver:/x /fsx\\040a {kind} rw 0 0\ntmpfs /run tmpfs rw 0 0\n"
    )
    well = node_of(tmp_path, {"stat -f -c %T -- /fsx a": "x"})
    assert mounts.network_mounts.run(well).measured == f"/fsx a ({kind})"
    sick = node_of(tmp_path, {"stat -f -c %T -- /fsx a": (1, "stale file handle")})
    assert mounts.network_mounts.run(sick).status is Status.CRITICAL


def test_what_a_user_mounts_by_fuse_is_no_fault_of_the_node(tmp_path: Path) -> None:
    """Root may not look at it, and who serves it may never answer."""
    of = "ann@x: /home/ann/x fuse.sshfs rw,nosuid,nodev,relatime,user_id={},group_id=0 0 0\n"
    asked = {"stat -f -c %T -- /home/ann/x": (1, "Permission denied")}
    put(tmp_path, "/proc/mounts", of.format(2001))
    assert mounts.network_mounts.run(node_of(tmp_path, asked)).status is Status.SKIPPED
    put(tmp_path, "/proc/mounts", of.format(0))
    assert mounts.network_mounts.run(node_of(tmp_path, asked)).status is Status.CRITICAL


def test_a_place_that_fstab_names_by_a_link_is_the_one_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "mnt/data").mkdir(parents=True)
    (tmp_path / "data").symlink_to("mnt/data")
    put(tmp_path, "/etc/fstab", "fs:/x /data nfs defaults 0 0\n")
    put(tmp_path, "/proc/mounts", "fs:/x /mnt/data nfs rw 0 0\n")
    assert mounts.fstab.run(node_of(tmp_path)).status is Status.OK
    put(tmp_path, "/proc/mounts", "fs:/x /mnt/other nfs rw 0 0\n")
    assert mounts.fstab.run(node_of(tmp_path)).measured == "not mounted: /data"


def test_a_root_that_became_read_only_is_critical(tmp_path: Path) -> None:
    assert mounts.root_writable.run(CheckedNode()).status is Status.OK
    for first, last, status in (("ro", "rw", Status.OK), ("rw", "ro", Status.CRITICAL)):
        put(tmp_path, "/proc/mounts", f"/dev/a / ext4 {first} 0 0\noverlay / overlay {last} 0 0\n")
        assert mounts.root_writable.run(node_of(tmp_path)).status is status, "the last one is on top"
    put(tmp_path, "/proc/mounts", "/dev/nvme0n1p1 / ext4 ro,relatime 0 0\n")
    assert mounts.root_writable.run(node_of(tmp_path)).status is Status.CRITICAL


def test_what_fstab_promises_has_to_be_mounted(tmp_path: Path) -> None:
    lines = (
        "# a comment",
        "UUID=1 / ext4 defaults 0 1",
        "fs:/x /fsx\\040data lustre _netdev 0 0",
        "/dev/x /y xfs noauto 0 0",
        "LABEL=holdfast /local xfs defaults,nofail 0 0",
        "/dev/z /slash/ xfs defaults 0 0",
        "z none swap sw 0 0",
    )
    put(tmp_path, "/etc/fstab", "\n".join(lines) + "\n")
    put(tmp_path, "/proc/mounts", "/dev/a / ext4 rw 0 0\n/dev/z /slash xfs rw 0 0\n")
    finding = mounts.fstab.run(node_of(tmp_path))
    assert finding.status is Status.CRITICAL and finding.measured == "not mounted: /fsx data"
    put(tmp_path, "/proc/mounts", "/dev/a / ext4 rw 0 0\n/dev/z /slash xfs rw 0 0\nfs:/x /fsx\\040data lustre rw 0 0\n")
    assert mounts.fstab.run(node_of(tmp_path)).status is Status.OK


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (ClockState(offset_s=-0.0004, synchronised=True, keeper="chrony"), Status.OK),
        (ClockState(offset_s=-0.9, synchronised=True, keeper="chrony"), Status.CRITICAL),
        (ClockState(offset_s=0.0, synchronised=False, keeper="chrony"), Status.WARNING),
    ],
)
def test_a_clock_is_judged_by_offset_and_keeper(state: ClockState, status: Status) -> None:
    assert judge_clock(state).status is status


def test_the_clock_is_asked_of_chrony_and_else_of_the_kernel(tmp_path: Path) -> None:
    columns = ("A9FEA97B", "169.254.169.123", 4, 1795212000.123456789, -0.000012345, 0.000001, 0.00002)
    line = ",".join(map(str, (*columns, 1.2, 0.0, 0.01, 0.0004, 0.0001, 16.2, "Normal")))
    found = clock.clock.run(node_of(tmp_path, {"chronyc -c tracking": line}))
    assert found.status is Status.OK and found.measured == "0.012 ms off by chrony"
    assert "kernel" in clock.clock.run(node_of(tmp_path)).measured


def test_names_have_to_resolve(tmp_path: Path) -> None:
    put(tmp_path, "/etc/slurm/slurm.conf", "ClusterName=x\nSlurmctldHost=ctl1(10.0.0.1)\nSlurmctldHost=ctl2\n")
    here = os.uname().nodename
    answers: Mapping[str, str | tuple[int, str]] = {
        f"getent ahosts -- {here}": "10.0.0.9 STREAM\n",
        "getent ahosts -- ctl1": "10.0.0.1 STREAM\n",
        "getent ahosts -- ctl2": (2, ""),
    }
    finding = names.names.run(node_of(tmp_path, answers))
    assert finding.status is Status.CRITICAL and finding.measured == "ctl2 (unknown)"


def test_a_name_that_takes_long_is_told(tmp_path: Path) -> None:
    """A first DNS server that does not answer; the second does."""
    answered = node_of(tmp_path, {f"getent ahosts -- {os.uname().nodename}": "10.0.0.9 STREAM\n"})

    def slowly(argv: Sequence[str], **options: Any) -> Result:
        return dataclasses.replace(answered.run(argv, **options), seconds=1.5)

    finding = names.names.run(dataclasses.replace(answered, run=slowly))
    assert finding.status is Status.WARNING and finding.measured.endswith("took 1.5 s")


def test_processes_that_are_dead_or_stuck_are_told(tmp_path: Path) -> None:
    for pid in range(1, 102):
        put(tmp_path, f"/proc/{pid}/stat", f"{pid} (a ) b) Z 1 1" if pid > 1 else "1 (init) S 0 1")
    assert processes.zombies.run(node_of(tmp_path)).status is Status.OK, "a hundred"
    put(tmp_path, "/proc/1/stat", "1 (a) Z 0 1")
    put(tmp_path, "/proc/200/stat", "200 (python) D 1 1")
    assert processes.zombies.run(node_of(tmp_path)).status is Status.WARNING
    waits: list[float] = []
    finding = processes.stuck_processes.run(node_of(tmp_path, wait=waits.append))
    assert finding.status is Status.WARNING and "python (200)" in finding.measured and waits

    def goes_on(_: float) -> None:
        put(tmp_path, "/proc/200/stat", "200 (python) R 1 1")

    assert processes.stuck_processes.run(node_of(tmp_path, wait=goes_on)).status is Status.OK


def test_a_bucket_answers_or_is_told_why_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    server = S3Server(tmp_path)
    server.start()
    try:
        node = CheckedNode(settings=Settings(s3=f"s3://{BUCKET}/run", s3_endpoint=f"http://127.0.0.1:{server.port}"))
        assert objects.s3.run(node).status in (Status.OK, Status.WARNING)
        monkeypatch.setattr(objects, "_SLOW_S", 0.0)
        assert objects.s3.run(node).status is Status.WARNING
        missing = objects.s3.run(
            CheckedNode(settings=Settings(s3="s3://other/x", s3_endpoint=node.settings.s3_endpoint))
        )
        assert missing.status is Status.CRITICAL and "NoSuchBucket" in missing.measured
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x" * len(SECRET))
        assert objects.s3.run(node).status is Status.CRITICAL
    finally:
        server.stop()
    dead = objects.s3.run(node)
    assert dead.status is Status.CRITICAL and f"{BUCKET}: " in dead.measured


def test_the_instance_type_is_what_the_firmware_says(tmp_path: Path) -> None:
    assert instance_type(tmp_path) is None
    put(tmp_path, "/sys/class/dmi/id/sys_vendor", "Amazon EC2\n")
    put(tmp_path, "/sys/class/dmi/id/product_name", "p5.48xlarge\n")
    assert instance_type(tmp_path) == "p5.48xlarge"
    put(tmp_path, "/sys/class/dmi/id/sys_vendor", "QEMU\n")
    assert instance_type(tmp_path) is None and expected(None) is None and expected("x1.tiny") is None


def test_recording_keeps_output_and_masks_identities(tmp_path: Path) -> None:
    def answer(argv: tuple[str, ...], **_: object) -> Result:
        if argv[0] != "nvidia-smi":
            none = Result(argv=argv, returncode=None, stdout="", stderr="", seconds=0.0)
            raise CommandError(none, "could not be started (No such file or directory)")
        said = "<serial>1650522003820</serial> <uuid>GPU-513536b6-7d19-9063-b049-1e69664bb298</uuid> kept"
        return Result(argv=argv, returncode=0, stdout=said, stderr="", seconds=0.0)

    told = record.record(tmp_path, answer)  # type: ignore[arg-type]
    text = (tmp_path / "nvidia-smi-q.xml").read_text()
    assert text == "<serial>masked</serial> <uuid>GPU-masked</uuid> kept"
    assert any(line.startswith("dcgm-1.json: not recorded") for line in told)
