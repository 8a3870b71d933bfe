"""The scripts that slurm.conf names, and what runs of them for every job."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest
from hooks_kit import (
    ROOT,
    as_root,
    environment,
    memory_of,
    verdict,
)

from slurm.hooks.entry import HOOKS, scripts
from slurm.hooks.hook import HookJob
from slurm.hooks.places import Places


@as_root
class TestQuickPath:
    """Most jobs find a node that is fit and leave nothing behind: what their hooks import is time that they lose."""

    PYTHON = frozenset(("__future__", "_stat", "fcntl", "gc", "select", "stat"))
    OURS = frozenset(("__main__", "directories", "hook", "ledger", "log", "places", "prolog", "verdict"))
    ALLOWED: ClassVar[dict[str, frozenset[str]]] = {
        "prolog": OURS,
        "epilog": OURS | {"departures", "epilog", "incidents", "strays"},
    }

    def test_nothing_is_imported_that_only_other_jobs_need(self, tmp_path: Path, job: HookJob) -> None:
        places = Places(tmp_path)  # its memory is the machine's: the scripts know no other
        job.cluster = f"test-{os.getpid()}"
        verdict(places, "ok")
        imported: dict[str, set[str]] = {}
        for _ in range(2):  # the first one reads the verdict
            for name in self.ALLOWED:
                imported[name] = self.imported(name, places, job)
        assert "ready" in Path(places.log).read_text()
        for name, ours in self.ALLOWED.items():
            allowed = self.PYTHON | {"slurm", "slurm.errors", "slurm.hooks"} | {f"slurm.hooks.{own}" for own in ours}
            assert imported[name] <= allowed, name
        with suppress(OSError):
            memory_of(Places(), job).parent.rmdir()

    def imported(self, name: str, places: Places, job: HookJob) -> set[str]:
        """What the script's interpreter and its children import beyond what Python itself starts with."""
        script = scripts(root=places.root)[f"{name}.sh"].replace(" -ISc ", " -X importtime -ISc ")
        started = self.names([sys.executable, "-X", "importtime", "-ISc", ""], job)
        return self.names(["bash", "-c", script], job) - started

    @staticmethod
    def names(argv: list[str], job: HookJob) -> set[str]:
        """What a program that is run with -X importtime says it imports."""
        told = subprocess.run(argv, env=environment(job), stderr=subprocess.PIPE, text=True, check=True).stderr
        return {line.rpartition("|")[2].strip() for line in told.splitlines() if line.startswith("import time:")}


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
