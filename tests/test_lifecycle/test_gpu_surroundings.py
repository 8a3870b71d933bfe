"""NVLink, fabric manager, DCGM, kernel log, EFA: on recorded output and a directory as the node."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pynvml
import pytest
from node_kit import RECORDED, Nvml, node_of, plug, plug_gpus, put

from lifecycle.health import dcgm, efa, kernel_log, loopback, nvlink
from lifecycle.health.check import CheckedNode
from lifecycle.health.finding import Finding, Status
from lifecycle.instance import expected
from slurm.command import CommandError, Result

STATUS = (RECORDED / "nvlink-status-h100.txt").read_text()


def ask_nvlink(root: Path, status: str, **nvml: Any) -> tuple[Finding, Finding]:
    plug_gpus(root, 1)
    facts = {"expected": expected("p5.48xlarge"), "nvml": lambda: Nvml(**nvml)}
    node = node_of(root, {"nvidia-smi nvlink -s": status}, **facts)
    return nvlink.nvlink_state.run(node), nvlink.nvlink_errors.run(node)


def test_eighteen_links_of_an_h100_are_healthy(tmp_path: Path) -> None:
    state, errors = ask_nvlink(tmp_path, STATUS)
    assert state.status is errors.status is Status.OK
    assert state.measured == "18 on each GPU, 26.562 GB/s a link"


def test_an_inactive_link_is_critical_even_on_an_unknown_machine(tmp_path: Path) -> None:
    plug_gpus(tmp_path, 1)
    text = STATUS.replace("Link 5: 26.562 GB/s", "Link 5: <inactive>")
    finding = nvlink.nvlink_state.run(node_of(tmp_path, {"nvidia-smi nvlink -s": text}))
    assert finding.status is Status.CRITICAL and finding.measured == "GPU 0: 17 up"


def test_no_link_up_at_all_is_critical_only_where_links_are_expected(tmp_path: Path) -> None:
    text = STATUS.replace("26.562 GB/s", "<inactive>")
    assert ask_nvlink(tmp_path, text)[0].status is Status.CRITICAL
    finding = nvlink.nvlink_state.run(node_of(tmp_path, {"nvidia-smi nvlink -s": text}))
    assert finding.status is Status.SKIPPED  # two PCIe cards without a bridge


def test_a_link_that_errs_is_named(tmp_path: Path) -> None:
    _, finding = ask_nvlink(tmp_path, STATUS, counters={(3, "NVML_NVLINK_ERROR_DL_RECOVERY"): 7})
    assert finding.status is Status.WARNING and finding.measured == "GPU 0 link 3: 7 recovery"


def test_a_gpu_without_nvlink_has_no_counters_and_a_driver_that_does_not_answer_says_nothing(tmp_path: Path) -> None:
    assert ask_nvlink(tmp_path, STATUS, links=0)[1].status is Status.SKIPPED
    _, finding = ask_nvlink(tmp_path, STATUS, fails=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    assert finding.status is Status.UNKNOWN and "Driver Not Loaded" in finding.measured


@pytest.mark.parametrize(("said", "status"), [("active\n", Status.OK), ((3, "failed\n"), Status.CRITICAL)])
def test_a_node_with_an_nvswitch_needs_its_fabric_manager(
    tmp_path: Path, said: str | tuple[int, str], status: Status
) -> None:
    put(tmp_path, "/dev/nvidia-nvswitch0")
    node = node_of(tmp_path, {"systemctl is-active nvidia-fabricmanager": said})
    assert nvlink.fabric_manager.run(node).status is status
    assert nvlink.fabric_manager.run(node_of(tmp_path / "other")).status is Status.SKIPPED


@pytest.mark.parametrize("fails", ["GPU_IS_LOST", "RESET_REQUIRED", "UNKNOWN", "LIB_RM_VERSION_MISMATCH"])
def test_links_of_a_gpu_that_nvml_cannot_read_are_critical(tmp_path: Path, fails: str) -> None:
    _, finding = ask_nvlink(tmp_path, STATUS, fails=getattr(pynvml, f"NVML_ERROR_{fails}"))
    assert finding.status is Status.CRITICAL and finding.advice


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("Unable to determine the device handle for GPU0000:12:00.0: Unknown Error\n" + STATUS, Status.CRITICAL),
        ((255, "Unable to determine the device handle for GPU0000:12:00.0: Unknown Error\n"), Status.CRITICAL),
        ((255, "NVLink is busy"), Status.UNKNOWN),
    ],
)
def test_a_gpu_that_is_lost_to_the_link_status_is_critical(
    tmp_path: Path, said: str | tuple[int, str], status: Status
) -> None:
    plug_gpus(tmp_path, 1)
    assert nvlink.nvlink_state.run(node_of(tmp_path, {"nvidia-smi nvlink -s": said})).status is status


def diagnose(root: Path, report: object) -> Finding:
    plug_gpus(root, 2)
    text = report if isinstance(report, str) else json.dumps(report)
    return dcgm.dcgm_short.run(node_of(root, {"dcgmi diag -r 1 -j": (226, text)}))


def report_of(status: str, **more: object) -> dict[str, object]:
    results = [{"entity_group": "GPU", "entity_id": 3, "status": status, **more}]
    return {
        "DCGM Diagnostic": {"test_categories": [{"category": "x", "tests": [{"name": "memory", "results": results}]}]}
    }


def test_dcgm_s_verdict_is_taken_from_its_report(tmp_path: Path) -> None:
    assert diagnose(tmp_path, report_of("Pass")).status is Status.OK
    failed = diagnose(tmp_path, report_of("Fail", warnings=[{"warning": "bit stuck", "error_severity": 2}]))
    assert failed.status is Status.CRITICAL and failed.measured == "memory on GPU 3: bit stuck"


def test_one_severe_reason_among_mild_ones_is_severe(tmp_path: Path) -> None:
    both = [{"warning": "persistence off", "error_severity": 5}, {"warning": "bit stuck", "error_severity": 2}]
    assert diagnose(tmp_path, report_of("Fail", warnings=both)).status is Status.CRITICAL


def test_a_setting_that_dcgm_dislikes_speaks_against_no_gpu(tmp_path: Path) -> None:
    finding = diagnose(tmp_path, (RECORDED / "dcgm-persistence.json").read_text())
    assert finding.status is Status.WARNING and "Persistence mode for GPU 0" in finding.measured


@pytest.mark.parametrize(
    ("root_name", "warned"),
    [
        ("DCGM Diagnostic", {"warnings": [{"warning": "link width 8"}]}),
        ("DCGM GPU Diagnostic", {"warnings": ["link width 8"], "gpu_ids": "0,1"}),
    ],
)
def test_a_warning_of_dcgm_is_one(tmp_path: Path, root_name: str, warned: dict[str, object]) -> None:
    (categories,) = report_of("Warn", **warned).values()
    finding = diagnose(tmp_path, {root_name: categories})
    assert finding.status is Status.WARNING and "link width 8" in finding.measured


def test_text_around_dcgms_report_and_tests_without_results_are_read_past(tmp_path: Path) -> None:
    text = json.dumps(report_of("Pass"))
    assert diagnose(tmp_path, f"connected\n{text}\nSuccessfully ran diagnostic {{x}}\n").status is Status.OK
    report: Any = report_of("Pass")
    report["DCGM Diagnostic"]["test_categories"][0]["tests"].append({"name": "x", "results": None})
    assert diagnose(tmp_path, report).status is Status.OK


def test_a_result_of_dcgm_that_is_not_known_is_not_passed(tmp_path: Path) -> None:
    report: Any = report_of("Pass")
    report["DCGM Diagnostic"]["test_categories"][0]["tests"][0]["results"].append({"status": "Error", "entity_id": 1})
    finding = diagnose(tmp_path, report)
    assert finding.status is Status.UNKNOWN and "'error' of memory on GPU 1" in finding.measured


@pytest.mark.parametrize("report", ["", "host engine is not running", "{", "{}", "[]", report_of("Skip")])
def test_a_diagnostic_that_did_not_run_is_unknown(tmp_path: Path, report: object) -> None:
    assert diagnose(tmp_path, report).status is Status.UNKNOWN


def test_dcgm_that_is_not_installed_is_skipped(tmp_path: Path) -> None:
    plug_gpus(tmp_path, 1)
    assert dcgm.dcgm_short.run(node_of(tmp_path)).status is Status.SKIPPED


def kernel(root: Path, *messages: str, first: int = 0) -> dict[str, Finding]:
    rows = [f"4,{first + number},{1000000 * (first + number)},-;{text}" for number, text in enumerate(messages)]
    put(root, "/dev/kmsg", "\n SUBSYSTEM=pci\n".join(rows) + "\n")
    node = node_of(root)
    return {
        check.name: check.run(node)
        for check in (kernel_log.gpu_xid, kernel_log.kernel_errors, kernel_log.out_of_memory)
    }


XFS_SHUT = (
    "XFS (md0): Corruption of on-disk metadata detected at xfs_buf_ioend+0x1/0x2 [xfs]. Shutting down filesystem."
)
XID = "NVRM: Xid (PCI:0000:01:00): {}, pid=2096908, name=python3, GPU has something"


NETIR = "NVRM: Xid (PCI:0018:01:00): {}, NETIR_LINK_EVT  {} XC0 i0 Link 09 (0x025525c6 0x00000000 0x00000000)"
RECOVERY = "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from {} to {}"


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (
            "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            Status.CRITICAL,
        ),
        (XID.format(48), Status.CRITICAL),
        (XID.format(95), Status.CRITICAL),
        (XID.format(63), Status.WARNING),
        (XID.format(94), Status.WARNING),
        (XID.format(999), Status.WARNING),
        (XID.format(13), Status.OK),
        (XID.format(31), Status.OK),
        (XID.format(43), Status.OK),
        ("nvidia-nvswitch0: SXid (PCI:0000:59:00.0): 23001, Fatal, Link 12 Always Fatal", Status.CRITICAL),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
            Status.WARNING,
        ),
        (NETIR.format(149, "Fatal  "), Status.CRITICAL),
        *((NETIR.format(number, "Fatal"), Status.CRITICAL) for number in range(144, 151)),
        (NETIR.format(145, "Nonfatal"), Status.WARNING),
        (RECOVERY.format("0x0 (None)", "0x1 (GPU Reset Required)"), Status.CRITICAL),
        (RECOVERY.format("0x0 (None)", "0x2 (Node Reboot Required)"), Status.CRITICAL),
        (RECOVERY.format("0x1 (GPU Reset Required)", "0x0 (None)"), Status.OK),
        ("NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.", Status.CRITICAL),
        (
            "NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has\\x0a"
            "NVRM: fallen off the bus and is not responding to commands.",
            Status.CRITICAL,
        ),
        ("               NVRM: fallen off the bus and is not responding to commands.", Status.CRITICAL),
        ("NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0xffff:1863)", Status.CRITICAL),
        ("NVRM: RmInitAdapter failed! (0x27:0x38:1193)", Status.CRITICAL),
        (
            "NVRM: GPU0 nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000055)",
            Status.CRITICAL,
        ),
        (XID.format(13).replace("python3", "Reset required"), Status.OK),  # a user names a process
        ("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.158", Status.OK),
        ("eth0: link up", Status.OK),
    ],
)
def test_xids_of_hardware_count_and_those_of_programs_do_not(tmp_path: Path, line: str, status: Status) -> None:
    assert kernel(tmp_path, "Linux version 6.1", line)["gpu_xid"].status is status


def test_a_reset_takes_back_what_a_gpu_asked_for(tmp_path: Path) -> None:
    asked = RECOVERY.format("0x0 (None)", "0x1 (GPU Reset Required)")
    done = RECOVERY.format("0x1 (GPU Reset Required)", "0x0 (None)")
    other = asked.replace("01:00", "02:00")
    assert kernel(tmp_path, asked, done)["gpu_xid"].status is Status.OK
    finding = kernel(tmp_path, asked, done, other)["gpu_xid"]
    assert finding.measured == "Xid 154 on 0000:02:00 (GPU Reset Required)"


def test_a_log_that_lost_its_beginning_says_so(tmp_path: Path) -> None:
    assert "log begins 500 s after boot" in kernel(tmp_path, "eth0: link up", first=500)["gpu_xid"].measured
    assert "log begins" not in kernel(tmp_path, "eth0: link up")["gpu_xid"].measured


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("EXT4-fs (nvme0n1p1): Remounting filesystem read-only", Status.CRITICAL),
        (XFS_SHUT, Status.CRITICAL),
        ("nvme nvme1: controller is down; will reset: CSTS=0xffffffff", Status.CRITICAL),
        ("Uncorrected hardware memory error in user-access at 7f", Status.CRITICAL),
        ("mce: [Hardware Error]: Machine check events logged", Status.WARNING),
        ("I/O error, dev nvme0n1, sector 12345 op 0x0:(READ)", Status.WARNING),
        ("INFO: task python:123 blocked for more than 120 seconds.", Status.WARNING),
        ("Memory cgroup out of memory: Killed process 1 (python)", Status.OK),
    ],
)
def test_errors_of_the_machine_are_found(tmp_path: Path, line: str, status: Status) -> None:
    assert kernel(tmp_path, line)["kernel_errors"].status is status


@pytest.mark.parametrize(
    "words",
    [
        XID.format(79),
        "nvidia-nvswitch0: SXid (PCI:0000:59:00.0): 23001, Fatal, Link 12",
        "EXT4-fs (nvme0n1p1): Remounting filesystem read-only",
        XFS_SHUT,
        "nvme nvme1: controller is down; will reset",
        "mce: Uncorrected hardware memory error in user-access at 7f",
        "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 page:0x1 offset:0x0 grain:32)",
        "Memory failure: 0x1: recovery action for dirty LRU page: Recovered",
    ],
)
def test_what_users_name_their_files_and_processes_is_not_taken_for_the_kernels_words(
    tmp_path: Path, words: str
) -> None:
    """A name of a process has 15 characters at most, one of a file 255, without a slash."""
    found = kernel(tmp_path, words)
    assert Status.CRITICAL in {finding.status for finding in found.values()}
    name, file = words[:15], words.replace("/", "")
    for said in (
        f"{name}[4711]: segfault at 0 ip 0000000000401136 sp 00007ffd error 4 in {file}[401000+1000]",
        f"{name}\\x0a[4711]: segfault at 0 ip 0000000000401136 sp 00007ffd error 4 in {file}[401000+1000]",
        f"traps: {name}[4711] trap invalid opcode ip:401136 sp:7ffd error:0 in {file}[401000+1000]",
        f"process '{file}' started with executable stack",
        f"{name} invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0",
        f"Memory cgroup out of memory: Killed process 4711 ({name}) total-vm:1kB",
    ):
        found = kernel(tmp_path, said)
        assert {finding.status for finding in found.values()} == {Status.OK}, said


def test_a_job_killed_at_its_own_limit_is_no_shortage_of_the_node(tmp_path: Path) -> None:
    found = kernel(tmp_path, "Memory cgroup out of memory: Killed process 7 (python) total-vm:1kB")["out_of_memory"]
    assert found.status is Status.OK and "1 at a job's limit" in found.measured
    assert kernel(tmp_path, "Out of memory: Killed process 7 (sshd)")["out_of_memory"].status is Status.WARNING


def test_a_kernel_log_that_may_not_be_read_is_unknown(tmp_path: Path) -> None:
    assert kernel_log.gpu_xid.run(node_of(tmp_path)).status is Status.UNKNOWN


def plug_efa(root: Path, count: int, driven: int, state: str = "4: ACTIVE") -> None:
    for number in range(count):
        plug(root, f"0000:{number:02x}:1b.0", "0x1d0f", "0xefa2", "0x020000")
    for number in range(driven):
        put(root, f"/sys/class/infiniband/rdmap{number}s27/ports/1/state", state + "\n")


@pytest.mark.parametrize(
    ("plugged", "driven", "state", "status"),
    [
        (32, 32, "4: ACTIVE", Status.OK),
        (32, 31, "4: ACTIVE", Status.CRITICAL),
        (31, 31, "4: ACTIVE", Status.CRITICAL),
        (32, 0, "", Status.CRITICAL),
        (32, 32, "1: DOWN", Status.CRITICAL),
    ],
)
def test_a_p5_has_32_efa_interfaces(tmp_path: Path, plugged: int, driven: int, state: str, status: Status) -> None:
    plug_efa(tmp_path, plugged, driven, state)
    assert efa.efa_devices.run(node_of(tmp_path, expected=expected("p5.48xlarge"))).status is status


def test_gdrcopy_is_of_use_only_with_its_module(tmp_path: Path) -> None:
    assert efa.gdrcopy.run(node_of(tmp_path)).status is Status.SKIPPED
    plug_gpus(tmp_path, 1)
    assert efa.gdrcopy.run(node_of(tmp_path)).measured == "GDRCopy is not installed"
    put(tmp_path, "/usr/local/lib/libgdrapi.so")
    assert efa.gdrcopy.run(node_of(tmp_path)).status is Status.WARNING
    put(tmp_path, "/dev/gdrdrv")
    assert efa.gdrcopy.run(node_of(tmp_path)).status is Status.OK


def test_efa_needs_its_modules_locked_memory_and_huge_pages(tmp_path: Path) -> None:
    plug_efa(tmp_path, 1, 1)
    node = node_of(tmp_path)
    put(tmp_path, "/proc/meminfo", "HugePages_Total:    5128\nHugePages_Free:        0\n")
    put(tmp_path, "/proc/17/comm", "slurmd\n")
    put(tmp_path, "/proc/17/limits", "Max locked memory         65536                65536                bytes     \n")
    checks = (efa.efa_modules, efa.locked_memory, efa.huge_pages)
    assert [check.run(node).status for check in checks] == [Status.CRITICAL, Status.CRITICAL, Status.WARNING]
    for module in ("efa", "ib_uverbs"):
        put(tmp_path, f"/sys/module/{module}/refcnt")
    put(tmp_path, "/proc/meminfo", "HugePages_Total:    5128\nHugePages_Free:     5000\n")
    put(tmp_path, "/proc/17/limits", "Max locked memory         unlimited            unlimited            bytes     \n")
    assert [check.run(node).status for check in checks] == [Status.OK] * 3


def test_huge_pages_that_the_kernel_does_not_tell_are_not_none(tmp_path: Path) -> None:
    plug_efa(tmp_path, 1, 1)
    put(tmp_path, "/proc/meminfo", "MemTotal: 1 kB\nHugePages_Total: many\n")
    assert efa.huge_pages.run(node_of(tmp_path)).status is Status.UNKNOWN


def test_gpus_beside_efa_need_a_way_to_their_memory(tmp_path: Path) -> None:
    plug_efa(tmp_path, 1, 1)
    plug_gpus(tmp_path, 1)
    for module in ("efa", "ib_uverbs"):
        put(tmp_path, f"/sys/module/{module}/refcnt")
    assert efa.efa_modules.run(node_of(tmp_path)).status is Status.WARNING
    put(tmp_path, "/sys/module/efa_nv_peermem/refcnt")
    assert efa.efa_modules.run(node_of(tmp_path)).status is Status.OK


@pytest.mark.parametrize(
    ("kernel_release", "driver", "status"),
    [
        ("5.12.0-1-amd64", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.1", Status.OK),
        ("6.1.0", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.1", Status.OK),
        ("5.10.0", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.1", Status.WARNING),
        ("6.1.0", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.1", Status.WARNING),
    ],
)
def test_the_open_driver_shares_gpu_memory_without_a_module_since_linux_5_12(
    tmp_path: Path, kernel_release: str, driver: str, status: Status
) -> None:
    plug_efa(tmp_path, 1, 1)
    plug_gpus(tmp_path, 1)
    for module in ("efa", "ib_uverbs"):
        put(tmp_path, f"/sys/module/{module}/refcnt")
    put(tmp_path, "/proc/sys/kernel/osrelease", kernel_release)
    put(tmp_path, "/proc/driver/nvidia/version", driver)
    assert efa.efa_modules.run(node_of(tmp_path)).status is status


@pytest.mark.parametrize(("plugged", "driven", "slurmd"), [(1, 0, "slurmd"), (0, 1, "slurmd-wlm")])
def test_locked_memory_matters_where_there_is_rdma_with_a_driver_or_without(
    tmp_path: Path, plugged: int, driven: int, slurmd: str
) -> None:
    put(tmp_path, "/proc/17/comm", f"{slurmd}\n")
    put(tmp_path, "/proc/17/limits", "Max locked memory         65536                65536                bytes     \n")
    assert efa.locked_memory.run(node_of(tmp_path)).status is Status.OK
    plug_efa(tmp_path, plugged, driven)
    finding = efa.locked_memory.run(node_of(tmp_path))
    assert finding.status is Status.CRITICAL and finding.measured == "64 KiB (slurmd)"


def test_without_efa_its_checks_are_skipped(tmp_path: Path) -> None:
    node = node_of(tmp_path)
    checks = (efa.efa_devices, efa.efa_modules, efa.huge_pages, loopback.efa_loopback)
    assert {check.run(node).status for check in checks} == {Status.SKIPPED}


class Pingpong:
    """fi_info and fi_pingpong of a node with EFA interfaces; some of them do not answer."""

    ROW = (
        "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"
        "64k     100     =100     12m         0.76s     17.15    3821.92       0.00\n"
    )

    def __init__(self, silent: tuple[str, ...], count: int = 2) -> None:
        self.silent = silent
        self.domains = [f"rdmap{number}s27-rdm" for number in range(count)]
        self.environments: list[Mapping[str, str]] = []

    def __call__(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **_: object) -> Result:
        done = Result(argv=tuple(argv), returncode=0, stdout=self.ROW, stderr="", seconds=0.1)
        if "fi_info" in argv[0]:
            text = "".join(f"provider: efa\n    domain: {name}\n" for name in self.domains * 2)
            return dataclasses.replace(done, stdout=text)
        self.environments.append(env or {})
        if argv[argv.index("-d") + 1] in self.silent:
            raise CommandError(dataclasses.replace(done, returncode=1), "exit code 1")
        return done


@pytest.mark.parametrize(
    ("silent", "status", "told", "advice"),
    [
        ((), Status.OK, "2 of 2 domains", ""),
        (("rdmap1s27-rdm",), Status.CRITICAL, "1 of 2 domains; rdmap1s27-rdm failed", "reboot"),
        (("rdmap0s27-rdm", "rdmap1s27-rdm"), Status.CRITICAL, "0 of 2 domains", "security group"),
    ],
)
def test_every_efa_interface_has_to_answer_and_not_from_shared_memory(
    tmp_path: Path, silent: tuple[str, ...], status: Status, told: str, advice: str
) -> None:
    plug_efa(tmp_path, 2, 2)
    programs = Pingpong(silent)
    finding = loopback.efa_loopback.run(CheckedNode(root=tmp_path, run=programs, wait=lambda _: None))
    assert finding.status is status and told in finding.measured and advice in finding.advice
    assert {env["FI_EFA_ENABLE_SHM_TRANSFER"] for env in programs.environments} == {"0"}


def test_where_no_interface_answers_not_all_are_waited_for(tmp_path: Path) -> None:
    plug_efa(tmp_path, 32, 32)
    programs = Pingpong(tuple(f"rdmap{number}s27-rdm" for number in range(32)), count=32)
    finding = loopback.efa_loopback.run(CheckedNode(root=tmp_path, run=programs, wait=lambda _: None))
    assert finding.status is Status.CRITICAL and finding.measured.startswith("0 of 4 domains that were tried; ")
