"""A plan is walked: what is right is left alone, a crash anywhere is survived, a failure says what and where."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from provision_kit import Killed, Programs, bare, node_of, snapshot

from lifecycle.errors import LifecycleError, NodeUsageError
from lifecycle.provision.plan import STEPS, choose
from lifecycle.provision.record import StepsRecord
from lifecycle.provision.step import ProvisionedNode, Step, StepError
from lifecycle.provision.walk import Ending, walk

_SITE = {
    "huge_pages": 8,
    "users": [{"name": "ann", "uid": 2001}, {"name": "bob", "uid": 2002, "gid": 2001}],
    "fsx": {"dns": "fs-1.example", "mountname": "abc", "stripe_count": -1},
    "ntp": ["10.0.0.1"],
    "slurm": {"conf_server": "ctl:6817"},
}
_WALKED = ("packages", "users", "limits", "hugepages", "shm", "logind", "lustre", "homes", "chrony", "slurmd")


def _run(root: Path, programs: Programs) -> dict[str, Ending]:
    programs.answers[("lfs", "getstripe")] = (0, "-1\n")
    outcomes = walk(choose(_WALKED), node_of(root, programs, **_SITE))
    return {outcome.step: outcome.ending for outcome in outcomes}


def test_the_first_run_applies_every_step_and_the_second_changes_nothing(tmp_path: Path) -> None:
    programs = Programs(bare(tmp_path))
    assert set(_run(tmp_path, programs).values()) == {Ending.DONE}
    before = snapshot(tmp_path)
    programs.ran.clear()
    assert set(_run(tmp_path, programs).values()) == {Ending.NOTHING_TO_DO}
    assert snapshot(tmp_path) == before
    assert {argv[0] for argv in programs.ran} <= {"dpkg-query", "df", "getent", "lfs"}


def _kill_points() -> Iterator[tuple[int, bool]]:
    return ((number, after) for number in range(60) for after in (False, True))


def test_killed_at_any_command_before_or_after_it_the_next_run_ends_like_an_unbroken_one(tmp_path: Path) -> None:
    whole = Programs(bare(tmp_path / "whole"))
    _run(tmp_path / "whole", whole)
    expected = {name: text for name, (text, _) in snapshot(tmp_path / "whole").items() if "provision.json" not in name}
    killed = 0
    for number, after in _kill_points():
        root = bare(tmp_path / f"{number}-{after}")
        programs = Programs(root)
        programs.die_at, programs.die_after = number, after
        if number >= len(whole.ran):
            break
        with pytest.raises(Killed):
            _run(root, programs)
        killed += 1
        programs.die_at = None
        assert Ending.FAILED not in _run(root, programs).values(), (number, after)
        got = {name: text for name, (text, _) in snapshot(root).items() if "provision.json" not in name}
        assert got == expected, (number, after)
    assert killed == 2 * len(whole.ran)


class _Claims(Step):
    """Says it is done, whatever happened."""

    name = "claims"

    def __init__(self) -> None:
        self.applied = 0
        self.dies = False

    def goal(self, node: ProvisionedNode) -> str:
        return "claimed"

    def is_done(self, node: ProvisionedNode) -> bool:
        return self.applied > 0

    def apply(self, node: ProvisionedNode) -> None:
        self.applied += 1
        if self.dies:
            raise Killed


def test_a_step_that_was_interrupted_is_applied_again_though_it_looks_done(tmp_path: Path) -> None:
    step, node = _Claims(), node_of(bare(tmp_path))
    step.dies = True
    with pytest.raises(Killed):
        walk([step], node)
    step.dies = False
    assert walk([step], node)[0].ending is Ending.DONE
    assert walk([step], node)[0].ending is Ending.NOTHING_TO_DO
    assert step.applied == 2


class _Broken(_Claims):
    """Applies and is not so."""

    name = "broken"

    def is_done(self, node: ProvisionedNode) -> bool:
        return False


def test_a_step_that_does_not_verify_fails_by_name_and_stops_the_walk(tmp_path: Path) -> None:
    outcomes = walk([_Broken(), _Claims()], node_of(bare(tmp_path)))
    assert [outcome.ending for outcome in outcomes] == [Ending.FAILED]
    assert outcomes[0].step == "broken" and "its result is missing" in outcomes[0].reason
    assert StepsRecord(tmp_path / "var/lib/holdfast/provision.json").interrupted("broken")


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    node = node_of(bare(tmp_path))

    class Nested(_Claims):
        def apply(self, node: ProvisionedNode) -> None:
            with pytest.raises(LifecycleError, match="provisions this node"):
                walk([_Claims()], node)
            self.applied = 1

    assert walk([Nested()], node)[0].ending is Ending.DONE


@pytest.mark.parametrize("torn", ["", "{", "[]", '{"steps": 3}', '{"steps": {"x": 1}}'])
def test_a_torn_record_counts_as_none(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(torn)
    record = StepsRecord(path)
    assert not record.interrupted("limits")
    record.begin("limits")
    assert StepsRecord(path).interrupted("limits")


def test_unknown_steps_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(NodeUsageError, match=r"--only: got 'limit'; did you mean limits\?"):
        choose(["limit"])
    with pytest.raises(NodeUsageError, match=r"--skip: got 'qqqq'; expected one of packages, "):
        choose((), ["qqqq"])


def test_chosen_steps_keep_the_plans_order() -> None:
    assert [step.name for step in choose(["slurmd", "packages"])] == ["packages", "slurmd"]
    assert [step.name for step in choose((), ["packages"])] == [step.name for step in STEPS[1:]]


def test_a_failure_of_a_program_is_a_failure_of_the_step(tmp_path: Path) -> None:
    programs = Programs(bare(tmp_path))
    programs.answers[("sysctl",)] = (1, "sysctl: permission denied")
    outcome = walk(choose(["hugepages"]), node_of(tmp_path, programs, huge_pages=4))[0]
    assert outcome.ending is Ending.FAILED and "permission denied" in outcome.reason


def test_huge_pages_that_the_kernel_did_not_give_are_a_failure(tmp_path: Path) -> None:
    programs = Programs(bare(tmp_path))
    programs.answers[("sysctl",)] = (0, "")
    outcome = walk(choose(["hugepages"]), node_of(tmp_path, programs, huge_pages=4))[0]
    assert outcome.ending is Ending.FAILED and "got 0, expected 4" in outcome.reason


def test_a_user_with_another_number_is_never_changed(tmp_path: Path) -> None:
    bare(tmp_path)
    (tmp_path / "etc/passwd").write_text("ann:x:1500:1500::/home/ann:/bin/sh\n")
    programs = Programs(tmp_path)
    outcome = walk(choose(["users"]), node_of(tmp_path, programs, users=[{"name": "ann", "uid": 2001}]))[0]
    assert outcome.ending is Ending.FAILED and "got ann with uid 1500" in outcome.reason
    assert programs.ran == []


def test_a_mount_points_line_of_others_in_fstab_is_left_alone(tmp_path: Path) -> None:
    bare(tmp_path)
    theirs = "10.0.0.9@tcp:/x /fsx lustre defaults 0 0\n"
    (tmp_path / "etc/fstab").write_text(theirs)
    outcome = walk(choose(["lustre"]), node_of(tmp_path, **_SITE))[0]
    assert outcome.ending is Ending.FAILED and "/etc/fstab" in outcome.reason
    assert (tmp_path / "etc/fstab").read_text() == theirs


def test_a_system_without_dpkg_is_named(tmp_path: Path) -> None:
    from slurm.command import CommandError, Result

    def none(argv: object, **_: object) -> Result:
        result = Result(argv=("dpkg-query",), returncode=None, stdout="", stderr="", seconds=0.0)
        raise CommandError(result, "could not be started")

    bare(tmp_path)
    (tmp_path / "etc/os-release").write_text('PRETTY_NAME="Amazon Linux 2023"\n')
    node = node_of(tmp_path)
    other = ProvisionedNode(root=node.root, site=node.site, run=none, fetch=node.fetch)
    with pytest.raises(StepError, match="Amazon Linux 2023"):
        choose(["packages"])[0].is_done(other)
