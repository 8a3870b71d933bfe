"""A healer that is killed at any point is followed by one that goes on: each point, each way a case can go."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lifecycle.errors import LifecycleError
from lifecycle.heal import case as heal_case
from lifecycle.heal import history
from lifecycle.heal.case import HealOutcome
from lifecycle.heal.healer import Healer
from lifecycle.heal.history import HealHistory
from lifecycle.heal.settings import HealSettings
from slurm.command import Result
from slurm.records import Node
from tests.test_lifecycle.slurm_in_memory import Fuse, Killed, SlurmInMemory

_LOOKS = 40
_ALONE = HealSettings(heal="on", check=("check",), check_pairs=())


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way that a case goes when nobody dies.

    Attributes:
        settings: what healing may do.
        exit_code: of each job.
        told: the events of the node.
        orders: what is asked of Slurm or the admin's command.
        by_hand: whether an admin returns it.
        jobs: how many checks it takes at least until users' jobs may come; None: they never may.
    """

    settings: HealSettings
    told: list[str]
    orders: list[str]
    exit_code: Callable[[str], int | None] = lambda script: 0
    by_hand: bool = False
    jobs: int | None = 1


_WAYS = {
    "rebooted": Way(settings=_ALONE, told=["reboot", "returned"], orders=["reboot"]),
    "between nodes": Way(
        settings=replace(_ALONE, check_pairs=("pairs",)), told=["reboot", "returned"], orders=["reboot"], jobs=2
    ),
    "replaced": Way(
        settings=replace(_ALONE, reboots=0, replace="command", command=("rma", "{node}")),
        told=["replace", "returned"],
        orders=["replace"],
    ),
    "replaced by hyperpod": Way(
        settings=replace(_ALONE, reboots=0, replace="hyperpod"), told=["replace", "returned"], orders=["fail"]
    ),
    "rebooted by hyperpod": Way(
        settings=replace(_ALONE, reboot="hyperpod"), told=["reboot", "returned"], orders=["fail"]
    ),
    "given up": Way(
        settings=_ALONE,
        told=["reboot", "failed", "lemon"],
        orders=["reboot"],
        exit_code=lambda script: 1,
        jobs=None,
    ),
    "slow with its neighbours": Way(
        settings=replace(_ALONE, check_pairs=("pairs",)),
        told=["reboot", "failed", "lemon"],
        orders=["reboot"],
        exit_code=lambda script: 9 if "pairs" in script else 0,
        jobs=None,
    ),
    "without an answer between nodes": Way(
        settings=replace(_ALONE, check_pairs=("pairs",), pairs_timeout_s=6.0),
        told=["reboot", "returned"],
        orders=["reboot"],
        exit_code=lambda script: 1 if "pairs" in script else 0,  # a node without torch, say: nobody is blamed
    ),
    "replaced in its group": Way(
        settings=replace(_ALONE, reboots=0, replace="ec2"), told=["replace", "returned"], orders=["replace"]
    ),
    "by hand": Way(settings=_ALONE, told=["return", "repaired"], orders=[], by_hand=True),
}


class Site:
    """A cluster in memory, and healers that know what is in the file."""

    def __init__(self, way: Way, path: Path, fuse: Fuse, looks: int, patch: pytest.MonkeyPatch) -> None:
        self.way = way
        self.path = path
        self.fuse = fuse
        self.slurm = SlurmInMemory(fuse, way.exit_code, looks)
        publish = history.publish.__wrapped__ if hasattr(history.publish, "__wrapped__") else history.publish

        def mortal(*arguments: Any) -> None:
            fuse.around(lambda: publish(*arguments))

        mortal.__wrapped__ = publish  # type: ignore[attr-defined]
        patch.setattr(history, "publish", mortal)
        patch.setattr(heal_case, "listens", lambda address, port: False)
        if way.settings.replace == "ec2":
            patch.setattr(heal_case, "replacements", lambda *_: {"ec2": self._ends})
        self._now_s = itertools.count(1.7e9)

    def heal(self) -> None:
        """One healer, to the end of the case or of itself."""
        healer = Healer(
            self.slurm, self.way.settings, HealHistory.read(self.path), run=self._replaces, now_s=self._now_s.__next__
        )
        if self.way.by_hand:
            healer.bring_back("n1", lambda _: None)
            return
        for _ in range(_LOOKS):
            if not healer.look() and not self.slurm.reservations():
                return
        raise AssertionError(f"still at it after {_LOOKS} looks: {HealHistory.read(self.path)}")

    def _replaces(self, argv: Any, **_: Any) -> Result:
        self.slurm.replace(argv[1])
        return Result(argv=tuple(argv), returncode=0, stdout="", stderr="", seconds=0.0)

    def _ends(self, node: Node, why: str) -> None:
        """As Auto Scaling: an instance that was ended cannot be ended again."""
        if self.slurm.orders:
            raise LifecycleError(f"replace {node.name}: no single running EC2 instance")
        self.slurm.replace(node.name)

    def told(self) -> list[str]:
        return [event.what for event in HealHistory.read(self.path).of("n1")]


@pytest.mark.parametrize("looks", [0, 2], ids=["starts at once", "starts later"])
@pytest.mark.parametrize("way", _WAYS.values(), ids=list(_WAYS))
def test_a_healer_killed_at_any_point_is_followed_by_one_that_goes_on(
    way: Way, looks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Site(way, tmp_path / "whole.json", Fuse(), looks, monkeypatch)
    whole.heal()
    assert (whole.told(), whole.slurm.orders) == (way.told, way.orders)
    assert whole.fuse.changes > 5

    for point in range(whole.fuse.changes):
        for after in (False, True):
            where = f"killed {'after' if after else 'before'} change {point} of {whole.fuse.changes}"
            site = Site(way, tmp_path / f"{point}-{after}.json", Fuse(dies_at=point, after=after), looks, monkeypatch)
            with pytest.raises(Killed):
                site.heal()
            with contextlib.suppress(LifecycleError) if way.by_hand else contextlib.nullcontext():
                site.heal()  # by hand: perhaps there is nothing left to return
            assert [what for what, _ in itertools.groupby(site.told())] == way.told, where
            # Asked for again only where it cannot be seen yet that it was done.
            assert site.slurm.orders == way.orders or (looks and site.slurm.orders == way.orders * 2), where
            assert site.slurm.reservations() == (), where
            out = bool(site.slurm.nodes()[0].flags)
            assert out == (way.jobs is None), where
            for jobs, starts in site.slurm.exposed:
                assert way.jobs is not None and jobs >= way.jobs and starts >= len(way.orders), where


def test_who_returns_a_node_by_hand_hears_what_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(_WAYS["by hand"], tmp_path / "heal.json", Fuse(), 2, monkeypatch)
    heard: list[HealOutcome] = []
    healer = Healer(site.slurm, site.way.settings, HealHistory.read(site.path), now_s=itertools.count(1.7e9).__next__)
    assert healer.bring_back("n1", heard.append).what == "repaired"
    assert {(outcome.node, outcome.what) for outcome in heard} == {("n1", "checking")}
