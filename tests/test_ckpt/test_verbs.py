"""holdfast ckpt copy, gc and verify --quarantine: what they change, and what they never touch."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_cli_ckpt import damage, facts, run
from test_tiers import commit, save_id, with_steps, write

from ckpt.tiers.posix import SharedTier, directory_name


@pytest.fixture
def tier(tmp_path: Path) -> SharedTier:
    return with_steps(SharedTier(tmp_path / "here", "ns"), 3, 4, 5)


def test_a_copy_verifies_and_is_made_once(tier: SharedTier, tmp_path: Path) -> None:
    there = SharedTier(tmp_path / "there", "ns")
    result = run("copy", tier.path, there.path, "--step", "4")
    assert result.exit_code == 0 and [save.step for save in there.steps()] == [4]
    result = run("copy", tier.path, there.path)
    assert "step 4: already in" in result.stdout and there.steps() == tier.steps()
    assert run("verify", there.path).exit_code == 0


def test_a_damaged_step_is_never_copied(tier: SharedTier, tmp_path: Path) -> None:
    damage(tier.data_path(save_id(5), "node-00001.data"), 100)
    result = run("copy", tier.path, tmp_path / "there")
    assert result.exit_code == 1 and "does not match" in result.stderr
    assert [save.step for save in SharedTier(tmp_path / "there", "ns").steps()] == [4, 3]


def test_a_copy_that_was_killed_is_repeated(tier: SharedTier, tmp_path: Path) -> None:
    there = SharedTier(tmp_path / "there", "ns")
    there.prepare()
    write(there, save_id(5))  # data, and no manifest
    assert run("copy", tier.path, there.path).exit_code == 0
    assert there.steps() == tier.steps()


def test_gc_keeps_the_newest_and_says_what_goes(tier: SharedTier) -> None:
    result = run("gc", tier.path, "--keep", "1", "--dry-run")
    assert result.exit_code == 0 and "2 steps, 40.0 kB would be freed" in result.stdout
    assert len(tier.steps()) == 3
    result = run("gc", tier.path, "--keep", "1")
    assert f"removed {tier.folder / directory_name(save_id(3))}" in result.stdout
    assert [save.step for save in tier.steps()] == [5]


def test_a_program_reads_what_was_copied_and_what_goes(tier: SharedTier, tmp_path: Path) -> None:
    there = SharedTier(tmp_path / "there", "ns")
    run("copy", tier.path, there.path, "--step", "4")
    assert facts("copy", tier.path, there.path) == [
        {"namespace": "ns", "step": step, "attempt": 0, "copied": step != 4, "to": str(there.where)}
        for step in (3, 4, 5)
    ]
    for dry_run, left in ((["--dry-run"], 3), ([], 1)):
        assert facts("gc", tier.path, "--keep", "1", *dry_run) == [
            {"namespace": "ns", "step": step, "attempt": 0, "bytes": 20_000, "removed": not dry_run} for step in (4, 3)
        ]
        assert len(tier.steps()) == left
    assert facts("gc", tier.path, "--keep", "1") == []


def test_a_bad_step_is_quarantined_with_the_reason_and_the_next_is_the_newest(tier: SharedTier) -> None:
    damage(tier.data_path(save_id(5), "node-00001.data"), 100)
    assert run("verify", tier.path).exit_code == 1 and len(tier.steps()) == 3
    result = run("verify", tier.path, "--quarantine")
    assert result.exit_code == 1 and "quarantined as" in result.stdout
    assert [save.step for save in tier.steps()] == [4, 3]
    aside = tier.folder / f"bad-{directory_name(save_id(5))}"
    assert (aside / "manifest.json").exists() and "do not match" in (aside / "reason.json").read_text()
    (row,) = [row for row in facts("ls", tier.path) if row["tier"] == "quarantine"]
    assert "1 of 1 blocks do not match" in row["problems"][0]
    assert run("verify", tier.path).exit_code == 0
    run("gc", tier.path, "--keep", "1")
    assert aside.exists()


def test_a_step_saved_again_can_be_quarantined_again(tier: SharedTier) -> None:
    for number in ("", ".2"):
        damage(tier.data_path(save_id(5), "node-00001.data"), 100)
        run("verify", tier.path, "--quarantine")
        assert (tier.folder / f"bad-{directory_name(save_id(5))}{number}").is_dir()
        commit(tier, save_id(5))


@pytest.mark.parametrize("arguments", [["copy", "missing", "there"], ["copy", "here", "there", "--step", "9"],
                                       ["gc", "missing", "--keep", "1"]])  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(
    tier: SharedTier, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tier.path.parent)
    result = run(*arguments)
    assert result.exit_code == 2 and len(result.messages) == 1
