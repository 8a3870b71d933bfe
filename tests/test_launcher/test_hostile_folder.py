"""Another user's folder in a shared ./runs: `status` neither waits for it, nor fails, nor obeys it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.cli import main
from launcher.cli.log_text import log_line
from launcher.job.supervisor_process import Process

ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202e\n[/red][bold]"
RECORDS = ("events.jsonl", "fold.json", "job.json", "result.json", "process.json", "log/supervisor.log")
DEEP = '{"a":' * 100_000


def start(**fields: object) -> str:
    return json.dumps({"time": 100.0, "event": "job_start", "run_id": "local-1", "cluster": "local"} | fields) + "\n"


def pipes(folder: Path) -> None:
    for name in RECORDS:
        (folder / name).unlink()
        os.mkfifo(folder / name)
    (folder / "submission.json").write_text("")


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


@pytest.mark.timeout(30)
@pytest.mark.parametrize("words", [["wait"], ["status", "--watch"]], ids=["wait", "watch"])
def test_the_end_of_a_job_is_told_without_control_characters(
    words: list[str], runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end = {"time": 102.0, "event": "job_end", "outcome": "done", "reason": ESCAPES}
    (runs / "good" / "events.jsonl").write_text(start() + json.dumps(end) + "\n")
    assert main([*words, "good"]) == 0
    out = capsys.readouterr().out
    assert "done" in out and "\x1b" not in out and "\u202e" not in out


# logs


def logs_of(folder: Path) -> Path:
    """Makes a job of another user with one attempt and one log."""
    (folder / "log" / "attempt-0").mkdir(parents=True)
    attempt = {"time": 101.0, "event": "attempt_start", "attempt": 0, "nodes": ["n1"], "world_size": 1}
    (folder / "events.jsonl").write_text(start() + json.dumps(attempt) + "\n")
    (folder / "job.json").write_text(json.dumps({"name": "x", "workers_per_node": 1}))
    (folder / "log" / "attempt-0" / "rank-0.log").write_text("one\ntwo\n")
    return folder


@pytest.mark.timeout(30)
@pytest.mark.parametrize("content", ["", "{", "[]", "{}", DEEP, *(f'{{"workers_per_node": {n}}}' for n in
                                     ("10000000000000", "1e300", "-1", "true", '"8"'))])  # fmt: skip
def test_logs_of_a_node_say_in_one_line_what_is_wrong_with_the_job(
    content: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = logs_of(runs / "7")
    (folder / "job.json").unlink()
    os.mkfifo(folder / "job.json") if not content else (folder / "job.json").write_text(content)
    assert main(["logs", str(folder), "--node", "n1"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_folder_whose_name_has_another_alphabets_digit_is_no_attempt(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = logs_of(runs / "7")
    (folder / "log" / "attempt-²").mkdir()
    (folder / "log" / "attempt-٣").mkdir()
    assert main(["logs", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == ["one", "two"]


@pytest.mark.timeout(30)
def test_the_last_lines_of_an_endless_log_are_looked_for_near_its_end(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = logs_of(runs / "7")
    path = folder / "log" / "attempt-0" / "rank-0.log"
    os.truncate(path, 1 << 42)
    with path.open("ab") as file:
        file.write(b"\nlast\n")
    assert main(["logs", str(folder), "-n", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "last"


def test_a_log_controls_no_terminal_but_may_have_colours(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = logs_of(runs / "7")
    text = "\x1b[31mred\x1b[0m\t50%\r60%\x1b]0;owned\x07\x1b[2J\u202eé"
    (folder / "log" / "attempt-0" / "rank-0.log").write_text(f"{text}\n", newline="")
    assert main(["logs", str(folder)]) == 0
    assert capsys.readouterr().out == "red\t50%\r60%\\x1b]0;owned\\x07\\x1b[2J\\u202eé\n"  # no terminal
    assert log_line(text) == "\x1b[31mred\x1b[0m\t50%\r60%\\x1b]0;owned\\x07\\x1b[2J\\u202eé"


@pytest.mark.timeout(30)
def test_the_events_of_another_user_are_read_up_to_a_size(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each megabyte would cost the reader a second and twenty megabytes of memory."""
    if os.geteuid() != 0:
        pytest.skip("needs root to give a file away")
    commit = json.dumps({"time": 101.0, "event": "commit", "step": 1}) + "\n"
    path = runs / "good" / "events.jsonl"
    path.write_text(start() + commit * (17_000_000 // len(commit)))
    os.chown(path, 12345, 12345)
    assert main(["status", str(runs / "good")]) == 0
    assert "of uid 12345, expected at most" in " ".join(capsys.readouterr().out.split())
