"""The scripts that slurm.conf names, and what runs of them for every job."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from hooks_kit import (
    ROOT,
)

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
    start, place, name, *otherwise = shlex.split(
        text.partition("exec /opt/holdfast/bin/python -ISc ")[2], comments=True
    )
    assert "from slurm.hooks.__main__ import main" in start and name == "prolog"
    assert Path(place, "slurm/hooks/__main__.py").exists() and otherwise == ["exit", "0"]


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
