"""What tools say when it is cut short, garbled, or another version's: never a fault of the node, and no crash."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from node_kit import ON_NVIDIA_SMI, RECORDED, node_of, plug, plug_gpus, put

from lifecycle.health import clock, dcgm, efa, kernel_log, loopback, mounts, nvlink
from lifecycle.health.check import Check, CheckedNode
from lifecycle.health.finding import Status
from lifecycle.instance import expected

LOGS = {name: (RECORDED / name).read_text() for name in ("nvidia-smi-a100x4.xml", "nvidia-smi-v13.xml")}
LINKS = (RECORDED / "nvlink-status-h100.txt").read_text()
DIAGNOSTIC = (RECORDED / "dcgm-persistence.json").read_text()
NOISE = [
    "",
    "\0" * 4096,
    "\ufffd" * 999,
    "A" * 1_000_000,
    "<a>" * 50_000,
    "[" * 50_000,
    "{" * 50_000,
    "-1",
    "nan,inf",
    "\n\n",
]
TOOLS: dict[str, tuple[tuple[Check, ...], str]] = {
    "nvidia-smi -q -x": (ON_NVIDIA_SMI, LOGS["nvidia-smi-a100x4.xml"]),
    "nvidia-smi nvlink -s": ((nvlink.nvlink_state,), LINKS),
    "dcgmi diag -r 1 -j": ((dcgm.dcgm_short,), DIAGNOSTIC),
}


def statuses(root: Path, tool: str, said: str) -> set[Status]:
    put(root, "/sys/module/nvidia/version", "535.54.03\n")
    node = node_of(root, {tool: said}, expected=expected("p5.4xlarge" if "-q" in tool else "p5.48xlarge"))
    return {check.run(node).status for check in TOOLS[tool][0]}


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_whose_words_are_cut_short_speaks_against_no_gpu(tmp_path: Path, tool: str) -> None:
    plug_gpus(tmp_path, 1)
    text = TOOLS[tool][1]
    for end in range(0, len(text) - 2, max(1, len(text) // 60)):
        assert Status.CRITICAL not in statuses(tmp_path, tool, text[:end]), text[max(0, end - 200) : end]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_that_says_nonsense_is_not_understood(tmp_path: Path, tool: str) -> None:
    plug_gpus(tmp_path, 1)
    for said in NOISE:
        assert statuses(tmp_path, tool, said) <= {Status.UNKNOWN, Status.SKIPPED}, said[:20]


@pytest.mark.parametrize("word", ["N/A", "[N/A]", "Not Supported", "[Not Supported]", "", "0x7f"])
@pytest.mark.parametrize("log", LOGS)
def test_a_fact_that_a_driver_does_not_tell_is_no_bad_one(tmp_path: Path, log: str, word: str) -> None:
    plug_gpus(tmp_path, 1)
    head, gpus, tail = re.split(r"(?s)(<gpu id=.*</gpu>)", LOGS[log])
    silent = head + re.sub(r">([^<>\n]+)</", f">{word}</", gpus) + tail
    version = re.search("<driver_version>(.*)</driver_version>", head)
    put(tmp_path, "/sys/module/nvidia/version", version[1] if version else "")
    node = node_of(tmp_path, {"nvidia-smi -q -x": silent})
    found = {check.name: check.run(node) for check in ON_NVIDIA_SMI}
    assert Status.CRITICAL not in {finding.status for finding in found.values()}, found
    assert found["gpu_memory"].status is Status.UNKNOWN


def test_a_log_of_another_kind_is_not_one_without_gpus(tmp_path: Path) -> None:
    plug_gpus(tmp_path, 1)
    assert statuses(tmp_path, "nvidia-smi -q -x", "<?xml version='1.0'?><error>busy</error>") == {Status.UNKNOWN}


@pytest.mark.parametrize(
    "said",
    [
        "A9FEA97B,169.254.169.123,4,1700000000.0,0.1",  # cut before it says whether it is synchronised
        "A9FEA97B,169.254.169.123,4,1700000000.0,nan,0,0,0,0,0,0,0,0,Normal",
        "A9FEA97B,169.254.169.123,4,1700000000.0,1e999,0,0,0,0,0,0,0,0,Normal",
        *NOISE,
    ],
)
def test_what_chrony_did_not_say_whole_is_asked_of_the_kernel(tmp_path: Path, said: str) -> None:
    assert "chrony" not in clock.clock.run(node_of(tmp_path, {"chronyc -c tracking": said})).measured.split("(")[0]


def test_chronys_words_are_understood(tmp_path: Path) -> None:
    tail = ",0,0,0,0,0,0,0,0,"
    head = "A9FEA97B,169.254.169.123,4,1700000000.0,"
    asked = lambda said: clock.clock.run(node_of(tmp_path, {"chronyc -c tracking": said}))  # noqa: E731
    assert asked(f"{head}-0.000004{tail}Normal\n").measured == "0.004 ms off by chrony"
    assert asked(f"{head}0.7{tail}Insert second\n").status is Status.CRITICAL
    assert asked(f"00000000,,0,0.0,0.0{tail}Not synchronised\n").status is Status.WARNING


def test_interfaces_whose_messages_came_back_are_not_held_broken_for_the_tools_words(tmp_path: Path) -> None:
    plug(tmp_path, "0000:00:1b.0", "0x1d0f", "0xefa2", "0x020000")

    def run(argv: tuple[str, ...], **_: object) -> object:
        said = "provider: efa\n    domain: rdmap0s27-rdm\n" if "fi_info" in argv[0] else "sixty-four k: fine\n"
        return node_of(tmp_path, {" ".join(argv): said}).run(argv)

    finding = loopback.efa_loopback.run(CheckedNode(root=tmp_path, run=run, wait=lambda _: None))  # type: ignore[arg-type]
    assert finding.status is Status.UNKNOWN and "sixty-four k" in finding.measured


@pytest.mark.parametrize("said", [text for text in NOISE if text])
def test_files_of_the_kernel_that_are_not_understood_speak_against_no_node(tmp_path: Path, said: str) -> None:
    plug(tmp_path, "0000:00:1b.0", "0x1d0f", "0xefa2", "0x020000")
    for name in ("/proc/mounts", "/etc/fstab", "/proc/meminfo", "/dev/kmsg", "/proc/sys/kernel/osrelease"):
        put(tmp_path, name, said)
    for module in ("efa", "ib_uverbs"):
        put(tmp_path, f"/sys/module/{module}/refcnt")
    node = node_of(tmp_path)
    checks = (mounts.root_writable, mounts.network_mounts, mounts.fstab, efa.efa_modules, efa.huge_pages)
    checks += (kernel_log.gpu_xid, kernel_log.kernel_errors, kernel_log.out_of_memory)
    assert Status.CRITICAL not in {check.run(node).status for check in checks}


def test_a_report_of_dcgm_in_another_shape_is_no_verdict(tmp_path: Path) -> None:
    plug_gpus(tmp_path, 1)
    report = json.loads(DIAGNOSTIC)
    (root,) = [key for key in report if "Diagnostic" in key]
    for tests in ([1], ["memory"], [None], [{"name": "memory", "results": "Fail"}], [{"results": [["Fail"]]}]):
        said = json.dumps({root: {"test_categories": [{"tests": tests}]}})
        assert statuses(tmp_path, "dcgmi diag -r 1 -j", said) == {Status.UNKNOWN}, tests
