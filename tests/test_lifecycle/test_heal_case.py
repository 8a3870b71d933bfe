"""A case, look by look, on a cluster in memory: its deadlines, its neighbours, what happens beside it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import main
from lifecycle.errors import LifecycleError
from lifecycle.heal import case as heal_case
from lifecycle.heal import command as heal_command
from lifecycle.heal import comparison
from lifecycle.heal.case import HealOutcome
from lifecycle.heal.healer import Healer
from lifecycle.heal.history import HealHistory
from lifecycle.heal.settings import HealSettings
from slurm.errors import SlurmError
from slurm.records import Partition
from slurm.topology import Topology
from tests.test_lifecycle.slurm_in_memory import Fuse, SlurmInMemory

_SETTINGS = HealSettings(heal="on", check=("check",), check_pairs=("pairs",))


class Site:
    """A cluster in memory, a healer, and a clock that a test sets."""

    def __init__(
        self, path: Path, settings: HealSettings, exit_code: Callable[[str], int | None] = lambda _: 0, looks: int = 0
    ) -> None:
        self.slurm = SlurmInMemory(Fuse(), exit_code, looks)
        self.history = HealHistory.read(path)
        self.now_s = 1.7e9
        self.healer = Healer(self.slurm, settings, self.history, now_s=lambda: self.now_s)

    def look(self) -> HealOutcome:
        (outcome,) = self.healer.look()
        return outcome

    def until(self, condition: Callable[[], object]) -> None:
        for _ in range(20):
            if condition():
                return
            self.look()
        raise AssertionError(str(self.history))

    def runs(self, check: str) -> bool:
        return self.is_compared() == (check == "pairs")

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
    assert site.slurm.reservations() == ()  # and the check's job does not hold it


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
def test_a_reboot_waits_for_the_jobs_of_its_node_however_long_they_take(tmp_path: Path) -> None:
    site = Site(tmp_path / "h", replace(_SETTINGS, start_timeout_s=60.0), looks=99)
    site.look()
    for _ in range(3):
        site.slurm.change("n1", flags=frozenset({"DRAIN", "REBOOT_REQUESTED"}))
        assert site.look().why == "jobs on it end first"
        site.now_s += 59
    site.slurm.change("n1", flags=frozenset({"DRAIN", "REBOOT_ISSUED"}))
    assert site.look().what == "waits"
    site.now_s += 2
    assert site.look().what == "failed"


@pytest.mark.usefixtures("deaf")
@pytest.mark.parametrize("flag", ["NOT_RESPONDING", "REBOOT_ISSUED"])
def test_a_node_that_has_not_wholly_started_is_not_checked_yet(tmp_path: Path, flag: str) -> None:
    site = Site(tmp_path / "h", _SETTINGS, looks=99)
    site.look()
    site.slurm.change("n1", slurmd_started="1", flags=frozenset({flag}), reason="")
    assert site.look().what == "waits"
    site.slurm.change("n1", flags=frozenset())
    assert site.look().what == "checking"


@pytest.mark.usefixtures("deaf")
@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (_SETTINGS, "failed"),  # Slurm had resumed it: its own health check has drained it again
        (replace(_SETTINGS, reboot="hyperpod"), "checking"),  # nobody resumes it
        (replace(_SETTINGS, reboots=0, replace="hyperpod"), "checking"),
    ],
)
def test_a_node_that_comes_back_drained_failed_only_where_slurm_resumes_it(
    tmp_path: Path, settings: HealSettings, what: str
) -> None:
    site = Site(tmp_path / "h", settings, looks=99)
    site.look()
    drained = "holdfast: gpu lost again [root@2026-11-20T23:19:59]"
    site.slurm.change("n1", slurmd_started="1", flags=frozenset({"DRAIN"}), reason=drained)
    assert site.look().what == what


_BY_HYPERPOD: dict[str, dict[str, Any]] = {
    "Reboot": {"reboot": "hyperpod"},
    "Replace": {"reboots": 0, "replace": "hyperpod"},
}


@pytest.mark.parametrize("action", ["Reboot", "Replace"])
def test_hyperpod_is_told_what_to_do(tmp_path: Path, action: str) -> None:
    site = Site(tmp_path / "h", replace(_SETTINGS, **_BY_HYPERPOD[action]), looks=99)
    site.look()
    assert site.slurm.nodes()[0].reason.startswith(f"Action:{action} [")


@pytest.mark.parametrize(
    ("settings", "order"),
    [({}, "Replace"), ({}, "Reboot"), (_BY_HYPERPOD["Reboot"], "Replace"), (_BY_HYPERPOD["Replace"], "Reboot")],
)
def test_a_node_on_which_hyperpod_acts_by_itself_is_left_to_it(
    tmp_path: Path, settings: dict[str, Any], order: str
) -> None:
    """Its health agent marks a node that is being healed in another way."""
    site = Site(tmp_path / "h", replace(_SETTINGS, **settings), looks=99)
    site.look()
    asked = list(site.slurm.orders)
    site.slurm.change("n1", flags=frozenset({"FAIL"}), reason=f"Action:{order} [root@2026-11-20T23:19:59]")
    assert (site.look().what, site.history.cases) == ("left", {})
    assert site.healer.look() == [] and site.slurm.orders == asked
    assert site.slurm.nodes()[0].reason.startswith(f"Action:{order}"), "nobody resumes it"
    assert site.slurm.reservations() == ()


@pytest.mark.parametrize("order", ["Reboot", "Replace"])
def test_a_node_that_hyperpod_has_marked_is_never_healed(tmp_path: Path, order: str) -> None:
    site = Site(tmp_path / "h", _SETTINGS)
    site.slurm.change("n1", flags=frozenset({"FAIL"}), reason=f"Action:{order} [root@2026-11-20T23:19:59]")
    assert site.healer.look() == [] and site.slurm.orders == []


def test_a_lost_reboot_is_ordered_again_after_as_long_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = True
    monkeypatch.setattr(heal_case, "listens", lambda address, port: answers)
    site = Site(tmp_path / "h", replace(_SETTINGS, reboot_again_s=60.0), looks=99)
    orders = lambda: len(site.slurm.orders)  # noqa: E731
    for expected in (1, 2, 3):
        site.look()
        site.look()
        assert orders() == expected
        site.now_s += 59
        site.look()
        assert orders() == expected
        site.now_s += 2
    answers = False  # it is on its way down at last
    site.look()
    answers = True
    site.now_s += 59
    site.look()
    assert orders() == 3


@pytest.mark.usefixtures("deaf")
def test_a_check_that_a_dead_healer_left_ends_before_the_next(tmp_path: Path) -> None:
    site = Site(tmp_path / "h", _SETTINGS, lambda _: None)
    site.until(lambda: site.history.cases and site.history.cases["n1"].job)
    site.history.keep("n1", replace(site.history.cases["n1"], job=None))  # it died before it noted the job
    assert site.look().what == "checking"
    states = [job.state for number in (1, 2) if (job := site.slurm.job(number))]
    assert states == ["CANCELLED", "RUNNING"]
    assert {"--exclusive", "--no-requeue"} <= set(site.slurm.told[-1])


@pytest.mark.usefixtures("deaf")
def test_a_node_that_is_down_when_its_check_is_to_run_again_is_resumed_first(tmp_path: Path) -> None:
    site = Site(tmp_path / "h", replace(_SETTINGS, check_pairs=()), lambda _: None)
    site.until(lambda: site.history.cases and site.history.cases["n1"].job)
    site.slurm.forget_jobs()
    site.slurm.change("n1", state="DOWN")
    assert site.look().what == "checking"


@pytest.mark.usefixtures("deaf")
def test_a_check_runs_in_the_clusters_default_partition_where_that_has_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = ("n1", "n2", "n3", "n4")
    known = tuple(Partition(name=name, state="UP", is_default=name == "train", nodes=nodes) for name in ("a", "train"))
    site = Site(tmp_path / "h", _SETTINGS, lambda _: None)
    monkeypatch.setattr(site.slurm, "partitions", lambda: known)
    site.until(lambda: site.history.cases and site.history.cases["n1"].job)


@pytest.mark.usefixtures("deaf")
def test_what_slurm_refuses_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path / "h", _SETTINGS, lambda _: None)
    site.until(lambda: site.history.cases and site.history.cases["n1"].job)
    with monkeypatch.context() as patch:
        patch.setattr(site.slurm, "job", lambda _: (_ for _ in ()).throw(SlurmError("Socket timed out")))
        assert site.look() == HealOutcome(node="n1", what="waits", why="tried again at the next look: Socket timed out")
    assert site.look().what == "checking"


@pytest.mark.usefixtures("deaf")
def test_where_healing_was_switched_off_nothing_goes_on(tmp_path: Path) -> None:
    on = Site(tmp_path / "h", _SETTINGS, lambda _: None)
    on.until(lambda: on.history.cases and on.history.cases["n1"].job)
    off = Healer(on.slurm, replace(_SETTINGS, heal="off"), HealHistory.read(tmp_path / "h"), now_s=lambda: on.now_s)
    on.slurm.reserve("holdfast-heal-n9", ["n4"])
    before, changes = (tmp_path / "h").read_bytes(), on.slurm.fuse.changes
    (outcome,) = off.look()
    assert outcome.what == "waits" and "`heal: on` goes on with it" in outcome.why
    assert ((tmp_path / "h").read_bytes(), on.slurm.fuse.changes) == (before, changes)


@pytest.mark.usefixtures("deaf")
def test_where_healing_is_off_no_node_is_given_up(tmp_path: Path) -> None:
    on = Site(tmp_path / "h", _SETTINGS, lambda _: 1)
    on.until(lambda: [event.what for event in on.history.events][-1:] == ["failed"])
    before, changes = (tmp_path / "h").read_bytes(), on.slurm.fuse.changes
    off = Healer(on.slurm, replace(_SETTINGS, heal="off"), HealHistory.read(tmp_path / "h"), now_s=lambda: on.now_s)
    (outcome,) = off.look()
    assert outcome.what == "would be a lemon"
    assert ((tmp_path / "h").read_bytes(), on.slurm.fuse.changes) == (before, changes)


@pytest.mark.usefixtures("deaf")
def test_of_two_drained_nodes_one_is_held_back(tmp_path: Path) -> None:
    site = Site(tmp_path / "h", replace(_SETTINGS, max_drained="1"), lambda _: None)
    site.slurm.drain("n2", "holdfast: gpu lost too")
    for _ in range(3):
        outcomes = {outcome.node: outcome for outcome in site.healer.look()}
    assert outcomes["n1"].what == "checking"
    assert outcomes["n2"].what == "waits" and "max_drained is 1 of 4" in outcomes["n2"].why


@pytest.mark.usefixtures("deaf")
def test_what_may_not_be_returned_by_hand_is_left_alone(tmp_path: Path) -> None:
    site = Site(tmp_path / "h", _SETTINGS, lambda _: None)
    site.slurm.change("n2", flags=frozenset({"DRAIN"}), reason="disk swap [ann@2026-11-20T23:19:59]")
    site.until(lambda: site.history.cases and site.history.cases["n1"].job)
    changes = site.slurm.fuse.changes
    for name, said in (
        ("n1", "it is being healed already"),
        ("n2", "drained by ann, not by holdfast: disk swap"),
        ("n3", "not drained"),
        ("n9", "Slurm knows no such node"),
    ):
        with pytest.raises(LifecycleError, match=f"{name}: {said}"):
            site.healer.bring_back(name, lambda _: None)
    assert site.slurm.fuse.changes == changes


@pytest.mark.usefixtures("deaf")
def test_a_lemon_that_does_not_pass_by_hand_is_healed_as_any_other(tmp_path: Path) -> None:
    site = Site(tmp_path / "h", replace(_SETTINGS, check_pairs=()), lambda _: 1)
    site.slurm.drain("n1", "holdfast: lemon: gpu lost")
    assert site.healer.bring_back("n1", lambda _: None).what == "failed"
    assert site.slurm.nodes()[0].reason.startswith("holdfast: gpu lost; after return its check failed")


@pytest.mark.usefixtures("deaf")
def test_a_node_that_is_back_is_not_said_to_be_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site(tmp_path / "h", replace(_SETTINGS, check_pairs=()))
    monkeypatch.setattr(heal_command, "Slurm", lambda: site.slurm)
    config = tmp_path / "heal.yaml"
    config.write_text("heal: on\ncheck: [check]\ncheck_pairs: []\n")
    config.chmod(0o644)
    words = ["node", "heal", "--config", str(config), "--state", str(tmp_path / "h")]
    said = [(main(words), capsys.readouterr().out)[1] for _ in range(3)]
    assert said[0] == "n1: reboot: gpu lost\n"
    assert said[2] == "n1: returned: passed its check; it was out for: gpu lost\n"


def test_the_nearest_neighbours_are_compared(tmp_path: Path) -> None:
    nodes = Site(tmp_path / "h", _SETTINGS).slurm.nodes()
    topology = Topology.parse(
        "SwitchName=s1 Level=0 Nodes=n[1,4]\nSwitchName=s2 Level=0 Nodes=n[2-3]\nSwitchName=top Level=1 Nodes=n[1-4]\n"
    )
    assert comparison.neighbours(nodes[0], nodes, topology) == ["n4", "n2"]


@pytest.mark.parametrize(
    ("said", "code", "expected"),
    [
        ("allreduce_pairs critical n1-n2: 0.1 GB/s", 1, 9),
        ("ModuleNotFoundError: yaml", 1, 1),  # Python's own 1 speaks against no node
        ("allreduce_pairs critical", 2, 2),
        ("1 ok", 0, 0),
    ],
)
def test_only_a_verdict_of_the_check_between_nodes_speaks_against_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, code: int, expected: int
) -> None:
    monkeypatch.setattr(comparison, "PAIRS_LOG", tmp_path / "log/pairs.log")
    script = comparison.script("n1", ("sh", "-c", f"echo $HOLDFAST_CHECKED_NODE: {json.dumps(said)}; exit {code}"))
    assert subprocess.run(["sh", "-c", script], check=False, env={"PATH": "/usr/bin:/bin"}).returncode == expected
    assert f"n1: {said}\n" in (tmp_path / "log/pairs.log").read_text()


@pytest.mark.usefixtures("deaf")
@pytest.mark.parametrize("check", ["check", "pairs"])
def test_what_the_nodes_own_hook_finds_meanwhile_counts(tmp_path: Path, check: str) -> None:
    site = Site(tmp_path / "h", _SETTINGS, lambda script: None if check in script else 0)
    site.until(lambda: "n1" in site.history.cases and site.history.cases["n1"].job and site.runs(check))
    site.slurm.drain("n1", "holdfast: gpu lost again")
    assert site.look() == HealOutcome(node="n1", what="failed", why="gpu lost again")


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
        ({"flags": frozenset({"CLOUD"})}, ["n2", "n3"]),
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
