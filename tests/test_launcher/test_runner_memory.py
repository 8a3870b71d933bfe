"""The node's memory directory is ours alone, or it is not used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.runner import memory
from launcher.runner.memory import (
    MemoryDirError,
    hold_memory_dir,
    make_memory_dir,
    memory_dir,
    remove_ended,
    remove_memory_dir,
)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory, "MEMORY_ROOT", tmp_path)
    return tmp_path


def test_every_level_is_private(root: Path) -> None:
    path = memory_dir("run", "node0")
    make_memory_dir(path)
    assert path == root / f"holdfast-{os.getuid()}" / "run" / "node0"
    assert all(level.stat().st_mode & 0o777 == 0o700 for level in (path, path.parent, path.parent.parent))


def test_making_it_again_keeps_what_is_there(root: Path) -> None:
    path = memory_dir("run")
    make_memory_dir(path)
    (path / "state").write_bytes(b"x")
    make_memory_dir(path)
    assert (path / "state").read_bytes() == b"x"


def test_directory_open_to_others_is_closed(root: Path) -> None:
    path = memory_dir("run")
    path.mkdir(parents=True, mode=0o777)
    path.chmod(0o777)
    make_memory_dir(path)
    assert path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("level", ["run", "base"])
def test_symbolic_link_is_refused_at_any_level(root: Path, level: str) -> None:
    elsewhere = root / "elsewhere"
    elsewhere.mkdir()
    path = memory_dir("run")
    planted = path if level == "run" else path.parent
    planted.parent.mkdir(exist_ok=True, mode=0o700)
    planted.symlink_to(elsewhere)
    with pytest.raises(MemoryDirError, match="not a directory"):
        make_memory_dir(path)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to make another user's directory")
def test_directory_of_another_user_is_refused(root: Path) -> None:
    path = memory_dir("run")
    path.parent.mkdir()
    os.chown(path.parent, 65534, 65534)
    with pytest.raises(MemoryDirError, match="belongs to user 65534, expected 0"):
        make_memory_dir(path)


def test_removing_leaves_what_others_use(root: Path) -> None:
    make_memory_dir(memory_dir("run", "node0"))
    make_memory_dir(memory_dir("run", "node1"))
    remove_memory_dir(memory_dir("run", "node0"))
    assert list(memory_dir("run").iterdir()) == [memory_dir("run", "node1")]
    remove_memory_dir(memory_dir("run", "node1"))
    assert list(root.iterdir()) == []


class TestEnded:
    """Memory of ended jobs, on a node without hooks."""

    @pytest.fixture
    def own(self, root: Path) -> Path:
        own = memory_dir("slurm-c-9")
        for run in ("slurm-c-9", "slurm-c-7", "slurm-c-8", "local-x-1"):
            make_memory_dir(memory_dir(run))
            (memory_dir(run) / "arena").write_bytes(b"x")
        return own

    def runs(self, own: Path) -> set[str]:
        return {path.name for path in own.parent.iterdir()}

    def test_goes_where_the_job_has_ended_for_certain(self, own: Path) -> None:
        asked: list[str] = []

        def has_ended(run_id: str) -> bool:
            asked.append(run_id)
            return run_id == "slurm-c-7"

        assert remove_ended(own, has_ended) == ["slurm-c-7"]
        assert asked == ["slurm-c-7", "slurm-c-8"]
        assert self.runs(own) == {"slurm-c-9", "slurm-c-8", "local-x-1"}

    def test_stays_while_its_runner_lives_whatever_slurm_says(self, own: Path) -> None:
        held = hold_memory_dir(memory_dir("slurm-c-7"))
        assert remove_ended(own, lambda run_id: run_id == "slurm-c-7") == []
        assert (memory_dir("slurm-c-7") / "arena").exists()
        os.close(held)
        assert remove_ended(own, lambda run_id: run_id == "slurm-c-7") == ["slurm-c-7"]

    def test_a_runner_that_comes_meanwhile_has_a_directory_of_its_own(
        self, own: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The directory is moved away between its open and its lock."""
        path, opened = memory_dir("slurm-c-7"), os.open

        def slow(name: object, flags: int, *rest: int) -> int:
            descriptor = opened(name, flags, *rest)
            monkeypatch.setattr(os, "open", opened)
            assert remove_ended(own, lambda run_id: run_id == path.name) == [path.name]
            return descriptor

        monkeypatch.setattr(os, "open", slow)
        held = hold_memory_dir(path)
        assert path.is_dir() and not list(path.iterdir())
        assert remove_ended(own, lambda run_id: run_id == path.name) == []
        os.close(held)

    def test_what_a_killed_runner_has_left_of_it_goes_too(self, own: Path) -> None:
        memory_dir("slurm-c-7").rename(own.parent / ".ended-slurm-c-7-0a1b2c3d")
        assert remove_ended(own, lambda run_id: False) == []
        assert self.runs(own) == {"slurm-c-9", "slurm-c-8", "local-x-1"}
