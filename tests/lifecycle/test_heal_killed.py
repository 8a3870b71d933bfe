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
from lifecycle.heal.healer import Healer
from lifecycle.heal.history import History
from lifecycle.heal.settings import HealSettings
from slurm.command import Result
from tests.lifecycle.slurm_in_memory import Fuse, Killed, SlurmInMemory

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
    exit_code: Callable[[str, int], int] = lambda script, before: 0
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
    "given up": Way(
        settings=_ALONE,
        told=["reboot", "failed", "lemon"],
        orders=["reboot"],
        exit_code=lambda script, before: 1,
        jobs=None,
    ),
    "slow with its neighbours": Way(
        settings=replace(_ALONE, check_pairs=("pairs",)),
        told=["reboot", "failed", "lemon"],
        orders=["reboot"],
        exit_code=lambda script, before: 9 if "pairs" in script else 0,
        jobs=None,
    ),
    "by hand": Way(settings=_ALONE, told=["return", "repaired"], orders=[], by_hand=True),
}


class Site:
    """A cluster in memory, and healers that know what is in the file."""

    def __init__(self, way: Way, path: Path, fuse: Fuse, patch: pytest.MonkeyPatch) -> None:
        self.way = way
        self.path = path
        self.fuse = fuse
        self.slurm = SlurmInMemory(fuse, way.exit_code)
        publish = history.publish.__wrapped__ if hasattr(history.publish, "__wrapped__") else history.publish

        def mortal(*arguments: Any) -> None:
            fuse.around(lambda: publish(*arguments))

        mortal.__wrapped__ = publish  # type: ignore[attr-defined]
        patch.setattr(history, "publish", mortal)
        patch.setattr(heal_case, "listens", lambda address, port: False)

    def heal(self) -> None:
        """One healer, to the end of the case or of itself."""
        healer = Healer(self.slurm, self.way.settings, History.read(self.path), run=self._replaces)
        if self.way.by_hand:
            healer.bring_back("n1", lambda: None)
            return
        for _ in range(_LOOKS):
            if not healer.look() and not self.slurm.reservations():
                return
        raise AssertionError(f"still at it after {_LOOKS} looks: {History.read(self.path)}")

    def _replaces(self, argv: Any, **_: Any) -> Result:
        self.slurm.replace(argv[1])
        return Result(argv=tuple(argv), returncode=0, stdout="", stderr="", seconds=0.0)

    def told(self) -> list[str]:
        return [event.what for event in History.read(self.path).of("n1")]


@pytest.mark.parametrize("way", _WAYS.values(), ids=list(_WAYS))
def test_a_healer_killed_at_any_point_is_followed_by_one_that_goes_on(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Site(way, tmp_path / "whole.json", Fuse(), monkeypatch)
    whole.heal()
    assert (whole.told(), whole.slurm.orders) == (way.told, way.orders)
    assert whole.fuse.changes > 5

    for point in range(whole.fuse.changes):
        for after in (False, True):
            where = f"killed {'after' if after else 'before'} change {point} of {whole.fuse.changes}"
            site = Site(way, tmp_path / f"{point}-{after}.json", Fuse(dies_at=point, after=after), monkeypatch)
            with pytest.raises(Killed):
                site.heal()
            with contextlib.suppress(LifecycleError) if way.by_hand else contextlib.nullcontext():
                site.heal()  # by hand: perhaps there is nothing left to return
            assert [what for what, _ in itertools.groupby(site.told())] == way.told, where
            assert set(site.slurm.orders) == set(way.orders), where
            assert site.slurm.reservations() == (), where
            out = bool(site.slurm.nodes()[0].flags)
            assert out == (way.jobs is None), where
            allowed = [] if way.jobs is None else [one for one in site.slurm.exposed if _jobs(one) >= way.jobs]
            assert site.slurm.exposed == allowed, where


def _jobs(exposed: str) -> int:
    return int(exposed.split()[1])
