"""What does not belong in our directories: refused by name, and nothing that it leads to is read or touched."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from agent_kit import LINE, NAMESPACE, World, config, content, lose, run, until

from ckpt.errors import NamespaceError
from ckpt.format.line import NOBODY
from ckpt.format.shard_record import SaveId
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.lookup import tiers_at
from ckpt.tiers.own_folder import own_folder
from ckpt.tiers.posix import SharedTier, check_shared


def contents_of(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_links_and_pipes_in_a_memory_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Records and bytes that would verify, were they there; and a pipe, at which a reader would wait for ever."""

    async def test() -> None:
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            await world.save(10, 0)
            await world.save(20, 1)
        outside = tmp_path / "outside"
        shutil.copytree(tmp_path / "a", outside, ignore=lambda *_: ["agent-0.sock"])
        before = contents_of(outside)
        for name in ("own-0-1.data", "copy-1-0-1.json"):
            (tmp_path / "a" / name).unlink()
            (tmp_path / "a" / name).symlink_to(outside / name)
        os.mkfifo(tmp_path / "a" / "own-0-7.json")
        async with World(tmp_path, ["a", "b"], 1, config()) as world:
            plan = await world.plan()
            assert (plan["step"], plan["tier"]) == (20, "memory")
            assert await world.contents(2) == [content(rank, 20) for rank in range(2)]
            await world.save(30, 0)
        assert contents_of(outside) == before
        assert "copy-1-0-1.json: is a symbolic link, expected a regular file" in caplog.text
        assert "own-0-7.json: is not a regular file" in caplog.text
        assert "own-0-1.data" in caplog.text

    run(test)


def test_links_in_a_tiers_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of a node's file, of a step to come, and of an old one that is to go."""
    shared, outside = tmp_path / "shared", tmp_path / "outside"
    tier = SharedTier(shared, NAMESPACE)

    async def test() -> None:
        async with World(tmp_path, ["a"], 0, config(shared)) as world:
            for slot, step in enumerate((10, 20)):
                await world.save(step, slot)
                await world.await_saves()
        lose(tmp_path, "a")
        first, newest = (tier.folder / directory_name(save) for save in reversed(tier.steps()))
        outside.mkdir()
        for path, away in ((newest / "node-00000.data", outside / "data"), (first, outside / "step")):
            path.rename(away)
            path.symlink_to(away)
        before = contents_of(outside)
        async with World(tmp_path, ["a"], 1, config(shared)) as world:
            error = (await world.workers[0].request("plan"))["error"]
            assert "none can be restored: step 20: " in error and "node-00000.data: is a symbolic link" in error
        monkeypatch.setattr("agent_kit.RUN_ID", "run-2")
        anew = LINE.fork(None, number=2, began_s=0.0, seed="anew", owner=NOBODY)
        coming = SaveId(step=30, attempt=0, run_id="run-2", line=anew)
        (tier.folder / directory_name(coming)).symlink_to(outside)
        async with World(tmp_path, ["a"], 0, replace(config(shared), start_fresh=True)) as world:
            assert (await world.plan())["step"] is None
            await world.save(30, 0, line=anew)
            problem = await world.monitors[0].event("problem", failed="shared")
            assert f"{directory_name(coming)}: is a symbolic link" in problem["detail"]
            await world.await_saves()
            for slot, step in enumerate((40, 50, 60)):
                await world.save(step, slot, line=anew)
                await world.await_saves()
            await until(lambda: [save.step for save in tier.steps()] == [60, 50, 20])
            await until(lambda: not first.is_symlink() and not list(tier.folder.glob(".trash-*")))
        assert contents_of(outside) == before

    run(test)


@pytest.mark.parametrize("where", ["mark", "parent"])
def test_a_pipe_in_place_of_a_mark_is_refused_and_not_waited_for(tmp_path: Path, where: str) -> None:
    """Any user may have made it, if the directory is open to all."""
    (tmp_path / "ns").mkdir()
    os.mkfifo(tmp_path / "holdfast.json" if where == "parent" else tmp_path / "ns" / "holdfast.json")
    for check in (lambda: check_shared(tmp_path, "ns"), SharedTier(tmp_path, "ns").prepare):
        with pytest.raises(NamespaceError, match=r"holdfast\.json: cannot be read \(.*: is not a regular file\)"):
            check()


def test_a_pipe_beside_namespaces_is_no_namespace(tmp_path: Path) -> None:
    SharedTier(tmp_path / "node", "ns").prepare()
    for pipe in ("stranger", "node/stranger"):
        (tmp_path / pipe).mkdir()
        os.mkfifo(tmp_path / pipe / "holdfast.json")
    assert [tier.namespace for tier in tiers_at(str(tmp_path))] == ["ns"]


def test_the_folder_that_was_checked_is_the_one_that_is_written(tmp_path: Path) -> None:
    """Whatever is put in its place meanwhile."""
    folder, other = tmp_path / "ns", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    with own_folder(folder) as held:
        folder.rename(tmp_path / "moved")
        folder.symlink_to("other")
        (held / "file").write_text("x")
    assert list((tmp_path / "moved").iterdir()) and not list(other.iterdir())
    with own_folder(folder) as held:  # the user's own link
        assert held.samefile(other)
    with pytest.raises(FileNotFoundError, match=f"{folder}/none/x"), own_folder(folder) as held:
        (held / "none" / "x").write_text("x")
