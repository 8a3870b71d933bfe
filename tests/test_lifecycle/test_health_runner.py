"""A run of checks ends, whatever its checks do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from waiting import until

from lifecycle.health.catalog import CHECKS, select
from lifecycle.health.check import CannotObserve, Check, CheckedNode, Level, NotHere, check
from lifecycle.health.finding import Finding, Status, ok, overall
from lifecycle.health.runner import longest_s, run_checks

BUDGET_S = 30.0


def made(name: str, judge: object, limit_s: float = 10.0, alone: bool = False) -> Check:
    def asked(node: CheckedNode) -> Finding:
        """It is as it should be."""
        return judge(node)  # type: ignore[operator]

    return check(name, Level.QUICK, limit_s=limit_s, alone=alone)(asked)


def hang(node: CheckedNode) -> Finding:
    threading.Event().wait()
    return ok("never")


def well(node: CheckedNode) -> Finding:
    return ok("well")


def die(node: CheckedNode) -> Finding:
    os.kill(os.getpid(), signal.SIGKILL)
    return ok("never")


def raising(error: Exception) -> object:
    def judge(node: CheckedNode) -> Finding:
        raise error

    return judge


def test_who_waits_is_told_how_many_checks_are_done() -> None:
    told: list[str] = []
    checks = [made("first", well), made("slow", hang, limit_s=1.2), made("alone", well, alone=True)]
    run_checks(checks, CheckedNode(), BUDGET_S, told.append)
    assert told[0] == "0 of 3 checks" and "1 of 3 checks" in told and told[-1] == "2 of 3 checks"


def test_a_hung_check_is_unknown_at_its_limit_and_holds_up_nobody() -> None:
    checks = [made("first", well), made("hung", hang, limit_s=0.3), made("after", well)]
    findings = run_checks(checks, CheckedNode(), BUDGET_S)
    assert [finding.status for finding in findings] == [Status.OK, Status.UNKNOWN, Status.OK]
    assert [finding.check for finding in findings] == ["first", "hung", "after"]
    assert findings[1].measured == "no answer within 0.3 s" and findings[1].seconds >= 0.3


def test_the_tool_of_a_check_that_is_given_up_ends_too(tmp_path: Path) -> None:
    """Tools are run in sessions of their own; one that hangs would stay after each run."""
    said = tmp_path / "pids"

    def ask(node: CheckedNode) -> Finding:
        node.run(["sh", "-c", f"sleep 600 & echo $$ $! >{said}; wait"], timeout_s=600)
        return ok("never")

    (finding,) = run_checks([made("asks", ask)], CheckedNode(), 1.0)
    assert finding.status is Status.UNKNOWN
    pids = [int(pid) for pid in said.read_text().split()]
    assert len(pids) == 2
    until(lambda: not any(_runs(pid) for pid in pids), "the end of the tool")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_time_a_run_may_take_is_known_before_it() -> None:
    first, second, alone = made("first", well, 3.0), made("second", well, 4.0), made("alone", well, 5.0, alone=True)
    other = check("other", Level.QUICK, limit_s=6.0, where=lambda node: False)(alone.judge)
    assert first.family == second.family != alone.family
    assert longest_s([first, second, alone], CheckedNode(), BUDGET_S) == 12.0, (
        "one after another in a family, then alone"
    )
    assert longest_s([first, other], CheckedNode(), BUDGET_S) == 3.0, "what the node does not have takes no time"
    assert longest_s([first, alone], CheckedNode(), 2.0) == 2.0 and longest_s([alone], CheckedNode(), BUDGET_S) == 5.0
    assert longest_s([], CheckedNode(), BUDGET_S) == 0.0


def test_a_check_whose_process_dies_is_unknown_and_the_others_go_on() -> None:
    findings = run_checks([made("dies", die), made("after", well)], CheckedNode(), BUDGET_S)
    assert [finding.status for finding in findings] == [Status.UNKNOWN, Status.OK]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotHere("no such part"), Status.SKIPPED),
        (CannotObserve("no answer"), Status.UNKNOWN),
        (PermissionError(13, "Permission denied"), Status.UNKNOWN),
        (ZeroDivisionError("division by zero"), Status.UNKNOWN),
    ],
)
def test_what_a_check_raises_is_never_taken_for_a_sick_node(error: Exception, status: Status) -> None:
    [finding] = run_checks([made("raises", raising(error))], CheckedNode(), BUDGET_S)
    assert finding.status is status and str(error) in finding.measured


def test_when_the_level_s_time_is_used_up_the_rest_is_unknown() -> None:
    checks = [made("hung", hang), made("next", well), made("alone", well, alone=True)]
    findings = run_checks(checks, CheckedNode(), 0.3)
    assert {finding.status for finding in findings} == {Status.UNKNOWN}
    assert "not run" in findings[1].measured and "not run" in findings[2].measured


def test_a_check_that_measures_speed_runs_when_no_other_does(tmp_path: Path) -> None:
    def noting(name: str) -> object:
        def judge(node: CheckedNode) -> Finding:
            others = list(tmp_path.glob("*.running"))
            mark = tmp_path / f"{name}.running"
            mark.touch()
            deadline_s = time.monotonic() + 0.2
            while time.monotonic() < deadline_s:  # long enough to be met
                pass
            mark.unlink()
            return ok(",".join(sorted(path.stem for path in others)))

        return judge

    checks = [made(name, noting(name), alone=name != "beside") for name in ("one", "two", "beside")]
    assert {finding.measured for finding in run_checks(checks, CheckedNode(), BUDGET_S)} == {""}


def test_the_prolog_is_given_less_than_two_seconds_and_nothing_outlasts_them_even_when_everything_hangs() -> None:
    checks = [made(f"hung{number}", hang, limit_s=1.0, alone=number > 2) for number in range(5)]
    findings = run_checks(checks, CheckedNode(), Level.PROLOG.budget_s)
    assert {finding.status for finding in findings} == {Status.UNKNOWN}
    used_up = f"the {Level.PROLOG.budget_s:g} s of this level were used up"
    assert Level.PROLOG.budget_s < 2 and [used_up in finding.measured for finding in findings[3:]] == [True, True]
    assert findings[4].measured.startswith("not run")


def beside_a_hung_mount(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("needs root and /dev/fuse")
    program = Path(__file__).with_name("hung_mount.py")
    unshare = ["unshare", "-m", "--propagation", "private"]  # nobody else's df shall meet the mount
    argv = [*unshare, sys.executable, str(program), str(place), *command]
    return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=100)


def test_a_mount_that_does_not_answer_hangs_no_check_and_is_critical(tmp_path: Path) -> None:
    stuck, after, mounts = beside_a_hung_mount(tmp_path).stdout.splitlines()
    assert stuck.startswith("stuck UNKNOWN no answer within 0.5 s")
    assert after.startswith("after OK")
    assert mounts.startswith(f"network_mounts CRITICAL {tmp_path} (fuse.hung): no answer within")


def test_the_whole_check_ends_beside_a_mount_that_does_not_answer(tmp_path: Path) -> None:
    """Where jobs write: the check of that disk is given up, and says so; all others have their answer."""
    place, settings = tmp_path / "local", tmp_path / "health.yaml"
    place.mkdir()
    settings.write_text(f"nvme: {place}\nskip: [cpu_speed, memory_bandwidth, shm_speed, tcp_loopback]\n")
    check = (sys.executable, "-m", "launcher", "node", "check", "--json", "--within", "15", "--config", str(settings))
    done = beside_a_hung_mount(place, *check, "--verdict", str(tmp_path / "verdict.json"))
    rows = {row["name"]: row for row in json.loads(done.stdout)["checks"]}
    assert done.returncode == 1, done.stderr
    assert rows["network_mounts"]["status"] == "critical" and str(place) in rows["network_mounts"]["measured"]
    assert rows["nvme_speed"]["status"] == "unknown" and "no answer" in rows["nvme_speed"]["measured"]
    silent = [name for name, row in rows.items() if "no answer" in row["measured"]]
    assert sorted(silent) == ["network_mounts", "nvme_speed"]


def test_every_check_says_what_it_promises_and_prolog_s_are_short() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert all(check.promise.endswith(".") for check in CHECKS)
    prolog = select(Level.PROLOG)
    assert all(check.limit_s <= 1.0 and not check.alone for check in prolog)
    for level in Level:
        assert max(check.limit_s for check in select(level)) < level.budget_s


def test_one_status_for_many_is_the_worst_observed() -> None:
    assert overall([Status.OK, Status.SKIPPED, Status.UNKNOWN]) is Status.OK
    assert overall([Status.OK, Status.CRITICAL, Status.WARNING, Status.UNKNOWN]) is Status.CRITICAL
    assert overall([Status.SKIPPED, Status.UNKNOWN]) is Status.UNKNOWN
