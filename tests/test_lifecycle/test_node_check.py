"""`holdfast node check`, as its user has it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from launcher.cli import main
from lifecycle.health import command
from lifecycle.health.catalog import CHECKS
from lifecycle.health.runner import run_checks


def check(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["node", "check", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_quick_on_this_machine_measures_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verdict = tmp_path / "state/verdict.json"
    code, said, _ = check(capsys, "--json", "--verdict", str(verdict))
    found = json.loads(said)
    rows = {row["name"]: row for row in found["checks"]}
    assert code == (1 if any(row["status"] == "critical" for row in rows.values()) else 0)
    assert rows["memory_bandwidth"]["status"] == "ok" and rows["memory_bandwidth"]["measured"].split()[1] == "GB/s"
    assert rows["zombies"]["measured"].isdigit() or rows["zombies"]["status"] == "warning"
    assert rows["disk_space"]["measured"] and rows["clock"]["status"] != "unknown"
    if not list(Path("/sys/bus/pci/devices").glob("*/vendor")):
        assert rows["gpu_count"]["status"] == rows["efa_devices"]["status"] == "skipped"
    assert json.loads(verdict.read_text()) == found


def test_the_table_has_a_row_for_what_was_measured_and_a_line_for_what_was_skipped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, said, _ = check(capsys, "--only", "open_files", "--only", "s3")
    lines = said.splitlines()
    assert code == 0
    assert lines[0].split() == ["check", "status", "measured", "expected", "advice"]
    assert lines[1].startswith("open_files  ok")
    assert lines[2] == "skipped, `s3:` in health.yaml names no bucket: s3"
    assert "ok (1 ok, 1 skipped)" in lines[3]


def test_what_is_piped_is_one_line_a_check_without_blanks_at_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a-name-that-does-not-resolve." * 8 + "invalid"
    config = tmp_path / "health.yaml"
    config.write_text(f"names: [{name}]\n")
    _, said, _ = check(capsys, "--only", "open_files", "--only", "names", "--config", str(config))
    assert len(said.splitlines()) == 4 and f"{name} (unknown)" in said
    for words in ((), ("--list",)):
        said = check(capsys, *words)[1] if words else said
        assert [line for line in said.splitlines() if line != line.rstrip()] == []


def test_brief_leaves_out_what_is_ok_or_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = ("--only", "open_files", "--only", "s3", "--brief")
    assert [line.split(": ")[1].split(";")[0] for line in check(capsys, *only)[1].splitlines()] == [
        "ok (1 ok, 1 skipped)"
    ]
    config = tmp_path / "health.yaml"
    config.write_text("names: [login1.invalid]\n")
    code, said, _ = check(capsys, *only, "--only", "names", "--config", str(config))
    assert code == 1 and [line.split()[0] for line in said.splitlines()[:2]] == ["check", "names"]
    assert len(said.splitlines()) == 3


def test_a_check_run_alone_leaves_no_verdict_and_a_prolog_one_of_its_level(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = tmp_path / "verdict.json"
    check(capsys, "--only", "open_files", "--verdict", str(verdict))
    assert not verdict.exists()
    check(capsys, "--level", "prolog", "--verdict", str(verdict))
    found = json.loads(verdict.read_text())
    assert found["level"] == "prolog" and "open_files" in {row["name"] for row in found["checks"]}
    assert "last_verdict" not in {row["name"] for row in found["checks"]}


def test_a_run_can_be_given_less_time(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's health hook has less than its 60 s: what is not answered then is unknown, and the rest is kept."""
    given: list[float] = []
    monkeypatch.setattr(command, "run_checks", lambda *args: given.append(args[2]) or run_checks(*args))
    code, said, _ = check(capsys, "--only", "stuck_processes", "--only", "dcgm_long", "--within", "1", "--json")
    assert code == 0 and {row["name"] for row in json.loads(said)["checks"]} == {"stuck_processes", "dcgm_long"}
    assert given == [1.0]


def test_a_check_that_takes_minutes_gets_them_by_its_name_alone_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, said, told = check(capsys, "--only", "dcgm_long", "--json")
    assert json.loads(said)["level"] == "deep"
    assert re.fullmatch(r"\S+: 1 checks?, done in \d+ min at most\n", told)


def test_a_critical_finding_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "health.yaml"
    config.write_text("instance: p5.48xlarge\n")
    code, said, _ = check(capsys, "--only", "gpu_devices", "--config", str(config))
    assert code == 1 and "gpu_devices  critical" in said and "p5.48xlarge" in said


def test_what_the_site_skips_is_not_run_unless_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "health.yaml"
    config.write_text("skip: [open_files]\n")
    verdict = str(tmp_path / "verdict.json")  # not this machine's own
    ran = json.loads(check(capsys, "--level", "prolog", "--config", str(config), "--verdict", verdict, "--json")[1])
    assert "open_files" not in {row["name"] for row in ran["checks"]}
    ran = json.loads(check(capsys, "--only", "open_files", "--config", str(config), "--json")[1])
    assert [row["name"] for row in ran["checks"]] == ["open_files"]


def test_the_list_names_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    code, said, _ = check(capsys, "--list", "--json")
    assert code == 0 and [row["name"] for row in json.loads(said)] == [each.name for each in CHECKS]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--level", "full"], "expected prolog | quick | deep"),
        (["--only", "gpu_ec"], "did you mean gpu_ecc?"),
        (["--only", ""], "no health check"),
        (["--config", "/nonexistent.yaml"], "no such file"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = check(capsys, *words)
    assert code == 2 and told in said and len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("skips: [s3]", "did you mean skip?"),
        ("skip: s3", "skip: got 's3', expected a list"),
        ("s3: 7", "s3: got '7', expected s3://bucket/prefix"),
        ("allreduce_gb_s: fast", "allreduce_gb_s: got 'fast', expected a number, more than 0"),
        ("pair_allreduce_gb_s: 0", "expected a number, more than 0"),
        ("allreduce_gb_s: true", "expected a number"),
        ("- a", "expected keys and values"),
        ("a: [", "not valid YAML"),
        ("skip: [gpu_ec]", "did you mean gpu_ecc?"),
    ],
)
def test_settings_that_say_nothing_sensible_are_refused(
    tmp_path: Path, text: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "health.yaml"
    config.write_text(text)
    code, _, said = check(capsys, "--config", str(config))
    assert code == 2 and told in said and len(said.splitlines()) == 1


def test_a_verdict_that_cannot_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    config = tmp_path / "health.yaml"
    config.write_text(f"skip: [{', '.join(each.name for each in CHECKS if each.name != 'open_files')}]")
    code, _, said = check(capsys, "--config", str(config), "--verdict", str(tmp_path / "file/verdict.json"))
    assert code == 1 and "verdict" in said and len(said.splitlines()) == 1
