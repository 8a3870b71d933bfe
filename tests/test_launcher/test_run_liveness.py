"""Whether a run of the local cluster has ended: what its successor in a namespace does not wait for."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from pathlib import Path

import pytest

from launcher.job.run_id import local_run_id
from launcher.job.supervisor_process import Process
from launcher.scheduler import run_liveness

RECORDED = Path(__file__).parents[1] / "test_slurm" / "recorded" / "job_running.txt"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a local job that nobody has noted."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps({"name": "one"}))
    return folder


@pytest.fixture
def dead() -> Process:
    process = subprocess.Popen(["sleep", "60"])
    known = Process.of_pid(process.pid)
    process.kill()
    process.wait()
    return known


def has_ended(folder: Path) -> bool:
    """As the next job, beside it, asks."""
    env = {"HOLDFAST_JOB_DIR": str(folder.with_name("two"))}
    return run_liveness.liveness(local_run_id(folder), env).has_ended


def running(run_id: str) -> str:
    """What shows that a run goes on; "" if nothing does."""
    found = run_liveness.liveness(run_id, {"HOLDFAST_JOB_DIR": str(Path.cwd() / "runs" / "two")})
    return found.words if found.is_running else ""


def test_a_run_whose_processes_are_gone_has_ended(folder: Path, dead: Process) -> None:
    dead.save(folder)
    assert has_ended(folder)


def test_a_run_whose_supervisor_lives_has_not_ended(folder: Path) -> None:
    Process.of_pid(os.getpid()).save(folder)
    assert not has_ended(folder)


def test_only_a_run_that_is_seen_to_go_on_is_running(
    folder: Path, dead: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent.parent)
    run_id = local_run_id(folder)
    assert running(run_id) == ""
    Process.of_pid(os.getpid()).save(folder)
    assert running(run_id) == f"its supervisor is process {os.getpid()} here"
    dead.save(folder)
    assert running(run_id) == running("program-x") == ""


@pytest.mark.parametrize(
    ("name", "state", "words"),
    [("c", "RUNNING", "job 7 is RUNNING"), ("c", "COMPLETED", ""), ("c", "PENDING", ""), ("other", "RUNNING", "")],
)
def test_a_run_of_this_cluster_is_running_if_slurm_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, state: str, words: str
) -> None:
    record = RECORDED.read_text().replace("JobState=RUNNING", f"JobState={state}").strip()
    (tmp_path / "record").write_text(record)
    (tmp_path / "scontrol").write_text(
        f"#!/bin/sh\n[ $2 = config ] && echo 'ClusterName = {name}' || cat {tmp_path}/record\n"
    )
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert running("slurm-c-7") == words


def test_a_run_of_which_a_process_is_left_has_not_ended(folder: Path, dead: Process) -> None:
    dead.save(folder)
    left = subprocess.Popen(["sleep", "60"], env={**os.environ, "HOLDFAST_RUN_ID": local_run_id(folder)})
    try:
        assert not has_ended(folder)
    finally:
        left.kill()
        left.wait()
    assert has_ended(folder)


@pytest.mark.parametrize("elsewhere", [{"host": "another"}, {"pid_namespace": "another"}, {"pid_namespace": ""}])
def test_of_a_run_of_another_machine_or_container_nothing_is_known(
    folder: Path, dead: Process, elsewhere: dict[str, str]
) -> None:
    dataclasses.replace(dead, **elsewhere).save(folder)
    assert not has_ended(folder)


def test_of_a_run_that_is_not_there_nothing_is_known(folder: Path) -> None:
    assert not has_ended(folder)  # no process noted
    assert not has_ended(folder.with_name("three"))
