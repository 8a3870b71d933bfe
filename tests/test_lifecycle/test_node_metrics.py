"""Metrics of nodes: valid, from what the checks and healing have recorded, and never in their way."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from launcher.cli import main
from lifecycle.heal import command
from lifecycle.heal.case import HealOutcome
from lifecycle.heal.history import REBOOT, RETURNED, Case, HealEvent, HealHistory
from lifecycle.health.verdict import Verdict
from lifecycle.metrics import CHECKS_FILE, HEAL_FILE, of_checks, write_textfile


def samples(path: Path) -> dict[tuple[str, ...], float]:
    """The value of each sample, by its name and the values of its labels in the order of their names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(path.read_text())
        for sample in family.samples
    }


def test_the_results_of_checks_are_numbers_and_skipped_ones_are_left_out(tmp_path: Path) -> None:
    results = {"gpu_ecc": "critical", "clock": "warning", "dcgm": "unknown", "s3": "skipped", "names": "ok"}
    checks = tuple({"name": name, "status": status, "seconds": 0.5} for name, status in results.items())
    verdict = Verdict(node="ip-10-0-0-1", time_s=1.7e9, boot_id="", level="quick", checks=checks)
    write_textfile(tmp_path, CHECKS_FILE, of_checks(verdict, "n1"))
    found = samples(tmp_path / CHECKS_FILE)
    given = {key[1]: value for key, value in found.items() if key[0] == "holdfast_node_check_status"}
    assert given == {"gpu_ecc": 2, "clock": 1, "dcgm": 3, "names": 0}
    assert {key[2]: value for key, value in found.items() if key[0] == "holdfast_node_status"} == {
        "ok": 0, "warning": 0, "critical": 1, "unknown": 0,
    }  # fmt: skip
    assert found["holdfast_node_checks", "n1", "warning"] == 1
    assert found["holdfast_node_check_seconds", "clock", "n1"] == 0.5
    assert found["holdfast_node_checked_time_seconds", "n1"] == 1.7e9
    assert (tmp_path / CHECKS_FILE).stat().st_mode & 0o777 == 0o644, "node_exporter is another user"


def test_a_check_writes_the_metrics_of_its_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "gpu-7")
    config = tmp_path / "health.yaml"
    config.write_text(f"textfile: {tmp_path / 'metrics'}\n")
    words = ["node", "check", "--level", "prolog", "--config", str(config), "--verdict", str(tmp_path / "verdict.json")]
    code = main(words)
    told = capsys.readouterr().err
    assert f"textfile: {tmp_path / 'metrics'}: expected the directory" in told and len(told.splitlines()) == 1
    (tmp_path / "metrics").mkdir()
    assert main(words) == code, "metrics are no result of a check"
    assert capsys.readouterr().err == ""
    found = samples(tmp_path / "metrics" / CHECKS_FILE)
    assert ("holdfast_node_status", "gpu-7", "ok") in found
    assert sum(key[0] == "holdfast_node_check_status" for key in found) > 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's looks write metrics")
def test_a_look_of_healing_writes_what_was_done_and_what_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    history = HealHistory(path=tmp_path / "heal.json")
    case = Case(node="n1", action=REBOOT, why="x", since_s=1.6e9, slurmd_started="")
    history.note(HealEvent(time_s=1.6e9, node="n1", what=REBOOT, why="x"), case)
    history.note(HealEvent(time_s=1.5e9, node="n2", what=REBOOT, why="x"), None)
    history.note(HealEvent(time_s=1.5e9, node="n2", what=RETURNED, why="x"), None)
    outcomes = [HealOutcome(node="n1", what="waits", why=""), HealOutcome(node="n3", what="waits", why="")]
    monkeypatch.setattr(command, "Healer", lambda *_: SimpleNamespace(look=lambda: outcomes))
    (tmp_path / "heal.yaml").write_text(f"heal: on\ntextfile: {tmp_path}\n")
    words = ["node", "heal", "--config", str(tmp_path / "heal.yaml"), "--state", str(history.path)]
    assert main(words) == 0
    found = samples(tmp_path / HEAL_FILE)
    assert (found["holdfast_heal_actions_total", "reboot"], found["holdfast_heal_actions_total", "returned"]) == (2, 1)
    assert found["holdfast_heal_node_since_seconds", "reboot", "n1"] == 1.6e9
    assert found["holdfast_heal_nodes", "waits"] == 2 and found["holdfast_heal_time_seconds",] > 1.7e9
    (tmp_path / "heal.yaml").write_text("heal: on\ntextfile: /nowhere\n")
    assert main(words) == 0
    assert "holdfast node heal: textfile: /nowhere: expected the directory" in capsys.readouterr().err
