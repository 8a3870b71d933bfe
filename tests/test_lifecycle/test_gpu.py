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
    first = re.compile('gpu id="[^"]*"')
    copies = (first.sub(f'gpu id="00000000:0{number}:00.0"', found[0], count=1) for number in range(count))
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
    skipped = {name for name, status in found.items() if status is Status.SKIPPED}
    assert set(found.values()) <= {Status.OK, Status.WARNING, Status.SKIPPED}, found
    assert skipped == {A100: {"gpu_row_remap"}, A10G: {"gpu_recovery"}}.get(log, set())


def test_a_whole_p4de_is_healthy(tmp_path: Path) -> None:
    machine = node(tmp_path, times(A100, 8), gpus=8, type_=expected("p4de.24xlarge"))
    found = {check.name: check.run(machine).status for check in (*ON_NVIDIA_SMI, gpu.gpu_devices)}
    assert found.pop("gpu_row_remap") is Status.SKIPPED  # N/A in this record
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


@pytest.mark.parametrize("answer", [None, "no xml", "", (-9, "")])
def test_what_cannot_be_asked_is_unknown_never_healthy_or_failed(
    tmp_path: Path, answer: str | tuple[int, str] | None
) -> None:
    plug_gpus(tmp_path, 1)
    machine = node_of(tmp_path, {} if answer is None else {"nvidia-smi -q -x": answer})
    assert {check.run(machine).status for check in ON_NVIDIA_SMI} == {Status.UNKNOWN}


NO_HANDLE = "Unable to determine the device handle for GPU0000:12:00.0: Unknown Error\n"
IS_LOST = NO_HANDLE.replace("Unknown Error", "GPU is lost.  Reboot the system to recover this GPU")
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.158\n"


