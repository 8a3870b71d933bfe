"""`holdfast node provision`, as its user has it: on a directory as the node's root."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest
from provision_kit import bare

from launcher.cli import main
from lifecycle.provision import command

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root provisions")


def provision(root: Path, *words: str) -> int:
    config = root / "node.yaml"
    config.write_text("container: false\n")
    return main(["node", "provision", "--root", str(root), "--config", str(config), "--only", "limits", *words])


@pytest.mark.parametrize(("log", "why"), [("/dev/full", "No space left on device"), ("file/x/log", "Not a directory")])
def test_a_log_that_cannot_be_written_is_said_once_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], log: str, why: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(command, "LOG_FILE", tmp_path / log)
    assert provision(bare(tmp_path / "root")) == 0
    said = capsys.readouterr()
    assert said.err == f"{tmp_path / log}: the log cannot be written ({why}); continuing without a log\n"
    assert "done: 1 applied" in said.out and list((tmp_path / "root/etc/security/limits.d").iterdir())


def test_two_runs_at_once_are_one_and_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "LOG_FILE", tmp_path / "log")
    lock = bare(tmp_path) / "run/holdfast/provision.lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("4711")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert provision(tmp_path) == 1
    assert f"{lock}: process 4711 provisions this node" in capsys.readouterr().err


def test_a_plan_says_which_files_nobody_has_a_checksum_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the steps in front of it are applied."""
    config = tmp_path / "node.yaml"

    def plan(site: str) -> dict[str, dict[str, str]]:
        config.write_text(f"container: false\n{site}")
        asked = ["--only", "efa", "--only", "mountpoint", "--only", "containers", "--dry-run", "--json"]
        assert main(["node", "provision", "--root", str(bare(tmp_path)), "--config", str(config), *asked]) == 0
        return {row["step"]: row for row in json.loads(capsys.readouterr().out)}

    site = "efa: '1.51.0'\ns3: [{bucket: data, mount: /s3/data}]\nenroot: true\n"
    rows = plan(site)
    assert {row["plan"] for row in rows.values()} == {"would fail"}
    assert (
        "no checksum is pinned for this file" in rows["efa"]["detail"] and "sha256: {efa: SUM}" in rows["efa"]["detail"]
    )
    sums = "".join(f"  {name}: '{'0' * 64}'\n" for name in ("efa", "mountpoint", "enroot", "enroot-caps", "pyxis"))
    assert {row["plan"] for row in plan(f"{site}sha256:\n{sums}").values()} == {"apply"}
    assert plan("instance: p5.48xlarge\n")["efa"]["plan"] == "apply"  # the default has one


def test_a_mirror_of_the_command_line_is_named_by_its_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert provision(bare(tmp_path), "--mirror", "http://x", "--dry-run") == 2
    assert "--mirror: mirror: got 'http://x', expected a directory's path or s3://" in capsys.readouterr().err
    assert provision(bare(tmp_path), "--mirror", str(tmp_path), "--dry-run", "--json") == 0
    assert [row["step"] for row in json.loads(capsys.readouterr().out)] == ["limits"]
