"""A run that was cut short is taken up again at the next boot, and only such a run."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from provision_kit import Killed, Programs, bare, node_of

from lifecycle.provision.plan import choose
from lifecycle.provision.resume import UNIT_FILE, arm, disarm
from lifecycle.provision.step import ProvisionedNode
from lifecycle.provision.walk import walk
from slurm.command import run

_WORDS = ("node", "provision", "--mirror", "/srv/a mirror", "--skip", '50% "$x"\\')
_WANTED = "/etc/systemd/system/multi-user.target.wants/holdfast-provision.service"


def _booted(root: Path, programs: Programs | None = None) -> ProvisionedNode:
    (bare(root) / "run/systemd/system").mkdir(parents=True)
    return node_of(root, programs)


def test_a_run_that_is_killed_is_taken_up_at_the_next_boot_and_one_that_changes_nothing_is_not(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    node = _booted(tmp_path, programs)
    programs.die_at = 0
    with pytest.raises(Killed):
        walk(choose(["limits"]), node, before_change=lambda: arm(node, _WORDS, Path("/root")))
    command = [line for line in node.text(UNIT_FILE).splitlines() if line.startswith("ExecStart=")]
    assert command == [
        f'ExecStart="{sys.executable}" "-I" "-m" "launcher" "node" "provision" "--mirror" "/srv/a mirror" "--skip" '
        '"50%% \\"$$x\\"\\\\"'
    ]
    assert node.path(_WANTED).readlink() == Path(UNIT_FILE)
    programs.die_at = None
    walk(choose(["limits"]), node)
    disarm(node, _WORDS, Path("/root"), whole=False)
    assert not node.path(UNIT_FILE).exists() and not node.path(_WANTED).is_symlink()
    walk(choose(["limits"]), node, before_change=lambda: arm(node, _WORDS, Path("/root")))
    assert not node.path(UNIT_FILE).exists(), "nothing was changed, so nothing can be cut short"


def test_a_run_of_few_steps_leaves_what_a_whole_one_has_still_to_do(tmp_path: Path) -> None:
    node = _booted(tmp_path)
    arm(node, _WORDS, Path("/root"))
    before = node.text(UNIT_FILE)
    few = ("node", "provision", "--only", "limits")
    arm(node, few, Path("/root"))
    disarm(node, few, Path("/root"), whole=False)
    assert node.text(UNIT_FILE) == before and node.path(_WANTED).is_symlink()
    disarm(node, ("node", "provision"), Path("/"), whole=True)
    assert not node.path(UNIT_FILE).exists()


def test_without_systemd_no_unit_is_written(tmp_path: Path) -> None:
    node = node_of(bare(tmp_path))
    arm(node, _WORDS, Path("/root"))
    assert not node.path("/etc/systemd").exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    node = _booted(tmp_path)
    arm(node, ("node", "provision", "--mirror", "/srv/a mirror"), Path("/root"))
    said = run(("systemd-analyze", "verify", "--man=no", str(node.path(UNIT_FILE))), check=False)
    assert "holdfast-provision.service" not in said.stdout + said.stderr
