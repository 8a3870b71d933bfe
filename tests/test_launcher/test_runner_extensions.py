"""The node's directory of torch's C++ extensions."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.runner import extensions


def test_a_node_has_a_private_directory_unless_the_job_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    own = extensions.own_directory({})
    assert own is not None and own.parent == tmp_path and own != extensions.own_directory({})
    assert not own.exists()  # most jobs build nothing
    assert extensions.own_directory({"TORCH_EXTENSIONS_DIR": "/mine"}) is None
    monkeypatch.setattr("os.statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC))
    assert extensions.own_directory({}) is None


def test_what_the_user_has_built_is_there_without_its_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built, own = tmp_path / "torch_extensions" / "py311_cpu" / "fused", tmp_path / "own"
    built.mkdir(parents=True)
    extensions.prepare(own, "py311_cu128")
    assert not own.exists()
    for name in ("fused.so", "lock"):
        (built / name).write_text(name)
    extensions.prepare(own, "py311_cpu")
    assert [path.name for path in (own / "fused").iterdir()] == ["fused.so"]
    (own / "fused" / "lock").touch()
    (own / "fused" / "fused.so").write_text("newer")
    extensions.prepare(own, "py311_cpu")
    assert [path.name for path in (own / "fused").iterdir()] == ["fused.so"]
    assert (own / "fused" / "fused.so").read_text() == "newer" and (built / "lock").exists()


def test_the_folder_of_a_build_has_torchs_name_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # torch makes the folder
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    import torch
    from torch.utils import cpp_extension

    name = extensions.build_of(torch.version)
    assert Path(cpp_extension._get_build_directory("x", False)).parent.name == name
    assert extensions.build_of(SimpleNamespace(cuda="12.8", hip=None)).endswith("_cu128")
