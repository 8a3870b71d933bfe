"""GPU checks, on recorded output: each is quiet on the good one and speaks when one value of it is bad."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from node_kit import ON_NVIDIA_SMI, RECORDED, Answers, node_of, plug_gpus, put

from lifecycle.health import gpu
from lifecycle.health.check import Check, CheckedNode
from lifecycle.health.finding import Status
from lifecycle.instance import Expected, expected

A100 = (
    (RECORDED / "nvidia-smi-a100x4.xml").read_text().replace("<persistence_mode>Disabled", "<persistence_mode>Enabled")
)
A10G = (RECORDED / "nvidia-smi-a10g.xml").read_text()
H200 = (RECORDED / "nvidia-smi-h200.xml").read_text()
NEWEST = (RECORDED / "nvidia-smi-v13.xml").read_text()


def times(log: str, count: int) -> str:
    """The log of a node with so many GPUs like the recorded one."""
    found = re.search(r"<gpu id=.*</gpu>", log, re.DOTALL)
    assert found
    copies = (found[0].replace("00000000:01:00.0", f"00000000:0{number}:00.0") for number in range(count))
    return log.replace(found[0], "\n".join(copies))


def node(root: Path, log: str, gpus: int = 1, type_: Expected | None = None) -> CheckedNode:
    plug_gpus(root, gpus)
    version = re.search("<driver_version>(.*)</driver_version>", log)
    assert version
    put(root, "/sys/module/nvidia/version", version[1] + "\n")
    return node_of(root, {"nvidia-smi -q -x": log}, expected=type_)


@pytest.mark.parametrize("log", [A100, A10G, H200, NEWEST], ids=["A100", "A10G", "H200", "driver 595"])
def test_what_was_recorded_on_healthy_gpus_is_not_critical(tmp_path: Path, log: str) -> None:
    machine = node(tmp_path, log)
    found = {check.name: check.run(machine).status for check in ON_NVIDIA_SMI}
    assert set(found.values()) <= {Status.OK, Status.WARNING}, found
    assert found["gpu_recovery"] is found["gpu_row_remap"] is found["gpu_count"] is Status.OK


def test_a_whole_p4de_is_healthy(tmp_path: Path) -> None:
    machine = node(tmp_path, times(A100, 8), gpus=8, type_=expected("p4de.24xlarge"))
    found = {check.name: check.run(machine).status for check in (*ON_NVIDIA_SMI, gpu.gpu_devices)}
    assert set(found.values()) == {Status.OK}, found


def test_nvidia_smi_is_asked_once_for_all_checks(tmp_path: Path) -> None:
    machine = node(tmp_path, A100)
    for check in ON_NVIDIA_SMI:
        check.run(machine)
    assert isinstance(machine.run, Answers) and machine.run.asked == ["nvidia-smi -q -x"]


@pytest.mark.parametrize(
    ("check", "log", "good", "bad", "status", "told"),
    [
        (gpu.gpu_ecc, A100, "<dram_uncorrectable>0", "<dram_uncorrectable>3", Status.CRITICAL, "00000000:01:00.0 3"),
        (
            gpu.gpu_ecc,
            A100,
            "<current_ecc>Enabled",
            "<current_ecc>Disabled",
            Status.WARNING,
            "ECC off on 00000000:01:00.0",
        ),
        (
            gpu.gpu_row_remap,
            A10G,
            "<remapped_row_pending>No",
            "<remapped_row_pending>Yes",
            Status.CRITICAL,
            "pending: 00000000:00:1E.0",
        ),
        (
            gpu.gpu_row_remap,
            A10G,
            "<remapped_row_failure>No",
            "<remapped_row_failure>Yes",
            Status.CRITICAL,
            "failed: 00000000:00:1E.0",
        ),
        (
            gpu.gpu_row_remap,
            A10G,
            "<pending_retirement>N/A",
            "<pending_retirement>Yes",
            Status.CRITICAL,
            "pending: 00000000:00:1E.0",
        ),
        (
            gpu.gpu_throttle,
            A100,
            "hw_thermal_slowdown>Not Active",
            "hw_thermal_slowdown>Active",
            Status.CRITICAL,
            "hw_thermal_slowdown, 27 C",
        ),
        (
            gpu.gpu_throttle,
            A10G,
            "hw_power_brake_slowdown>Not Active",
            "hw_power_brake_slowdown>Active",
            Status.CRITICAL,
            "hw_power_brake_slowdown",
        ),
        (
            gpu.gpu_throttle,
            A100,
            "sw_thermal_slowdown>Not Active",
            "sw_thermal_slowdown>Active",
            Status.WARNING,
            "sw_thermal_slowdown",
        ),
        (
            gpu.gpu_recovery,
            NEWEST,
            "<gpu_recovery_action>None",
            "<gpu_recovery_action>Reboot",
            Status.CRITICAL,
            "Reboot",
        ),
        (gpu.gpu_recovery, A100, "<reset_required>No", "<reset_required>Yes", Status.CRITICAL, "Reset"),
        (
            gpu.gpu_persistence,
            A100,
            "<persistence_mode>Enabled",
            "<persistence_mode>Disabled",
            Status.WARNING,
            "off on 1 of 1",
        ),
    ],
)
def test_one_bad_value_is_named_with_its_gpu_and_an_advice(
    tmp_path: Path, check: Check, log: str, good: str, bad: str, status: Status, told: str
) -> None:
    assert good in log
    finding = check.run(node(tmp_path, log.replace(good, bad, 1)))
    assert finding.status is status and told in finding.measured and finding.advice


def test_a_link_narrower_than_its_siblings_is_critical(tmp_path: Path) -> None:
    log = times(A100, 8).replace("<current_link_width>16x", "<current_link_width>8x", 1)
    finding = gpu.gpu_pcie.run(node(tmp_path, log, gpus=8))
    assert finding.status is Status.CRITICAL and finding.measured == "00000000:00:00.0 8x"


def test_uncorrectable_errors_of_former_days_are_a_warning(tmp_path: Path) -> None:
    head, _, tail = A100.partition("<aggregate>")
    finding = gpu.gpu_ecc.run(
        node(tmp_path, f"{head}<aggregate>{tail.replace('_uncorrectable>0', '_uncorrectable>2')}")
    )
    assert finding.status is Status.WARNING and "00000000:01:00.0 4" in finding.measured


def test_a_gpu_that_nvidia_smi_does_not_see_is_critical(tmp_path: Path) -> None:
    finding = gpu.gpu_count.run(node(tmp_path, times(A100, 7), gpus=8))
    assert finding.status is Status.CRITICAL and finding.measured.startswith("7 ") and finding.expected == "8"


def test_a_gpu_that_is_not_even_on_the_bus_is_missed_by_the_instance_type(tmp_path: Path) -> None:
    machine = node(tmp_path, times(A100, 7), gpus=7, type_=expected("p4de.24xlarge"))
    assert gpu.gpu_count.run(machine).status is gpu.gpu_devices.run(machine).status is Status.CRITICAL


def test_a_gpu_without_its_driver_is_critical_in_the_prolog(tmp_path: Path) -> None:
    plug_gpus(tmp_path, 8, driven=7)
    finding = gpu.gpu_devices.run(node_of(tmp_path))
    assert finding.status is Status.CRITICAL and "8 on the PCI bus, 7 with the driver" in finding.measured


def test_less_memory_than_the_type_has_is_critical(tmp_path: Path) -> None:
    finding = gpu.gpu_memory.run(node(tmp_path, A100, type_=expected("p5en.48xlarge")))
    assert finding.status is Status.CRITICAL and "81920 MiB" in finding.measured


def test_a_driver_updated_under_the_running_one_is_critical(tmp_path: Path) -> None:
    machine = node(tmp_path, A100)
    put(tmp_path, "/sys/module/nvidia/version", "530.30.02\n")
    finding = gpu.gpu_driver.run(machine)
    assert finding.status is Status.CRITICAL and "530.30.02" in finding.measured and "535.54.03" in finding.expected


def test_without_gpus_everything_is_skipped(tmp_path: Path) -> None:
    machine = node_of(tmp_path)
    assert {check.run(machine).status for check in (*ON_NVIDIA_SMI, gpu.gpu_devices)} == {Status.SKIPPED}


@pytest.mark.parametrize("answer", [None, (255, "NVIDIA-SMI has failed"), "no xml", ""])
def test_what_cannot_be_asked_is_unknown_never_healthy_or_failed(
    tmp_path: Path, answer: str | tuple[int, str] | None
) -> None:
    plug_gpus(tmp_path, 1)
    machine = node_of(tmp_path, {} if answer is None else {"nvidia-smi -q -x": answer})
    assert {check.run(machine).status for check in ON_NVIDIA_SMI} == {Status.UNKNOWN}
