"""Drains of ours: how many there may be, and who looks again."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hooks_kit import (
    TenNodes,
    silent,
    verdict,
)

from slurm.client import Slurm
from slurm.command import CommandRunner, Result
from slurm.hooks.drains import drain_node, settle_drain
from slurm.hooks.health import health
from slurm.hooks.hook import Hook
from slurm.hooks.log import log
from slurm.hooks.places import Places
from slurm.hooks.settings import HookSettings


@pytest.mark.parametrize(("meanwhile", "left"), [((), {"n1"}), (("n3",), {"n3"})])
def test_nodes_that_drain_at_the_same_moment_take_it_back(
    tmp_path: Path, meanwhile: tuple[str, ...], left: set[str]
) -> None:
    nodes = TenNodes(meanwhile=meanwhile)
    draining = tmp_path / "lib/draining"
    assert (drain_node(Slurm(run=nodes), "n1", "x", "1", str(draining)) == "") == (not meanwhile)
    assert nodes.drained == left and not draining.exists()


class Killed(BaseException):
    """The hook's process ends here."""


class KilledAtSecondLook(TenNodes):
    """A cluster at which a hook that has drained its node never looks again."""

    def __call__(self, argv: Sequence[str], **more: object) -> Result:
        if argv[1] == "show" and "n1" in self.drained:
            raise Killed
        return super().__call__(argv, **more)


@pytest.mark.parametrize(
    ("why", "status", "meanwhile", "left"),
    [
        ("gpu_count: 7, expected 8", "critical", [], {"n1"}),
        ("gpu_count: 7, expected 8", "critical", ["n3"], {"n3"}),  # too many
        ("gpu_count: 7, expected 8", "ok", [], set()),  # a later check found nothing
        ("processes of job 7 hang in the kernel", "ok", [], {"n1"}),  # checks do not look for them
    ],
)
def test_a_drain_whose_hook_was_killed_is_looked_at_again_by_the_health_hook(
    places: Places, monkeypatch: pytest.MonkeyPatch, why: str, status: str, meanwhile: list[str], left: set[str]
) -> None:
    killed = KilledAtSecondLook(meanwhile=meanwhile)
    with pytest.raises(Killed):
        drain_node(Slurm(run=killed), "n1", why, "10%", places.draining)
    verdict(places, status)
    nodes = TenNodes(*killed.drained, reason=f"holdfast: {why}")
    for _ in range(2):
        check_health(places, nodes, monkeypatch)
        assert nodes.drained == left and not Path(places.draining).exists()


def check_health(
    places: Places, nodes: CommandRunner, monkeypatch: pytest.MonkeyPatch, python: Path = Path("/bin/true")
) -> None:
    """The health hook of n1. By default its checks leave the verdict as it is."""
    monkeypatch.setattr("sys.executable", str(python))
    end_s = time.monotonic() + 60
    hook = Hook(places=places, settings=HookSettings(drain="on"), env={"SLURMD_NODENAME": "n1"}, deadline_s=end_s)
    health(hook, Slurm(run=nodes))


@pytest.mark.parametrize(("nodes", "level"), [(TenNodes(), "quick"), (silent, "prolog")])
def test_a_node_is_checked_also_if_slurm_does_not_answer(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: CommandRunner, level: str
) -> None:
    told = tmp_path / "told"
    (tmp_path / "python").write_text(f"#!/bin/sh\necho $* >{told}\n")
    (tmp_path / "python").chmod(0o755)
    check_health(places, nodes, monkeypatch, python=tmp_path / "python")
    assert f"node check --level {level} " in told.read_text()


