"""Striping: asked of `lfs` where the directory lies on Lustre, and never a reason for a step to fail."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tier_kit import WORLD, save_id, shard

from ckpt.tiers import posix
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.lustre import on_lustre
from ckpt.tiers.posix import SharedTier

# As a client of a Lustre file system shows them.
MOUNTS = r"""/dev/nvme0n1p1 / ext4 rw,relatime 0 0
tmpfs /dev/shm tmpfs rw,nosuid,nodev 0 0
10.0.1.7@tcp:/abcdefgh /fsx lustre rw,checksum,flock,nouser_xattr,lruresize,lazystatfs,verbose 0 0
/dev/nvme1n1 /fsx/scratch ext4 rw,relatime 0 0
10.0.1.8@tcp:/ijklmnop /with\040space lustre rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/fsx", True),
        ("/fsx/ckpt/ns", True),
        ("/fsxother", False),
        ("/fsx/scratch/ns", False),
        ("/with space/ns", True),
        ("/home", False),
    ],
)
def test_the_nearest_mount_tells(tmp_path: Path, path: str, expected: bool) -> None:
    (tmp_path / "mounts").write_text(MOUNTS)
    assert on_lustre(Path(path), tmp_path / "mounts") is expected


@pytest.fixture
def lfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `lfs` on PATH that writes down what it is asked, and a Lustre that all directories lie on."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "lfs"
    command.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(posix, "on_lustre", lambda path: True)
    return command


def commit(path: Path, stripe_count: int | None) -> SharedTier:
    tier = SharedTier(path, "ns", stripe_count=stripe_count)
    tier.prepare()
    tier.begin(save_id(1))
    tier.commit(save_id(1), WORLD, tier.write_node(save_id(1), 0, [shard(save_id(1), rank) for rank in range(WORLD)]))
    return tier


def test_each_steps_directory_gets_its_layout_before_the_first_file(lfs: Path, tmp_path: Path) -> None:
    tier = commit(tmp_path / "shared", -1)
    directory = tier.folder / directory_name(save_id(1))
    assert (tmp_path / "asked").read_text() == f"setstripe --stripe-count -1 {directory}\n"


@pytest.mark.parametrize("case", ["no stripe_count", "not on Lustre", "no lfs"])
def test_without_need_or_means_nothing_is_asked(
    lfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    if case == "not on Lustre":
        monkeypatch.setattr(posix, "on_lustre", on_lustre)
    if case == "no lfs":
        lfs.unlink()
    tier = commit(tmp_path / "shared", None if case == "no stripe_count" else 8)
    assert tier.steps() == [save_id(1)] and not (tmp_path / "asked").exists()


@pytest.mark.parametrize("script", ["echo lfs: error: invalid stripe count >&2; exit 22", "exit 1"])
def test_what_lfs_refuses_is_logged_and_the_step_is_written_all_the_same(
    lfs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, script: str
) -> None:
    lfs.write_text(f"#!/bin/sh\n{script}\n")
    with caplog.at_level(logging.WARNING):
        assert commit(tmp_path / "shared", 4000).steps() == [save_id(1)]
    assert "lfs setstripe --stripe-count 4000" in caplog.text
