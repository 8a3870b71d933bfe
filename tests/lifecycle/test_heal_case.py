"""A case, look by look, on a cluster in memory: its deadlines, its neighbours, what happens beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lifecycle.heal import case as heal_case
from lifecycle.heal.case import Outcome
from lifecycle.heal.healer import Healer
from lifecycle.heal.history import History
from lifecycle.heal.settings import HealSettings
from tests.lifecycle.slurm_in_memory import Fuse, SlurmInMemory

_SETTINGS = HealSettings(heal="on", check=("check",), check_pairs=("pairs",))


class Site:
    """A cluster in memory, a healer, and a clock that a test sets."""

    def __init__(
        self, path: Path, settings: HealSettings, exit_code: Callable[[str], int | None] = lambda _: 0, looks: int = 0
    ) -> None:
        self.slurm = SlurmInMemory(Fuse(), exit_code, looks)
        self.history = History.read(path)
        self.now_s = 1.7e9
        self._healer = Healer(self.slurm, settings, self.history, now_s=lambda: self.now_s)

    def look(self) -> Outcome:
        (outcome,) = self._healer.look()
        return outcome

    def until(self, condition: Callable[[], object]) -> None:
        for _ in range(20):
            if condition():
                return
            self.look()
        raise AssertionError(str(self.history))

    def is_compared(self) -> bool:
        case = self.history.cases.get("n1")
        return case is not None and case.passed_s is not None and case.job is not None


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """No slurmd of these nodes answers here."""
    monkeypatch.setattr(heal_case, "listens", lambda address, port: False)


@pytest.mark.usefixtures("deaf")
@pytest.mark.parametrize(
    ("settings", "runs_on", "looks", "said"),
    [
        (replace(_SETTINGS, start_timeout_s=60.0), "", 99, "not back 60 s after reboot"),
        (replace(_SETTINGS, check_timeout_s=60.0), "check", 0, "its check did not end"),
    ],
)
def test_a_node_that_is_late_stays_out(
    tmp_path: Path, settings: HealSettings, runs_on: str, looks: int, said: str
) -> None:
    site = Site(tmp_path / "h", settings, lambda script: None if runs_on and runs_on in script else 0, looks)
    for _ in range(4):
        outcome = site.look()
    assert outcome.what in ("waits", "checking")
    site.now_s += 59
    assert site.look().what == outcome.what
    site.now_s += 2
    assert site.look().what == "failed"
    assert said in site.slurm.nodes()[0].reason and "DRAIN" in site.slurm.nodes()[0].flags


@pytest.mark.usefixtures("deaf")
def test_a_check_between_nodes_that_is_late_speaks_against_nobody(tmp_path: Path) -> None:
    settings = replace(_SETTINGS, pairs_timeout_s=60.0)
    site = Site(tmp_path / "h", settings, lambda script: None if "pairs" in script else 0)
    site.until(site.is_compared)
    site.now_s += 59
    assert site.look().what == "checking"
    site.now_s += 2
    outcome = site.look()
    assert (outcome.what, outcome.why) == ("returned", "gpu lost (between nodes nothing was measured in time)")


@pytest.mark.usefixtures("deaf")
def test_what_the_nodes_own_hook_finds_meanwhile_counts(tmp_path: Path) -> None:
    site = Site(tmp_path / "h", _SETTINGS, lambda script: None if "pairs" in script else 0)
    site.until(site.is_compared)
    site.slurm.drain("n1", "holdfast: gpu lost again")
    assert site.look() == Outcome(node="n1", what="failed", why="gpu lost again")


@pytest.mark.usefixtures("deaf")
def test_a_check_that_slurm_has_forgotten_is_run_again(tmp_path: Path) -> None:
    site = Site(tmp_path / "h", replace(_SETTINGS, check_pairs=()), lambda _: None)
    site.until(lambda: site.history.cases and site.history.cases["n1"].job)
    site.slurm.exit_code = lambda _: 0
    site.slurm.forget_jobs()
    assert [site.look().what for _ in range(2)] == ["checking", "returned"]


@pytest.mark.usefixtures("deaf")
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ["n2", "n3"]),
        ({"state": "MIXED"}, ["n3", "n4"]),
        ({"flags": frozenset({"DRAIN"}), "reason": "disk swap [root@x]"}, ["n3", "n4"]),
        ({"cpus": 4}, ["n3", "n4"]),
        ({"partitions": ("login",)}, ["n3", "n4"]),
    ],
)
def test_neighbours_are_idle_nodes_of_the_same_kind(
    tmp_path: Path, change: dict[str, object], expected: list[str]
) -> None:
    site = Site(tmp_path / "h", _SETTINGS, lambda script: None if "pairs" in script else 0)
    site.slurm.change("n2", **change)
    site.until(site.is_compared)
    job = site.slurm.job(int(site.history.cases["n1"].job or 0))
    assert job is not None and job.nodes == ("n1", *expected)


@pytest.mark.usefixtures("deaf")
def test_without_an_idle_neighbour_it_waits_for_one(tmp_path: Path) -> None:
    site = Site(tmp_path / "h", _SETTINGS)
    for name in ("n2", "n3", "n4"):
        site.slurm.change(name, state="ALLOCATED")
    site.until(lambda: site.history.cases and site.history.cases["n1"].passed_s)
    assert site.look().why == "between nodes as soon as a neighbour is idle"
    site.slurm.change("n4", state="IDLE")
    assert site.look().why.endswith("with n4")
    assert site.look().what == "returned"