def test_a_fit_node_asks_slurm_for_its_own_record_alone(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask(argv: Sequence[str], **_: object) -> Result:
        asked.append(list(argv))
        return TenNodes()(argv)

    verdict(places, "ok")
    check_health(places, ask, monkeypatch)
    assert asked == [["scontrol", "show", "node", "--oneliner", "n1"]]


def test_the_checks_of_the_health_hook_write_metrics_and_what_goes_wrong_with_them_is_logged(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(places.checks_file).parent.mkdir(parents=True, exist_ok=True)
    Path(places.checks_file).write_text(f"textfile: {tmp_path / 'metrics'}\n")
    log.open(places.log, "health")
    for _ in range(2):
        check_health(places, silent, monkeypatch, python=Path(sys.executable))
        assert "expected the directory of node_exporter" in Path(places.log).read_text()
        (tmp_path / "metrics").mkdir(exist_ok=True)
    assert "holdfast_node_status{" in (tmp_path / "metrics/holdfast-node.prom").read_text()


class Rebooting(TenNodes):
    """A cluster whose drained nodes are being rebooted."""

    def __call__(self, argv: Sequence[str], **more: object) -> Result:
        assert "State=DRAIN" not in argv
        done = super().__call__(argv, **more)
        return dataclasses.replace(done, stdout=done.stdout.replace("+DRAIN", "+DRAIN+REBOOT_ISSUED"))


def test_a_node_that_is_drained_and_rebooted_keeps_its_reason(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict(places, "critical")
    check_health(places, Rebooting("n1", reason="repair by alice"), monkeypatch)


class Maintained(TenNodes):
    """A cluster whose nodes are reserved for maintenance."""

    def __call__(self, argv: Sequence[str], **more: object) -> Result:
        done = super().__call__(argv, **more)
        return dataclasses.replace(done, stdout=done.stdout.replace("State=IDLE", "State=ALLOCATED+MAINTENANCE"))


@pytest.mark.parametrize(
    ("nodes", "found_s", "left"),
    [
        (Maintained(), 1.0, set()),  # the check that healing runs there decides
        (Maintained(), 9e9, {"n1"}),  # found by this hook's own look
        (TenNodes(), 1.0, {"n1"}),
    ],
)
def test_what_an_earlier_check_found_drains_no_node_that_is_being_checked_anew(
    places: Places, monkeypatch: pytest.MonkeyPatch, nodes: TenNodes, found_s: float, left: set[str]
) -> None:
    check = {"name": "allreduce", "status": "critical", "measured": "1", "expected": "9", "time_s": found_s}
    verdict(places, "critical", checks=[check])
    check_health(places, nodes, monkeypatch)
    assert nodes.drained == left


def test_a_disk_that_takes_no_file_keeps_no_node_from_being_drained(tmp_path: Path) -> None:
    nodes = TenNodes()
    (tmp_path / "file").touch()
    assert drain_node(Slurm(run=nodes), "n1", "x", "1", str(tmp_path / "file/draining")) == ""
    assert nodes.drained == {"n1"}


@pytest.mark.parametrize("given", ["holdfast: lemon: x", "repair", "holdfast: y"])
def test_no_other_drain_is_taken_back_for_it(tmp_path: Path, given: str) -> None:
    nodes = TenNodes("n1", "n2", reason=given)
    draining = tmp_path / "draining"
    draining.write_text("holdfast: x")
    for _ in range(2):
        assert settle_drain(Slurm(run=nodes), "n1", "1", str(draining), lambda _: False) == ""
        assert nodes.drained == {"n1", "n2"} and not draining.exists()


def test_nobody_looks_in_the_place_of_a_hook_that_lives(tmp_path: Path) -> None:
    draining = tmp_path / "draining"

    class Meanwhile(TenNodes):
        settled = ""

        def __call__(self, argv: Sequence[str], **more: object) -> Result:
            done = super().__call__(argv, **more)
            if "State=DRAIN" in argv:
                Meanwhile.settled += settle_drain(Slurm(run=self), "n1", "1", str(draining), lambda _: False)
                assert draining.exists() and "n1" in self.drained
            return done

    assert drain_node(Slurm(run=Meanwhile()), "n1", "x", "1", str(draining)) == "" == Meanwhile.settled
