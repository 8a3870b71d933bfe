"""The shared directory: committed by the manifest alone, whatever dies when; private; never another's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tier_kit import save_id, shard

from ckpt import check_shared, newest_steps
from ckpt.errors import ConfigError, NamespaceError
from ckpt.format.checksums import checksums
from ckpt.format.manifest import ShardPlace
from ckpt.format.shard_record import SaveId
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.mark import new_mark
from ckpt.tiers.posix import SharedTier


def write(tier: SharedTier, save: SaveId, *, nodes: int = 2, per_node: int = 2) -> list[ShardPlace]:
    world = nodes * per_node
    places = []
    for node in range(nodes):
        ranks = range(node * per_node, (node + 1) * per_node)
        places += tier.write_node(save, node, [shard(save, rank, world) for rank in ranks])
    return places


def commit(tier: SharedTier, save: SaveId) -> None:
    tier.commit(save, 4, write(tier, save))


def with_steps(tier: SharedTier, *steps: int) -> SharedTier:
    """The tier, prepared, with these steps committed."""
    tier.prepare()
    for step in steps:
        commit(tier, save_id(step))
    return tier


@pytest.fixture
def tier(tmp_path: Path) -> SharedTier:
    return with_steps(SharedTier(tmp_path, "ns"))


def test_everything_is_private(tier: SharedTier) -> None:
    commit(tier, save_id(1))
    for path in [tier.folder, *tier.folder.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_a_step_directory_that_is_a_symlink_is_passed_over(tier: SharedTier, tmp_path: Path) -> None:
    commit(tier, save_id(1))
    os.rename(tier.folder / directory_name(save_id(1)), tmp_path / "elsewhere")
    (tier.folder / directory_name(save_id(1))).symlink_to(tmp_path / "elsewhere")
    assert tier.steps() == []


def test_a_removal_cut_short_is_finished_by_the_next(tier: SharedTier) -> None:
    commit(tier, save_id(1))
    (tier.folder / ".trash-step-x").mkdir()
    (tier.folder / ".trash-step-x" / "node-00000.data").touch()
    tier.retain(1)
    assert not list(tier.folder.glob(".trash-*"))


_KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[3])
from pathlib import Path
from test_tiers import SharedTier, commit, save_id
stage, count = sys.argv[1].split(":")
real, left = getattr(os, stage), [int(count)]
def dying(*args, **kwargs):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **kwargs)
setattr(os, stage, dying)
commit(SharedTier(Path(sys.argv[2]), "ns"), save_id(2))
"""


@pytest.mark.parametrize("stage", ["pwrite:1", "replace:2"])
def test_a_commit_that_is_repeated_takes_the_temporary_files_of_a_killed_one(tier: SharedTier, stage: str) -> None:
    """`test_killed_anywhere.py` kills one before every change of a file."""
    commit(tier, save_id(1))
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, stage, str(tier.path), str(Path(__file__).parent)],
        check=False,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.returncode == -signal.SIGKILL
    before = tier.steps()
    assert before in ([save_id(1)], [save_id(2), save_id(1)])
    if before == [save_id(1)]:
        commit(tier, save_id(2))
    assert tier.steps() == [save_id(2), save_id(1)]
    for place in tier.read_manifest(save_id(2)).shards:
        data = tier.data_path(save_id(2), place.file).read_bytes()[place.offset : place.offset + 5000]
        assert checksums(memoryview(data)) == place.record.blocks
    assert not list(tier.folder.rglob("node-*.tmp"))


# whose directory


def test_a_new_or_own_directory_may_be_used(tmp_path: Path) -> None:
    check_shared(tmp_path / "a" / "b", "ns")
    assert os.listdir(tmp_path) == []
    SharedTier(tmp_path, "ns").prepare()
    check_shared(tmp_path, "ns")
    check_shared(tmp_path, "other")
    SharedTier(tmp_path, "ns").prepare()


def test_the_time_of_making_is_kept(tmp_path: Path) -> None:
    assert SharedTier(tmp_path, "ns").prepare() == SharedTier(tmp_path, "ns").prepare() > 0


@pytest.mark.parametrize(
    ("namespace", "uid", "match"),
    [("other", os.getuid(), "belongs to namespace 'other'"), ("ns", os.getuid() + 1, "belongs to uid")],
)
def test_a_directory_of_another_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespace: str, uid: int, match: str
) -> None:
    (tmp_path / "ns").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: uid)
        (tmp_path / "ns" / "holdfast.json").write_bytes(new_mark(namespace))
    with pytest.raises(NamespaceError, match=match):
        check_shared(tmp_path, "ns")
    with pytest.raises(NamespaceError):
        SharedTier(tmp_path, "ns").prepare()


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ns").mkdir()
    (tmp_path / "ns" / "thesis.tex").touch()
    with pytest.raises(NamespaceError, match="holds other files"):
        check_shared(tmp_path, "ns")


def test_the_folder_of_a_namespace_is_no_parent_of_one(tmp_path: Path) -> None:
    SharedTier(tmp_path, "ns").prepare()
    with pytest.raises(NamespaceError, match="give its parent"):
        check_shared(tmp_path / "ns", "ns")


def test_a_file_in_the_way_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="expected a directory"):
        check_shared(tmp_path / "file" / "below", "ns")


def test_newest_steps_reads_the_shared_tier(tmp_path: Path) -> None:
    section = {"namespace": "ns", "shared": {"path": str(tmp_path / "x")}}
    assert newest_steps(section) == {"shared": None}
    tier = SharedTier(tmp_path / "x", "ns")
    tier.prepare()
    commit(tier, save_id(12))
    assert newest_steps(section) == {"shared": 12}
    assert newest_steps({"namespace": "ns"}) == {}
