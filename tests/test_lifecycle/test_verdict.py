"""The verdict file: what stays, what is replaced, whom it believes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from node_kit import node_of, put

from lifecycle.health.check import VERDICT_FILE, CheckedNode, Level
from lifecycle.health.finding import Finding, Status
from lifecycle.health.last_verdict import MAX_AGE_S, last_verdict
from lifecycle.health.verdict import Verdict, read_verdict

NOW_S = 1_800_000_000.0


def machine(root: Path, boot: str = "boot-1", now_s: float = NOW_S) -> CheckedNode:
    put(root, "/proc/sys/kernel/random/boot_id", boot + "\n")
    return node_of(root, now_s=lambda: now_s)


def finding(name: str, status: Status, measured: str = "as measured") -> Finding:
    return Finding(check=name, status=status, measured=measured, expected="as expected", advice="replace it")


def written(root: Path, level: Level, *findings: Finding, boot: str = "boot-1", now_s: float = NOW_S) -> dict[str, str]:
    """Status by check, as the file has it after this run."""
    path = root / str(VERDICT_FILE).lstrip("/")
    Verdict.of(findings, level, machine(root, boot, now_s)).write(path)
    return {row["name"]: row["status"] for row in read_verdict(path).checks}


def test_the_file_is_what_hooks_expect(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        written(tmp_path, Level.QUICK, finding("gpu_ecc", Status.CRITICAL), finding("s3", Status.SKIPPED))
    finally:
        os.umask(before)
    path = tmp_path / str(VERDICT_FILE).lstrip("/")
    found = json.loads(path.read_text())
    assert path.stat().st_mode & 0o777 == 0o644 and path.parent.stat().st_mode & 0o777 == 0o755
    assert set(found) == {"version", "node", "time_s", "boot_id", "level", "status", "checks"}
    assert (found["version"], found["node"], found["status"], found["level"]) == (
        1,
        os.uname().nodename,
        "critical",
        "quick",
    )
    assert found["checks"][0] == {
        "name": "gpu_ecc", "status": "critical", "measured": "as measured", "expected": "as expected",
        "advice": "replace it", "seconds": 0.0, "time_s": NOW_S, "level": "quick",
    }  # fmt: skip
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_what_only_a_deeper_run_looks_at_stays_until_the_next_boot(tmp_path: Path) -> None:
    written(tmp_path, Level.DEEP, finding("dcgm_long", Status.CRITICAL), finding("clock", Status.CRITICAL))
    assert written(tmp_path, Level.QUICK, finding("clock", Status.OK)) == {"dcgm_long": "critical", "clock": "ok"}
    assert written(tmp_path, Level.QUICK, finding("clock", Status.OK), boot="boot-2") == {"clock": "ok"}


def test_a_failure_is_not_forgotten_because_a_check_could_not_look(tmp_path: Path) -> None:
    written(tmp_path, Level.QUICK, finding("gpu_ecc", Status.CRITICAL), finding("clock", Status.OK))
    blind = (finding("gpu_ecc", Status.UNKNOWN), finding("clock", Status.UNKNOWN))
    assert written(tmp_path, Level.QUICK, *blind) == {"gpu_ecc": "critical", "clock": "unknown"}
    assert written(tmp_path, Level.QUICK, finding("gpu_ecc", Status.OK))["gpu_ecc"] == "ok"


def test_a_run_of_few_checks_replaces_those_and_keeps_age_and_level(tmp_path: Path) -> None:
    path = tmp_path / str(VERDICT_FILE).lstrip("/")
    written(tmp_path, Level.DEEP, finding("dcgm_long", Status.OK), finding("gpu_xid", Status.OK))
    later = machine(tmp_path, now_s=NOW_S + 600)
    Verdict.of([finding("gpu_xid", Status.CRITICAL)], Level.PROLOG, later).write(path, whole=False)
    found = read_verdict(path)
    assert (found.level, found.time_s, found.status) == ("deep", NOW_S, Status.CRITICAL)
    assert {row["name"]: row["time_s"] for row in found.checks} == {"gpu_xid": NOW_S + 600, "dcgm_long": NOW_S}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', '{"version": 1, "node": "n"}'])
def test_what_is_no_verdict_is_refused_by_readers_and_replaced_by_the_next_run(tmp_path: Path, text: str) -> None:
    path = put(tmp_path, str(VERDICT_FILE), text)
    with pytest.raises(ValueError, match=r"verdict|Expecting"):
        read_verdict(path)
    assert written(tmp_path, Level.QUICK, finding("clock", Status.OK)) == {"clock": "ok"}


def test_a_verdict_that_others_could_have_written_is_refused(tmp_path: Path) -> None:
    written(tmp_path, Level.QUICK, finding("clock", Status.OK))
    path = tmp_path / str(VERDICT_FILE).lstrip("/")
    path.chmod(0o666)
    with pytest.raises(ValueError, match="only root can write"):
        read_verdict(path)
    path.chmod(0o644)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        read_verdict(tmp_path / "link")


def test_the_prolog_believes_the_last_verdict_of_this_boot(tmp_path: Path) -> None:
    assert last_verdict.run(machine(tmp_path)).status is Status.UNKNOWN  # none yet
    written(tmp_path, Level.PROLOG, finding("gpu_xid", Status.OK))
    assert last_verdict.run(machine(tmp_path)).status is Status.UNKNOWN  # no whole run
    written(tmp_path, Level.QUICK, finding("clock", Status.WARNING))
    assert last_verdict.run(machine(tmp_path)).status is Status.OK
    assert last_verdict.run(machine(tmp_path, now_s=NOW_S + MAX_AGE_S + 1)).status is Status.WARNING
    written(tmp_path, Level.QUICK, finding("gpu_ecc", Status.CRITICAL))
    found = last_verdict.run(machine(tmp_path, now_s=NOW_S + 120))
    assert found.status is Status.CRITICAL and "critical 2 min ago: gpu_ecc" in found.measured
    assert last_verdict.run(machine(tmp_path, boot="boot-2")).status is Status.UNKNOWN
