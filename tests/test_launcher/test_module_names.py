"""A job in which a user's module would be taken for one of Holdfast's is refused at submission."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from launcher.errors import UsageError
from launcher.job.jobfile import JobSpec
from launcher.job.module_names import check_modules

ROOT = Path(__file__).resolve().parents[2]


def job(folder: Path, script: str = "", **keys: object) -> JobSpec:
    (folder / "train.py").write_text(script)
    return JobSpec.from_mapping({"script": str(folder / "train.py"), **keys}, folder)


@pytest.mark.parametrize("script", ["import holdfast", "def main():\n    from holdfast import Checkpointer"])
@pytest.mark.parametrize("own", ["ckpt.py", "ckpt/__init__.py"])
def test_a_module_that_hides_what_the_script_uses_is_named(tmp_path: Path, script: str, own: str) -> None:
    path = tmp_path / own
    path.parent.mkdir(exist_ok=True)
    path.touch()
    with pytest.raises(UsageError, match=f"{path} hides Holdfast's package ckpt, which train.py uses; rename it"):
        check_modules(job(tmp_path, script), {})
    with pytest.raises(UsageError, match="ckpt"):
        check_modules(job(tmp_path, checkpoint={"memory": {"every_steps": 1}}), {})
    check_modules(job(tmp_path, "import ckpt"), {})


def test_folders_without_modules_and_holdfasts_own_hide_nothing(tmp_path: Path) -> None:
    for name in ("ckpt", "slurm"):
        (tmp_path / name).mkdir()
    (tmp_path / "launcher.py").touch()
    check_modules(job(tmp_path, "import holdfast"), {"PYTHONPATH": str(ROOT)})


def test_a_pythonpath_that_hides_holdfast_from_itself_is_named(tmp_path: Path) -> None:
    (tmp_path / "slurm.py").touch()
    wanted = f"{tmp_path}/slurm.py hides Holdfast's package slurm from its own programs; rename it, or take its"
    with pytest.raises(UsageError, match=wanted):
        check_modules(job(tmp_path), {"PYTHONPATH": f"/nowhere::{tmp_path}"})
    with pytest.raises(UsageError, match=wanted):
        check_modules(job(tmp_path, env={"PYTHONPATH": str(tmp_path)}), {})


def test_submission_says_it_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "ckpt.py").touch()
    (tmp_path / "train.py").write_text("from holdfast import Checkpointer")
    (tmp_path / "job.yaml").write_text("script: train.py\n")
    argv = [Path(sys.executable).with_name("holdfast"), "run", "job.yaml"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and "hides Holdfast's package ckpt" in done.stderr


def test_a_module_in_the_working_directory_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slurm.py").touch()
    monkeypatch.chdir(tmp_path)
    check_modules(job(tmp_path), {})
