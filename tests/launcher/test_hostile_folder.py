"""Another user's folder in a shared ./runs: `status` neither waits for it, nor fails, nor obeys it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.cli import main
from launcher.supervisor_process import Process

ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202e\n[/red][bold]"
RECORDS = ("events.jsonl", "fold.json", "job.json", "result.json", "process.json", "log/supervisor.log")
DEEP = '{"a":' * 100_000


def start(**fields: object) -> str:
    return json.dumps({"time": 100.0, "event": "job_start", "run_id": "local-1", "cluster": "local"} | fields) + "\n"


def pipes(folder: Path) -> None:
    for name in RECORDS:
        (folder / name).unlink()
        os.mkfifo(folder / name)
    (folder / f"{folder.name}_submission.sh").write_text("")


def events_pipe(folder: Path) -> None:
    (folder / "events.jsonl").unlink()
    os.mkfifo(folder / "events.jsonl")


def device(folder: Path) -> None:
    (folder / "events.jsonl").unlink()
    (folder / "events.jsonl").symlink_to("/dev/zero")


def filled_with(text: str) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        for name in RECORDS:
            (folder / name).write_text(text)

    return fill


def endless(folder: Path) -> None:
    for name in RECORDS:
        os.truncate(folder / name, 1 << 42)


def escapes(folder: Path) -> None:
    (folder / "job.json").write_text(json.dumps({"name": ESCAPES, "nodes": "x", "spares": []}))
    fault = {"time": 101.0, "event": "fault", "kind": ESCAPES, "reason": ESCAPES, "node": ESCAPES}
    end = {"time": 102.0, "event": "job_end", "outcome": ESCAPES, "reason": ESCAPES}
    (folder / "events.jsonl").write_text(start(run_id=ESCAPES) + json.dumps(fault) + "\n" + json.dumps(end))


LAYOUTS = [pipes, events_pipe, device, filled_with("[1]\n"), filled_with(DEEP), filled_with("\0\xff"), endless, escapes]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    good = tmp_path / "runs" / "good"
    good.mkdir(parents=True)
    (good / "events.jsonl").write_text(start())
    return good.parent


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["7", ESCAPES.replace("/", ""), "\udcff"], ids=["plain", "escapes", "not UTF-8"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=range(len(LAYOUTS)))
def test_a_hostile_folder_costs_no_more_than_its_own_line(
    layout: Callable[[Path], None], name: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = runs / name
    (folder / "log").mkdir(parents=True)
    for record in RECORDS:
        (folder / record).write_text(start())
    layout(folder)
    for words in (["status"], ["status", "--json"], ["status", str(folder)], ["status", str(folder), "--json"]):
        assert main(words) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out and "\x07" not in out and "\u202e" not in out
        if words == ["status"]:
            assert len(out.splitlines()) == 3 and "runs/good" in out
    if layout is pipes:
        assert main(["logs", str(folder), "--supervisor"]) == 2


def test_a_strangers_job_is_not_ended(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its folder may name a job or a process of the user's own."""
    if os.geteuid() != 0:
        pytest.skip("needs root to give a folder away")
    process = subprocess.Popen(["sleep", "60"])
    try:
        Process.of_pid(process.pid).save(runs / "good")
        os.chown(runs / "good", 12345, 12345)
        assert main(["cancel", "good"]) == 2
        assert "belongs to uid 12345" in capsys.readouterr().err
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("note", [{"pid": -1, "start_ticks": None}, {"pid": 0, "start_ticks": 1}, {"pid": "1"}])
def test_a_note_that_names_no_process_interrupts_none(note: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "process.json").write_text(json.dumps({"start_ticks": 1, "host": "h"} | note))
    assert Process.read(tmp_path) is None
