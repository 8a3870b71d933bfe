"""`holdfast scale`: what it leaves for the supervisor, and what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import main
from launcher.job.jobfile import JobSpec
from launcher.job.scale_request import ScaleRequest
from launcher.job.supervisor_process import Process
from launcher.submission.request import write_request


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_job(home: Path, **keys: Any) -> Path:
    """A job on the local cluster whose supervisor is this process; its folder is ./runs/1."""
    (home / "s.py").touch()
    spec = JobSpec.from_mapping({"script": "s.py", "nodes": 2} | keys, home)
    folder = home / "runs" / "1"
    folder.mkdir(parents=True, mode=0o700)
    write_request(folder, spec.to_json(), "local")
    (folder / "job.json").write_text(json.dumps(spec.to_json()))
    Process.of_pid(os.getpid()).save(folder)
    start = {"time": 1.0, "event": "job_start", "run_id": "local-1", "cluster": "local"}
    (folder / "events.jsonl").write_text(json.dumps(start) + "\n")
    return folder


ELASTIC = {"min_nodes": 2, "max_nodes": 8, "step": 2}


def test_the_wish_lies_in_the_jobs_folder_until_another_one_does(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_job(home, elastic=ELASTIC)
    assert main(["scale", "1", "4"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("job 1 trains on 4 nodes") and "holdfast status 1" in told
    first = ScaleRequest.read(folder)
    assert first is not None and first.nodes == 4
    assert main(["scale", "1", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"job_id": "1", "nodes": 2}
    second = ScaleRequest.read(folder)
    assert second is not None and second.nodes == 2 and second != first
    assert (folder / "scale.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("asked", "nearest"), [("5", "4 or 6: its sizes are 2, 4, 6, 8"), ("1", "2:"), ("9", "8:"), ("1000000", "8:")]
)
def test_a_size_that_the_job_is_not_to_have_is_refused_with_the_nearest(
    home: Path, capsys: pytest.CaptureFixture[str], asked: str, nearest: str
) -> None:
    folder = make_job(home, elastic=ELASTIC)
    assert main(["scale", "1", asked]) == 2
    assert f"job 1: got {asked} nodes, expected {nearest}" in capsys.readouterr().err.replace("\n", " ")
    assert ScaleRequest.read(folder) is None


def test_a_job_that_is_not_elastic_keeps_its_size(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_job(home)
    assert main(["scale", "1", "4"]) == 2
    assert "no elastic section, so it keeps its 2 nodes" in capsys.readouterr().err.replace("\n", " ")
    assert ScaleRequest.read(folder) is None


def test_a_job_that_has_ended_is_not_scaled(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_job(home, elastic=ELASTIC)
    Process(pid=1 << 30, start_ticks=1, host=os.uname().nodename).save(folder)
    assert main(["scale", "1", "4"]) == 1
    assert "job 1 has ended already (lost)" in capsys.readouterr().err
    assert ScaleRequest.read(folder) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"nodes": "4"}', '{"host": "h", "nodes": true}', '{"host": "h", "nodes": -1}',
             '{"host": "h", "nodes": 4, "asked_s": "now"}', '{"host": "h", "nodes": 4, "more": 1}']
)  # fmt: skip
def test_a_wish_that_makes_no_sense_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "scale.json").write_text(text)
    assert ScaleRequest.read(tmp_path) is None


def test_the_end_of_the_job_takes_the_wish_away(tmp_path: Path) -> None:
    ScaleRequest(host="h", nodes=4).write(tmp_path)
    ScaleRequest.remove(tmp_path)
    ScaleRequest.remove(tmp_path)
    assert ScaleRequest.read(tmp_path) is None


def test_auto_leaves_the_size_to_the_job_file_again(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_job(home, elastic=ELASTIC)
    assert main(["scale", "1", "auto", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"job_id": "1", "nodes": None}
    request = ScaleRequest.read(folder)
    assert request is not None and request.nodes is None


@pytest.mark.parametrize("asked", ["0", "2.5", "x", "-1", "", "99999999999999999999", "²"])
def test_what_is_no_size_is_a_usage_error(home: Path, capsys: pytest.CaptureFixture[str], asked: str) -> None:
    make_job(home, elastic=ELASTIC)
    assert main(["scale", "1", "--", asked]) == 2
    assert "expected" in capsys.readouterr().err


def test_one_node_is_one_node(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_job(home, elastic={"min_nodes": 1, "max_nodes": 2})
    assert main(["scale", "1", "1"]) == 0
    assert "trains on 1 node " in capsys.readouterr().out
