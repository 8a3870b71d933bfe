"""Folders and packages of others that have the names of Holdfast's packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def imported(folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    """`from holdfast import NAME` in a program of this folder."""
    (folder / "program.py").write_text(f"import sys\nsys.path.append({str(ROOT)!r})\nfrom holdfast import {name}\n")
    argv = [sys.executable, "program.py"]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(("package", "name"), [("ckpt", "CheckpointError"), ("launcher", "LauncherError")])
def test_another_package_of_the_same_name_is_named(tmp_path: Path, package: str, name: str) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    done = imported(tmp_path, name)
    assert done.returncode == 1
    wanted = f"ImportError: {tmp_path / package} hides Holdfast's package {package}: rename it if it is yours; "
    assert done.stderr.splitlines()[-1].startswith(wanted)


def test_a_folder_of_checkpoints_called_ckpt_hides_nothing(tmp_path: Path) -> None:
    """An editable install has to put the project on sys.path: its import hook would come after the folder."""
    (tmp_path / "ckpt").mkdir()
    assert imported(tmp_path, "CheckpointError").returncode == 0
    assert 'mode = "compat"' in (ROOT / "pyproject.toml").read_text()
