"""A job's runner follows what the health checks of its node find."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lifecycle.health.check import CheckedNode, Level
from lifecycle.health.finding import Finding, Status
from lifecycle.health.verdict import Verdict
from lifecycle.health.watch import HealthWatch


def check(path: Path, status: Status, *, boot: str | None = None) -> None:
    """Writes the verdict of one run."""
    finding = Finding(check="gpu_ecc", status=status, measured="2 uncorrectable", expected="0", advice="reboot")
    verdict = Verdict.of([finding], Level.QUICK, CheckedNode())
    if boot is not None:
        verdict = Verdict(node=verdict.node, time_s=1.0, boot_id=boot, level="quick", checks=verdict.checks)
    path.unlink(missing_ok=True)
    verdict.write(path)


def test_a_failed_check_and_its_end_are_changes(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    watch = HealthWatch(path)
    assert not watch.look() and watch.reason is None, "there is no verdict"
    check(path, Status.CRITICAL)
    assert watch.look() and watch.reason == "gpu_ecc: 2 uncorrectable, expected 0"
    check(path, Status.CRITICAL)
    assert not watch.look(), "a later run has found the same"
    check(path, Status.OK)
    assert watch.look() and watch.reason is None


@pytest.mark.parametrize("status", [Status.WARNING, Status.UNKNOWN, Status.OK])
def test_only_what_is_critical_is_a_reason_to_leave_a_node(tmp_path: Path, status: Status) -> None:
    check(tmp_path / "verdict.json", status)
    assert not HealthWatch(tmp_path / "verdict.json").look()


def test_a_verdict_from_before_the_last_reboot_is_none(tmp_path: Path) -> None:
    check(tmp_path / "verdict.json", Status.CRITICAL, boot="an earlier one")
    assert not HealthWatch(tmp_path / "verdict.json").look()


def test_a_file_that_other_users_can_write_is_not_believed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "verdict.json"
    check(path, Status.CRITICAL)
    os.chmod(path, 0o666)
    assert not HealthWatch(path).look() and "the health of this node is not known" in caplog.text
