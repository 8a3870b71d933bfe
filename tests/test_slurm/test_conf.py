"""slurm.conf: the lines that the hooks need, and what is found in a site's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm.conf import Remark, hook_lines, lint
from slurm.hooks.entry import DIRECTORY

GOOD = "ClusterName=a\nSlurmdTimeout=60\nReturnToService=1\nResumeTimeout=900\nNodeName=n[1-4] CPUs=8\n"


def test_a_file_with_the_lines_has_no_remarks() -> None:
    assert lint(GOOD + "\n".join(hook_lines())) == []


def test_case_comments_and_continuations_are_read_as_slurm_reads_them() -> None:
    text = GOOD + "\n".join(hook_lines()).replace("PrologFlags=Alloc", "prologflags = contain, \\\n  ALLOC # both")
    assert lint(text) == []


def test_every_missing_line_is_told_with_what_happens_without_it() -> None:
    remarks = {remark.parameter: remark for remark in lint("ClusterName=a\n")}
    needed = {name for name, remark in remarks.items() if remark.needed}
    assert needed == {
        "Prolog", "Epilog", "HealthCheckProgram", "HealthCheckInterval", "PrologFlags", "SchedulerParameters"
    }  # fmt: skip
    assert remarks["PrologFlags"].expected == "PrologFlags=Alloc"
    assert "instead of starting elsewhere" in remarks["SchedulerParameters"].why


def test_words_that_are_set_already_are_kept() -> None:
    text = "PrologFlags=Serial\nSchedulerParameters=bf_max_job_test=100\n"
    remarks = {remark.parameter: remark for remark in lint(text)}
    assert remarks["PrologFlags"].expected == "PrologFlags=Serial,Alloc"
    assert (remarks["PrologFlags"].line, remarks["PrologFlags"].got) == (1, "Serial")
    assert remarks["SchedulerParameters"].expected == "SchedulerParameters=bf_max_job_test=100,nohold_on_prolog_fail"
    assert remarks["SchedulerParameters"].line == 2


def remarks_on(text: str, directory: Path = DIRECTORY) -> dict[str, Remark]:
    return {remark.parameter: remark for remark in lint(text, directory)}


def test_a_prolog_of_the_sites_own_may_stand_beside_ours(tmp_path: Path) -> None:
    found = remarks_on("Prolog=/etc/slurm/prolog.sh\nTaskProlog=/etc/slurm/task.sh\n")
    assert found["Prolog"].needed and found["Prolog"].expected == "Prolog=/etc/slurm/prolog.d/*"
    assert "have yours call it" in found["TaskProlog"].why

    hooks, both = tmp_path / "hooks", tmp_path / "prolog.d"
    both.mkdir()
    (both / "10-site").touch()
    assert remarks_on(f"Prolog={both}/*\n", hooks)["Prolog"].needed  # ours is not there
    (both / "zz-holdfast").symlink_to(hooks / "prolog.sh")
    assert "Prolog" not in remarks_on(f"Prolog={both}/*\n", hooks)
    assert "Prolog" not in remarks_on("Prolog=/nowhere/hooks/pro*.sh\n", Path("/nowhere/hooks"))


def test_a_list_of_prologs_in_one_line_is_none() -> None:
    """Slurm takes it for one path, finds none, and drains every node that is to run a job."""
    assert remarks_on("Prolog=/etc/slurm/prolog.sh,/hooks/prolog.sh\n", Path("/hooks"))["Prolog"].needed


@pytest.mark.parametrize("lines", [["/a.sh", "/hooks/epilog.sh"], ["/hooks/epilog.sh", "/a.sh"]])
def test_several_lines_are_told_as_what_only_a_newer_slurm_reads(lines: list[str]) -> None:
    found = remarks_on("".join(f"Epilog={line}\n" for line in lines), Path("/hooks"))["Epilog"]
    assert "before Slurm 24.05 the last line alone counts" in found.why and not found.needed


@pytest.mark.parametrize("flags", ["Contain,X11", "contain", "DeferBatch", "ForceRequeueOnFail", "NoHold, Alloc"])
def test_flags_that_imply_alloc_are_enough(flags: str) -> None:
    assert "PrologFlags" not in remarks_on(f"PrologFlags={flags}\n")


@pytest.mark.parametrize("flags", ["NoHold", "Serial", "NoHold,Serial"])
def test_flags_that_do_not_imply_alloc_need_it_beside_them(flags: str) -> None:
    remark = remarks_on(f"PrologFlags={flags}\n")["PrologFlags"]
    assert remark.needed and remark.expected == f"PrologFlags={flags},Alloc"


def test_timeouts_that_cost_hours_are_told() -> None:
    remarks = {r.parameter: r for r in lint("SlurmdTimeout=3600\nReturnToService=2\n")}
    assert remarks["SlurmdTimeout"].got == "3600" and remarks["SlurmdTimeout"].expected == "SlurmdTimeout=60"
    assert remarks["ReturnToService"].expected == "ReturnToService=1"
    assert not remarks["SlurmdTimeout"].needed


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", "ANY,CYCLE"),
        ("HealthCheckNodeState=ANY", "ANY,CYCLE"),
        ("HealthCheckNodeState=IDLE,MIXED", "IDLE,MIXED,CYCLE"),
        ("HealthCheckNodeState=cycle,ANY", None),
    ],
)
def test_health_checks_of_all_nodes_at_once_are_advised_against(line: str, expected: str | None) -> None:
    remark = remarks_on(line).get("HealthCheckNodeState")
    assert (remark and remark.expected) == (expected and f"HealthCheckNodeState={expected}")
    assert remark is None or not remark.needed