@pytest.mark.parametrize(
    ("answer", "told", "advice"),
    [
        ((255, NO_HANDLE), "GPU0000:12:00.0", "replace the node"),
        ((15, IS_LOST), "GPU is lost", "replace the node"),
        ((0, NO_HANDLE), "GPU0000:12:00.0", "replace the node"),
        ((18, MISMATCH), "Driver/library version mismatch", "reboot: the driver was updated"),
        ((9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."), "driver", "reboot"),
        ((255, A100[: len(A100) // 2] + "ERROR: internal"), "exit code 255", "reboot"),
    ],
)
def test_a_tool_that_fails_where_gpus_are_on_the_bus_is_critical(
    tmp_path: Path, answer: tuple[int, str], told: str, advice: str
) -> None:
    plug_gpus(tmp_path, 4)
    machine = node_of(tmp_path, {"nvidia-smi -q -x": answer})
    found = {check.name: check.run(machine) for check in ON_NVIDIA_SMI}
    for name in ("gpu_count", "gpu_driver"):
        finding = found.pop(name)
        assert finding.status is Status.CRITICAL and told in finding.measured and advice in finding.advice
    assert {finding.status for finding in found.values()} == {Status.UNKNOWN}  # said once, not ten times
    assert all("see gpu_driver" in finding.measured for finding in found.values())


def test_text_around_the_report_is_read_past_unless_it_says_that_a_gpu_is_lost(tmp_path: Path) -> None:
    banner = "Welcome to this cluster\n"
    corrupt = "WARNING: infoROM is corrupted at gpu 0000:01:00.0\n"
    said = {
        banner + A100: Status.OK,
        A100 + banner: Status.OK,
        A100 + corrupt: Status.WARNING,
        NO_HANDLE + A100: Status.CRITICAL,
        A100 + NO_HANDLE: Status.CRITICAL,
    }
    assert {log: gpu.gpu_count.run(node(tmp_path, log)).status for log in said} == said
    assert "0000:12:00.0" in gpu.gpu_count.run(node(tmp_path, NO_HANDLE + A100)).measured


def test_a_gpu_that_is_missing_in_the_report_is_named_by_its_address(tmp_path: Path) -> None:
    finding = gpu.gpu_count.run(node(tmp_path, times(A100, 3), gpus=4))
    assert finding.measured.endswith("not 0000:03:00.0")


VALUES = [  # element, and the check that reads it
    (gpu.gpu_recovery, "gpu_recovery_action"),
    (gpu.gpu_persistence, "persistence_mode"),
    (gpu.gpu_pcie, "current_link_width"),
    (gpu.gpu_ecc, "current_ecc"),
]
GROUPS = [
    (gpu.gpu_memory, "fb_memory_usage"),
    (gpu.gpu_ecc, "volatile"),
    (gpu.gpu_row_remap, "remapped_rows"),
    (gpu.gpu_throttle, "clocks_event_reasons"),
    (gpu.gpu_pcie, "link_widths"),
]


def spoiled(log: str, name: str, word: str, *, below: bool = False) -> str:
    """A log in which the first element of that name, or each value below it, is a word."""
    found = re.search(rf"(?s)<{name}>(.*?)</{name}>", log)
    assert found
    inner = re.sub(r">([^<>\n]+)</", f">{word}</", found[1]) if below else word
    return log.replace(found[0], f"<{name}>{inner}</{name}>", 1)


@pytest.mark.parametrize("word", ["Unknown Error", "[Unknown Error]", "ERR!", "[GPU is lost]", "GPU requires reset"])
@pytest.mark.parametrize(
    ("check", "name", "below"),
    [
        *((check, name, False) for check, name in [*VALUES, *GROUPS, (gpu.gpu_count, "product_name")]),
        *((check, name, True) for check, name in GROUPS),
    ],
)
def test_an_error_in_place_of_a_value_is_critical_and_named(
    tmp_path: Path, check: Check, name: str, below: bool, word: str
) -> None:
    finding = check.run(node(tmp_path, spoiled(times(NEWEST, 2), name, word, below=below), gpus=2))
    assert finding.status is Status.CRITICAL and word.strip("[]") in finding.measured and finding.advice
    assert "00000000:00:00.0" in finding.measured and "00000000:01:00.0" not in finding.measured


@pytest.mark.parametrize("word", ["0x7f", "many", "-1", "1,024", "[Insufficient Permissions]"])
@pytest.mark.parametrize(
    ("check", "name", "below"),
    [*((check, name, False) for check, name in VALUES), *((check, name, True) for check, name in GROUPS)],
)
def test_a_value_that_is_no_number_counts_neither_as_zero_nor_against_the_gpu(
    tmp_path: Path, check: Check, name: str, below: bool, word: str
) -> None:
    log = times(NEWEST, 2).replace("<current_ecc>Disabled", "<current_ecc>Enabled")
    finding = check.run(node(tmp_path, spoiled(log, name, word, below=below), gpus=2))
    assert finding.status is Status.UNKNOWN and name in finding.measured, finding


def test_what_one_gpu_lacks_and_its_siblings_have_is_unknown(tmp_path: Path) -> None:
    log = spoiled(times(NEWEST, 2), "current_link_width", "N/A")
    finding = gpu.gpu_pcie.run(node(tmp_path, log, gpus=2))
    assert finding.status is Status.UNKNOWN and "current_link_width is N/A, and not on its siblings" in finding.measured


def test_a_failure_of_one_gpu_is_not_hidden_by_an_odd_word_of_another(tmp_path: Path) -> None:
    head, _, tail = spoiled(times(NEWEST, 2), "remapped_rows", "0x7f", below=True).rpartition(
        "<remapped_row_failure>No"
    )
    finding = gpu.gpu_row_remap.run(node(tmp_path, f"{head}<remapped_row_failure>Yes{tail}", gpus=2))
    assert finding.status is Status.CRITICAL and finding.measured == "failed: 00000000:01:00.0"


def test_a_device_that_answers_with_all_ones_has_fallen_off_the_bus(tmp_path: Path) -> None:
    plug_gpus(tmp_path, 2)
    for address, head in (("0000:00:00.0", b"\xde\x10\x30\x23" + bytes(60)), ("0000:01:00.0", b"\xff" * 64)):
        (tmp_path / f"sys/bus/pci/devices/{address}/config").write_bytes(head)
    finding = gpu.gpu_devices.run(node_of(tmp_path))
    assert finding.status is Status.CRITICAL and "no answer from 0000:01:00.0 (lspci: rev ff)" in finding.measured
