"""A project that the ordinary user cannot reach is made visible to them, and only in a namespace of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from slurm.testbed import view

NOBODY = 65534


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    """A project in a folder that its owner alone may enter. pytest's own folders above it are of that kind too."""
    project = tmp_path / "home" / "project"
    project.mkdir(parents=True)
    (project / "code.py").write_text("print('reached')")
    (tmp_path / "home" / "diary").write_text("private")
    (tmp_path / "home").chmod(0o700)
    return project


def test_barriers_are_the_topmost_folders_that_stop_the_user(locked: Path) -> None:
    (barrier,) = view.barriers([locked], NOBODY)
    assert locked.is_relative_to(barrier) and not barrier.stat().st_mode & 0o001
    assert view.barriers([locked], os.getuid()) == ()
    assert view.barriers([Path("/usr")], NOBODY) == ()


def test_a_program_runs_as_it_is_where_nothing_is_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "needed_paths", lambda: (Path("/usr"),))
    assert view.in_view(["true"], NOBODY) == ("true",)


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace needs root")
def test_the_user_reaches_the_project_and_nothing_else(locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "needed_paths", lambda: (locked,))
    before = list(Path("/mnt").iterdir())
    become = ["setpriv", f"--reuid={NOBODY}", "--clear-groups"]
    reached = subprocess.run(
        view.in_view([*become, "cat", str(locked / "code.py")], NOBODY), check=False, capture_output=True
    )
    diary = subprocess.run(
        view.in_view([*become, "cat", str(locked.parent / "diary")], NOBODY), check=False, capture_output=True
    )
    directly = subprocess.run([*become, "cat", str(locked / "code.py")], check=False, capture_output=True)
    assert reached.stdout == b"print('reached')"
    assert (diary.returncode, directly.returncode) == (1, 1)
    assert locked.parent.stat().st_mode & 0o777 == 0o700 and list(Path("/mnt").iterdir()) == before
