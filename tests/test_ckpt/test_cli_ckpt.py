"""holdfast ckpt ls and verify, as somebody at a terminal or a script sees them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from test_tiers import commit, save_id, shard, write
from verb_kit import Printed, ckpt

from ckpt.format.manifest import new_manifest
from ckpt.format.shard_record import seal_json, unseal_json, write_record
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.posix import SharedTier


def run(*arguments: str | Path) -> Printed:
    return ckpt(*arguments)


def facts(*arguments: str | Path) -> list[dict[str, Any]]:
    return json.loads(run(*arguments, "--json").stdout)  # type: ignore[no-any-return]


@pytest.fixture
def tier(tmp_path: Path) -> SharedTier:
    tier = SharedTier(tmp_path, "ns")
    tier.prepare()
    commit(tier, save_id(3))
    commit(tier, save_id(4, attempt=1))
    return tier


@pytest.fixture
def ram_dir(tmp_path: Path) -> Path:
    path = tmp_path / "ram"
    path.mkdir()
    for name, rank in (("own-0-0", 0), ("own-1-0", 1), ("copy-1-0-0", 2)):
        record, data = shard(save_id(7), rank, 4)
        (path / f"{name}.data").write_bytes(bytes(data) + b"older and longer")
        write_record(path, name, record)
    return path


def damage(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(b"\xff")


@pytest.mark.parametrize("below", ["", "ns"])
def test_ls_shows_what_is_there_newest_first(tier: SharedTier, below: str) -> None:
    write(tier, save_id(5))
    rows = facts("ls", tier.path / below)
    assert [(row["step"], row["attempt"], row["committed"], row["world_size"]) for row in rows] == [
        (5, 0, False, None),
        (4, 1, True, 4),
        (3, 0, True, 4),
    ]
    assert rows[1]["bytes"] == 20_000 and 0 <= rows[1]["age_s"] < 60 and rows[1]["namespace"] == "ns"
    result = run("ls", tier.path / below)
    assert result.exit_code == 0
    head, *lines = result.stdout.splitlines()
    assert " ".join(head.split()) == "step attempt world size size shards age committed tier namespace"
    before, age, after = lines[1].split()[:6], lines[1].split()[6], lines[1].split()[7:]
    assert before == ["4", "1", "4", "20.0", "kB", "4"] and age.isdigit() and after == ["s", "yes", "shared", "ns"]


@pytest.mark.parametrize("newest", [1, 2, 9])
def test_ls_shows_the_newest_steps_alone_where_that_is_asked_for(tier: SharedTier, newest: int) -> None:
    damage(tier.data_path(save_id(3), "manifest.json"), 10)
    rows = facts("ls", tier.path, "-n", str(newest))
    assert [(row["step"], bool(row["problems"])) for row in rows] == [(4, False), (3, True)][:newest]
    assert len(run("ls", tier.path, "-n", str(newest)).stdout.splitlines()) == 1 + len(rows)


def test_ls_looks_at_no_more_of_a_manifest_than_it_shows(tier: SharedTier) -> None:
    """Thousands of ranks have many tensors; what their layouts say is for verify."""
    path = tier.data_path(save_id(3), "manifest.json")
    path.write_bytes(seal_json({**unseal_json(path.read_bytes()), "parts": [[[], [["k"]]], None, [[1, [0], 1]]]}))
    row = facts("ls", tier.path)[1]
    assert (row["step"], row["committed"], row["bytes"], row["problems"]) == (3, True, 20_000, [])
    result = run("verify", tier.path)
    assert result.exit_code == 1 and "DAMAGED step-0000000003.a0." in result.stdout


def test_ls_of_a_namespace_without_steps_is_a_heading_alone(tmp_path: Path) -> None:
    SharedTier(tmp_path, "ns").prepare()
    assert facts("ls", tmp_path) == [] and run("ls", tmp_path).stdout.startswith("step  attempt")


def test_verify_of_sound_steps_says_ok(tier: SharedTier) -> None:
    write(tier, save_id(5))
    result = run("verify", tier.path)
    assert result.exit_code == 0
    assert [line.split()[-1] for line in result.stdout.splitlines()[2:]] == ["ok", "ok"]
    assert "not committed" in result.stdout
    assert all(row["ok"] for row in facts("verify", tier.path))


def test_verify_names_the_bad_block_of_the_bad_step(tier: SharedTier) -> None:
    file = tier.data_path(save_id(3), "node-00001.data")
    damage(file, 100)
    result = run("verify", tier.path)
    assert result.exit_code == 1
    assert f"DAMAGED rank 2 in {file}: 1 of 1 blocks do not match, first block 0" in result.stdout
    assert [row["ok"] for row in facts("verify", tier.path)] == [True, False]
    assert run("verify", tier.path, "--step", "4").exit_code == 0
    assert run("verify", tier.path, "--step", "3").exit_code == 1


@pytest.mark.parametrize("change", ["truncate", "remove", "symlink", "directory"])
def test_verify_finds_files_that_are_not_what_they_were(tier: SharedTier, change: str) -> None:
    file = tier.data_path(save_id(3), "node-00001.data")
    if change == "truncate":
        os.truncate(file, 4096)
    else:
        os.rename(file, tier.path / "elsewhere")
        if change == "symlink":
            file.symlink_to(tier.path / "elsewhere")
        elif change == "directory":
            file.mkdir()
    result = run("verify", tier.path)
    assert result.exit_code == 1 and "DAMAGED rank 3" in result.stdout
    assert "Traceback" not in result.output


def test_a_damaged_manifest_is_shown_and_fails_verify(tier: SharedTier) -> None:
    damage(tier.data_path(save_id(3), "manifest.json"), 10)
    *_, line = run("ls", tier.path).stdout.splitlines()
    assert "DAMAGED" in line.split() and " step-0000000003.a0." in line.partition(" ns ")[2]
    result = run("verify", tier.path)
    assert result.exit_code == 1 and "does not match its checksum" in result.stdout


@pytest.mark.parametrize("file", ["../secret", "/etc/passwd", "node-00000.data/../../../secret"])
def test_a_hostile_manifest_never_leads_out_of_its_directory(tier: SharedTier, file: str) -> None:
    save = save_id(9)
    value = new_manifest(save, 4, 0.0, write(tier, save)).to_json()
    value["files"][0] = file
    tier.data_path(save, "manifest.json").write_bytes(seal_json(value))
    result = run("verify", tier.path)
    assert result.exit_code == 1 and "expected node-NNNNN.data" in result.stdout


def test_names_and_reasons_of_strangers_are_shown_and_never_obeyed_by_a_terminal(tier: SharedTier) -> None:
    """A note in a step quarantined, and a name that is no UTF-8; each is one line of the table."""
    for name in (b"bad-step-3\xff", b"bad-step-\x1b[31m\n"):
        os.mkdir(os.path.join(os.fsencode(tier.folder), name))
    (tier.folder / "bad-step-\x1b[31m\n" / "reason.json").write_text(json.dumps({"reason": "\x1b[2J[red]\nstep 9"}))
    result = run("ls", tier.path)
    assert result.exit_code == 0 and len(result.stdout.splitlines()) == 5, result.output
    assert (
        r"bad-step-\x1b[31m\n: \x1b[2J[red]\nstep 9" in result.stdout and r"bad-step-3\udcff: unknown" in result.stdout
    )


def test_an_oversize_manifest_is_refused_unread(tier: SharedTier) -> None:
    os.truncate(tier.folder / directory_name(save_id(3)) / "manifest.json", 1 << 40)
    result = run("verify", tier.path)
    assert result.exit_code == 1 and "expected at most" in result.stdout


def test_a_memory_directory_is_listed_and_verified(ram_dir: Path) -> None:
    (row,) = facts("ls", ram_dir)
    assert (row["step"], row["shards"], row["world_size"], row["committed"], row["tier"]) == (7, 3, 4, None, "memory")
    assert run("verify", ram_dir).exit_code == 0
    damage(ram_dir / "copy-1-0-0.data", 4999)
    result = run("verify", ram_dir)
    assert result.exit_code == 1 and "DAMAGED rank 2" in result.stdout


def test_a_damaged_record_in_memory_is_shown_and_fails_verify(ram_dir: Path) -> None:
    damage(ram_dir / "own-0-0.json", 3)
    assert facts("ls", ram_dir)[-1]["problems"]
    result = run("verify", ram_dir)
    assert result.exit_code == 1 and "DAMAGED own-0-0.json" in result.stdout


@pytest.mark.parametrize("command", ["ls", "verify"])
@pytest.mark.parametrize("kind", ["missing", "file", "not ours", "empty", "bad mark"])
def test_a_path_that_is_not_ours_is_a_usage_error_in_one_line(tmp_path: Path, command: str, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "file":
        path.touch()
    elif kind != "missing":
        path.mkdir()
    if kind == "not ours":
        (path / "thesis.tex").touch()
    if kind == "bad mark":
        (path / "holdfast.json").write_text("{")
    result = run(command, path)
    assert result.exit_code == 2
    assert result.stdout == "" and len(result.messages) == 1
    assert result.stderr.startswith(f"holdfast: error: {path}")


def test_a_step_that_is_not_there_is_a_usage_error(tier: SharedTier) -> None:
    result = run("verify", tier.path, "--step", "99")
    assert result.exit_code == 2 and "holds no step 99" in result.stderr
