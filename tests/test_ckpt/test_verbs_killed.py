"""SIGKILL of `holdfast ckpt` at any stage: what it read is untouched, nothing half made counts, it can be repeated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from test_cli_ckpt import run
from test_exchange import SAVE, sharded
from test_tiers import save_id, with_steps

from ckpt.tiers.posix import SharedTier

_KILLED = """
import os, signal, sys
from ckpt.cli.app import app
function, count = sys.argv[1].split(":")
real, left = getattr(os, function), [int(count)]
def dying(*args, **kwargs):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **kwargs)
setattr(os, function, dying)
app(sys.argv[2:])
"""


def killed(stage: str, *arguments: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, stage, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


def files(*directories: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for directory in directories for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def tier(tmp_path: Path) -> SharedTier:
    return with_steps(SharedTier(tmp_path / "here", "ns"), 3, 4, 5)


@pytest.mark.parametrize("stage", ["pwrite:0", "pwrite:3", "fsync:4", "replace:1", "replace:2", "replace:4"])
def test_copy(tier: SharedTier, tmp_path: Path, stage: str) -> None:
    there, before = SharedTier(tmp_path / "there", "ns"), files(tier.path)
    killed(stage, "copy", tier.path, there.path)
    assert set(there.steps()) < set(tier.steps())
    assert run("copy", tier.path, there.path).exit_code == 0
    assert there.steps() == tier.steps() and run("verify", there.path).exit_code == 0
    assert files(tier.path) == before


@pytest.mark.parametrize("stage", ["replace:0", "replace:1", "rmdir:0", "rmdir:1"])
def test_gc(tier: SharedTier, stage: str) -> None:
    killed(stage, "gc", tier.path, "--keep", "1")
    assert tier.steps()[0] == save_id(5) and run("verify", tier.path).exit_code == 0
    assert run("gc", tier.path, "--keep", "1").exit_code == 0
    assert tier.steps() == [save_id(5)] and not list(tier.folder.glob(".trash-*"))


@pytest.mark.parametrize(("kind", "stage"), [("--dcp", "fsync:0"), ("--safetensors", "replace:0")])
def test_export(tmp_path: Path, kind: str, stage: str) -> None:
    tier = SharedTier(tmp_path / "here", "ns")
    sharded(tier)
    before, target = files(tier.path), tmp_path / "out"
    killed(stage, "export", tier.path, kind, target)
    assert files(tier.path) == before
    assert not (target / ".metadata").exists() and not target.is_file()
    assert run("export", tier.path, kind, tmp_path / "again" if target.exists() else target).exit_code == 0


@pytest.mark.parametrize("stage", ["pwrite:0", "replace:1"])
def test_import(tmp_path: Path, stage: str) -> None:
    source, tier = tmp_path / "dcp", SharedTier(tmp_path / "here", "ns")
    dcp.save({"w": torch.arange(35.0)}, checkpoint_id=source)
    before = files(source)
    arguments = ["import", source, tier.path, "--step", "7", "--namespace", "ns"]
    killed(stage, *arguments)
    assert tier.steps() == [] and files(source) == before
    assert run(*arguments).exit_code == 0 and run("verify", tier.path).exit_code == 0
    assert [save.step for save in tier.steps()] == [SAVE.step]
