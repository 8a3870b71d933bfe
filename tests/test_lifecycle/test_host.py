"""The checks that a runner makes before its node joins a job."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from node_kit import node_of

from lifecycle import Status, preflight
from lifecycle.health.check import CheckedNode
from lifecycle.health.host import judge_memory, judge_open_files, memory_file_system, remove_ipc
from slurm.command import run


def facts(free_bytes: int, flags: int = 0) -> SimpleNamespace:
    return SimpleNamespace(f_bavail=free_bytes // 4096, f_blocks=1 << 20, f_frsize=4096, f_flag=flags)


def test_this_machine_is_fit(tmp_path: Path) -> None:
    assert [finding.status for finding in preflight(tmp_path)] == [Status.OK, Status.OK]


def test_a_full_memory_file_system_is_critical_and_says_what_to_do(tmp_path: Path) -> None:
    finding = judge_memory(tmp_path, lambda _: facts(10 << 20))
    assert finding.status is Status.CRITICAL
    assert "10 MiB free" in str(finding) and "enlarge" in str(finding)


@pytest.mark.parametrize(("size", "status"), [("260m", Status.WARNING), ("1m", Status.CRITICAL)])
def test_what_jobs_have_in_memory_is_no_fault_of_the_node_and_too_small_a_file_system_is(
    tmp_path: Path, size: str, status: Status
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts a file system")
    place = tmp_path / "dev/shm"
    place.mkdir(parents=True)
    run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)])
    try:
        with suppress(OSError):  # the small one is full then
            (place / "checkpoint").write_bytes(bytes(8 << 20))
        assert memory_file_system.run(CheckedNode(root=tmp_path)).status is status
    finally:
        run(["umount", str(place)])


def test_a_read_only_memory_file_system_is_critical(tmp_path: Path) -> None:
    finding = judge_memory(tmp_path, lambda _: facts(1 << 40, os.ST_RDONLY))
    assert finding.status is Status.CRITICAL and "read-only" in finding.measured


def test_a_missing_memory_file_system_is_critical(tmp_path: Path) -> None:
    finding = judge_memory(tmp_path / "none")
    assert finding.status is Status.CRITICAL and "No such file" in finding.measured


def test_few_file_descriptors_are_critical() -> None:
    assert judge_open_files(256).status is Status.CRITICAL
    assert judge_open_files(4096).status is Status.OK


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ("b true\n", Status.WARNING),
        ("b false\n", Status.OK),
        ("", Status.UNKNOWN),
        ((1, "No such property"), Status.UNKNOWN),
    ],
)
def test_systemd_that_removes_a_users_memory_at_logout_is_a_warning(
    tmp_path: Path, answer: str | tuple[int, str], status: Status
) -> None:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    manager = "org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager"
    node = node_of(tmp_path, {f"busctl get-property {manager} RemoveIPC": answer})
    assert remove_ipc.run(node).status is status


def test_without_systemd_nothing_removes_a_users_memory(tmp_path: Path) -> None:
    assert remove_ipc.run(node_of(tmp_path)).status is Status.SKIPPED
