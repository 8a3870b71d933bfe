"""The scripts that slurm.conf names, and what runs of them for every job."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hooks_kit import (
    ROOT,
)

from slurm.hooks import hook
from slurm.hooks.entry import HOOKS, scripts


def test_the_scripts_are_the_same_before_slurm_is_installed_and_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm.hooks.entry._SYSTEM_PATH", ("/usr/sbin", str(tmp_path)))
    monkeypatch.setenv("PATH", str(tmp_path))
    before = scripts()
    (tmp_path / "scontrol").touch(mode=0o755)
    assert scripts() == before


def test_the_scripts_are_one_command_into_python() -> None:
    texts = scripts(python=Path("/opt/holdfast/bin/python"), slurm_conf=Path("/etc/s l.conf"))
    assert list(texts) == [f"{name}.sh" for name in HOOKS.values()]
    text = texts["prolog.sh"]
    assert "export SLURM_CONF='/etc/s l.conf'" in text
    start, place, name, *otherwise = shlex.split(text.partition("\n/opt/holdfast/bin/python -ISc ")[2], comments=True)
    assert "from slurm.hooks.__main__ import main" in start and name == "prolog"
    assert Path(place, "slurm/hooks/__main__.py").exists() and otherwise[-2:] == ["exit", "0"]


@pytest.mark.parametrize("name", ["prolog", "epilog"])
@pytest.mark.parametrize(
    ("what", "said"), [("python", "No such file or directory"), ("package", "ModuleNotFoundError")]
)
def test_an_installation_that_is_gone_drains_no_node(name: str, what: str, said: str, tmp_path: Path) -> None:
    script = scripts(python=tmp_path / "python" if what == "python" else None, root=str(tmp_path))[f"{name}.sh"]
    if what == "package":
        script = script.replace(f"' {ROOT} {name}", f"' {tmp_path} {name}")
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, said in done.stderr) == (0, True), done.stderr


def _half_written(python: Path) -> None:
    """Python's first pages: it starts, and a signal ends it."""
    python.write_bytes(Path(sys.executable).read_bytes()[: 1 << 16])
    python.chmod(0o755)


def _without_library(python: Path) -> None:
    """Python ends with 1 where its standard library is missing."""
    python.write_text("#!/bin/sh\necho init_import_site: Failed to import the site module >&2\nexit 1\n")
    python.chmod(0o755)


@pytest.mark.parametrize("half", [_half_written, _without_library])
def test_an_installation_that_is_half_there_drains_no_node(half: Callable[[Path], None], tmp_path: Path) -> None:
    half(tmp_path / "python")
    assert subprocess.run([tmp_path / "python", "-ISc", ""], check=False).returncode != 0
    script = scripts(python=tmp_path / "python", root=str(tmp_path))["prolog.sh"]
    assert subprocess.run(["bash", "-c", script], check=False).returncode == 0


@pytest.mark.parametrize(("code", "ends_with"), [("FIT", 0), ("UNFIT", 1)])
def test_the_script_fails_where_the_hook_says_unfit(code: str, ends_with: int, tmp_path: Path) -> None:
    hooks = tmp_path / "slurm/hooks"
    hooks.mkdir(parents=True)
    (hooks / "__main__.py").write_text(f"def main(arguments):\n    return {getattr(hook, code)}\n")
    script = scripts()["prolog.sh"].replace(f"' {ROOT} prolog", f"' {tmp_path} prolog")
    assert subprocess.run(["bash", "-c", script], check=False).returncode == ends_with
