"""`holdfast stop`: all ranks save at one step, and the job ends for good."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from launcher.cli import main
from launcher.core.outcomes import JobOutcome
from launcher.core.stop_reasons import StopReason
from launcher.history.events import read_events
from launcher.job.jobfile import JobSpec
from launcher.job.stop_request import StopRequest
from launcher.job.supervisor_process import Process

# Trains until somebody stops it; each rank leaves the step at which it ended.
SCRIPT = """
import os, pathlib, time, torch
from ckpt import Checkpointer
job, state = pathlib.Path(os.environ["HOLDFAST_JOB_DIR"]), {"x": torch.zeros(10)}
with Checkpointer.from_env() as ckpt:
    step = ckpt.load(state) or 0
    while True:
        step += 1
        state["x"] += 1
        if ckpt.should_save(step):
            ckpt.save(step, state)
        if ckpt.should_stop(step):
            break
        time.sleep(0.01)
(job / f"ended-{os.environ['RANK']}").write_text(str(step))
"""
SUPERVISE = (
    "import sys; from pathlib import Path; from launcher.job.jobfile import JobSpec; import json;"
    "from launcher.supervisor import supervise;"
    "spec = JobSpec.from_json(json.loads(sys.argv[1]));"
    "sys.exit(supervise(spec, Path(sys.argv[2]), 'local').exit_code)"
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


class LocalJob:
    """A job on the local cluster; its folder is ./runs/1."""

    def __init__(self, home: Path) -> None:
        (home / "script.py").write_text(SCRIPT)
        shared = {"path": str(home / "shared"), "every_steps": 100_000}
        checkpoint = {"namespace": "t", "memory": {"every_steps": 10}, "shared": shared}
        mapping = {"script": "script.py", "nodes": 1, "workers_per_node": 2, "checkpoint": checkpoint}
        self.spec = JobSpec.from_mapping(mapping, home)
        self.folder = home / "runs" / "1"

    def start(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", SUPERVISE, json.dumps(self.spec.to_json()), str(self.folder)]
        supervisor = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        until(self.folder.is_dir, "the job's folder")
        Process.of_pid(supervisor.pid).save(self.folder)
        return supervisor

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.folder / "events.jsonl") if event["event"] == name]

    def ended_at(self) -> set[str]:
        return {path.read_text() for path in self.folder.glob("ended-*")}


def status(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["status", "1", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_halted_job_keeps_its_last_step_and_goes_on_from_it_if_it_is_started_again(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = LocalJob(home)
    supervisor = job.start()
    until(lambda: job.events("first_step"), "the first step")
    assert main(["stop", "1", "--at-step", "50"]) == 0
    assert (job.folder / "stop.json").stat().st_mode & 0o777 == 0o600
    assert status(capsys)["stop"].startswith("after step 50 (asked on ")
    assert supervisor.wait(60) == 0

    (end,) = job.events("job_end")
    assert end["outcome"] == "halted" and end["step"] >= 50
    assert job.ended_at() == {str(end["step"])}
    assert end["reason"] == f"stopped for good, as asked; kept: step {end['step']} in shared"
    assert [event["reason"] for event in job.events("stop_requested")] == [StopReason.HALT]
    assert status(capsys)["state"] == "halted" and not (job.folder / "stop.json").exists()
    assert main(["stop", "1"]) == 0
    assert capsys.readouterr().out == "job 1 has ended already (halted)\n"

    supervisor = job.start()
    until(lambda: len(job.events("restore")) == 2, "a restore of the next run")
    supervisor.send_signal(signal.SIGINT)
    assert supervisor.wait(60) == JobOutcome.CANCELLED.exit_code
    restored = job.events("restore")[-1]
    assert (restored["step"], restored["tier"]) == (end["step"], "shared")


def test_a_job_whose_script_fails_in_the_stop_says_that_it_did_not_save(home: Path) -> None:
    job = LocalJob(home)
    fails = "if ckpt.should_stop(step): raise SystemExit('no more room')\n            ckpt.save(step, state)"
    script = SCRIPT.replace("ckpt.save(step, state)", fails).replace(
        "        if ckpt.should_stop(step):\n", "        elif ckpt.should_stop(step):\n"
    )
    (home / "script.py").write_text(script)
    supervisor = job.start()
    until(lambda: job.events("commit"), "a committed step")
    assert main(["stop", "1"]) == 0
    assert supervisor.wait(60) == 0
    (end,), (fault,) = job.events("job_end"), job.events("fault")
    assert end["outcome"] == "halted" and not job.ended_at()
    unsaved = f"the ranks did not save in the stop: {fault['reason']}; "
    assert end["reason"] == f"stopped for good, as asked; {unsaved}kept: no step: none was saved below memory"
    assert "no more room" in end["reason"]


@pytest.mark.parametrize("text", ["", "[1]", '{"host": "h", "at_step": "x"}', '{"at": 5}', "{" * 100_000])
def test_a_request_that_makes_no_sense_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "stop.json").write_text(text)
    assert StopRequest.read(tmp_path) is None


@pytest.mark.parametrize("after", ["30", "", "m", "-5m", "5 m", "1.5h", "99999999999d"])
def test_a_time_without_its_unit_is_refused(after: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "runs" / "1").mkdir(parents=True)
    (home / "runs" / "1" / "events.jsonl").write_text("")
    assert main(["stop", "1", f"--after={after}"]) == 2
    assert "expected a time with its units: 90s, 30m, 2h, 1d12h" in capsys.readouterr().err


def test_a_time_counts_from_now(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "runs" / "1").mkdir(parents=True)
    (home / "runs" / "1" / "job.json").write_text(json.dumps({"checkpoint": {"memory": {}}}))
    before_s = time.time()
    assert main(["stop", "1", "--after", "1d2h3m4s"]) == 0
    assert "keeps steps in memory only" in capsys.readouterr().out
    request = StopRequest.read(home / "runs" / "1")
    assert request is not None and request.at_s is not None
    assert before_s + 93784 <= request.at_s <= time.time() + 93784


def test_a_job_without_checkpoints_is_not_stopped(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "runs" / "1").mkdir(parents=True)
    (home / "runs" / "1" / "job.json").write_text(json.dumps({"checkpoint": None}))
    assert main(["stop", "1"]) == 2
    assert "no checkpoint section" in capsys.readouterr().err and not (home / "runs" / "1" / "stop.json").exists()
