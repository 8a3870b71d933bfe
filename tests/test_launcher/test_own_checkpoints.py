"""The newest of a script's own checkpoints."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from launcher.supervisor.own_checkpoints import Newest, OwnCheckpoints


def test_a_relative_pattern_counts_from_the_directory_in_which_the_script_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run [1]"
    (folder / "out").mkdir(parents=True)
    (folder / "out" / "1.pt").touch()
    monkeypatch.chdir(folder)
    found = asyncio.run(OwnCheckpoints("out/*.pt").look())
    assert found is not None and found.file == str(folder / "out" / "1.pt")


def test_the_newest_file_is_found_once_for_each_change(tmp_path: Path) -> None:
    found = OwnCheckpoints(f"{tmp_path}/out/**/ckpt-*.pt")

    def look() -> Newest | None:
        return asyncio.run(found.look())

    def write(name: str, modified_s: float) -> str:
        path = tmp_path / "out" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (modified_s, modified_s))
        return str(path)

    assert [look(), look()] == [Newest(file="", modified_s=0.0), None]
    write("log.txt", 900.0)
    (tmp_path / "out" / "ckpt-0.pt").symlink_to("nowhere")
    second = write("a/ckpt-2.pt", 200.0)
    write("ckpt-1.pt", 100.0)
    assert [look(), look()] == [Newest(file=second, modified_s=200.0), None]
    assert look() is None
    write("a/ckpt-2.pt", 300.0)
    assert look() == Newest(file=second, modified_s=300.0)
