"""What a node that loses its power may take along: bytes and names that nobody has synced. No promise rests on them.

A kill leaves the page cache, so it cannot show this: here the calls are watched instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tier_kit import WORLD, save_id, shard

from ckpt.tiers.nvme import NvmeTier
from ckpt.tiers.posix import SharedTier
from holdfast.base.files import durable_write

Tier = SharedTier | NvmeTier


class Disk:
    """Knows what below a directory a loss of power would take along."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.bytes: set[int] = set()  # inodes
        self.names: set[tuple[int, str]] = set()  # of what was renamed or made: the directory's inode, and the name
        self.manifests = 0
        for call, watch in (
            ("pwrite", self._written), ("write", self._written), ("fsync", self._synced), ("mkdir", self._made),
            ("rename", self._renamed), ("replace", self._renamed),
        ):  # fmt: skip
            patch.setattr(os, call, self._beside(getattr(os, call), watch))

    def would_lose(self) -> bool:
        return bool(self.bytes or self.names)

    def _beside(self, function: Callable[..., Any], watch: Callable[..., None]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            result = function(*args, **options)
            watch(*args)
            return result

        return wrapped

    def _written(self, descriptor: int, *_: Any) -> None:
        self.bytes.add(os.fstat(descriptor).st_ino)

    def _synced(self, descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        self.bytes.discard(inode)
        self.names = {(directory, name) for directory, name in self.names if directory != inode}

    def _made(self, path: Path, *_: Any) -> None:
        self.names.add((os.stat(Path(path).parent).st_ino, Path(path).name))

    def _renamed(self, source: Path, target: Path) -> None:
        target = Path(target)
        assert os.stat(target).st_ino not in self.bytes, f"{target}: has its name before its bytes are durable"
        if target.name == "manifest.json":
            self.manifests += 1
            assert not self.names, f"a manifest before the names that it stands for: {self.names}"
        self.names.add((os.stat(target.parent).st_ino, target.name))


@pytest.fixture(params=["shared", "nvme"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tier]:
    tier = SharedTier(tmp_path, "ns") if request.param == "shared" else NvmeTier(tmp_path, "ns", node="n0")
    tier.prepare()
    yield tier


@pytest.fixture
def disk(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def commit(tier: Tier, step: int) -> None:
    save, nodes = save_id(step), 1 if tier.node_local else 2
    tier.begin(save)
    parts = [range(node, WORLD, nodes) for node in range(nodes)]
    places = [
        place
        for node, part in enumerate(parts)
        for place in tier.write_node(save, node, [shard(save, rank) for rank in part])
    ]
    tier.commit(save, WORLD, places)


def test_a_committed_step_is_durable_and_its_manifest_last(tier: Tier, disk: Disk) -> None:
    commit(tier, 10)
    assert disk.manifests == 1 and not disk.would_lose()


def test_a_step_that_is_written_again_over_an_unfinished_one_is_as_durable(tier: Tier, disk: Disk) -> None:
    save = save_id(10)
    tier.write_node(save, 0, [shard(save, rank) for rank in range(WORLD)])
    commit(tier, 10)
    assert disk.manifests == 1 and not disk.would_lose()


def test_a_bad_step_is_quarantined_with_its_reason_for_good(tier: Tier, disk: Disk) -> None:
    commit(tier, 10)
    tier.quarantine(next(entry.name for entry in tier.catalog()), "a reason")
    assert not disk.would_lose()
    assert [reason for _, reason in tier.quarantined()] == ["a reason"]


def test_a_durable_write_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    durable_write(tmp_path / "file", b"content")
    assert not disk.would_lose()
