"""The single record: every whole line is read, a torn one is not."""

from __future__ import annotations

import ast
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import LauncherError
from launcher.history.events import EventLog, read_events
from launcher.history.fields import COMMON, EVENTS, describe
from launcher.history.wording import Facts

ROOT = Path(__file__).resolve().parents[2]


def test_events_are_read_back_in_order(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    written = [
        log.append("attempt_start", attempt=0, nodes=["a"], rung="start"),
        log.append("commit", step=7, tier="memory"),
    ]
    log.close()
    assert read_events(tmp_path / "events.jsonl") == written
    assert written[0]["nodes"] == ["a"] and written[0]["step"] is None
    assert written[1]["step"] == 7 and written[1]["tier"] == "memory"


def test_no_file_is_no_events(tmp_path: Path) -> None:
    assert read_events(tmp_path / "events.jsonl") == []


def test_file_is_private(tmp_path: Path) -> None:
    EventLog(tmp_path / "events.jsonl").close()
    assert os.stat(tmp_path / "events.jsonl").st_mode & 0o777 == 0o600


@given(st.integers(min_value=1, max_value=1000))
def test_torn_last_line_costs_only_itself(lost: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        log = EventLog(path)
        first = log.append("job_start", run_id="r")
        whole_bytes = path.stat().st_size
        log.append("attempt_start", attempt=0, nodes=["a"], rung="start")
        log.close()
        os.truncate(path, max(whole_bytes + 1, path.stat().st_size - lost))
        log = EventLog(path)
        last = log.append("job_start", run_id="r")
        log.close()
        events = read_events(path)
        assert (events[0], events[-1]) == (first, last)
        assert all(event["event"] in ("job_start", "attempt_start") for event in events)


def test_lines_of_somebody_else_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'[]\n{"event": 3}\n\xff\n{"event": "job_start"}\n{"event": "job_start", "time": 1}\n')
    assert read_events(path) == [{"event": "job_start", "time": 1}]


def test_second_writer_is_refused(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    with pytest.raises(LauncherError, match="another supervisor"):
        EventLog(tmp_path / "events.jsonl")
    log.close()
    EventLog(tmp_path / "events.jsonl").close()


def test_events_that_cannot_be_written_go_out_later_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk takes half a line, then nothing; then there is space again."""
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    written = [log.append("job_start", run_id="r")]
    real, space = os.write, [20]

    def full(fd: int, data: bytes) -> int:
        if not space[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken, space[0] = real(fd, data[: space[0]]), 0
        return taken

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        written += [log.append("fault", kind="hang", step=step) for step in range(3)]
        with pytest.raises(OSError, match="No space left"):
            log.flush()
        assert read_events(path) == written[:1]
    written.append(log.append("job_end", outcome="done"))
    log.close()
    assert read_events(path) == written


def test_what_a_supervisor_still_writes_after_its_succession_does_not_count(tmp_path: Path) -> None:
    """It had looked for a higher term, was stopped, and wrote when it woke up."""
    path = tmp_path / "events.jsonl"
    stopped, successor = EventLog(path, lock=False), EventLog(path, lock=False)
    stopped.term, successor.term = 1, 2
    before = stopped.append("attempt_end", attempt=0)
    taken = successor.append("takeover")
    stopped.append("fault", attempt=0, kind="hang")
    after = successor.append("attempt_end", attempt=0)
    stopped.append("attempt_end", attempt=1)
    assert read_events(path) == [before, taken, after]
    for log in (stopped, successor):
        log.close()


def test_whatever_is_recorded_has_the_fields_of_the_table() -> None:
    """Of the events that are recorded by name; also those with fields that come from elsewhere."""
    found = set()
    for path in (ROOT / "launcher").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args):
                continue
            name = call.args[0]
            if call.func.attr not in ("record", "append", "add") or not isinstance(name, ast.Constant):
                continue
            if call.func.attr != "record" and name.value not in EVENTS:
                continue
            given = {keyword.arg for keyword in call.keywords if keyword.arg}
            assert given <= {*COMMON, *EVENTS[name.value].fields}, f"{path.name}:{call.lineno}"
            found.add(name.value)
    assert {"attempt_start", "fault", "node_out", "takeover", "job_end", "resize"} <= found


class _ReadFacts(Facts):
    """An event that notes which of its fields are read."""

    def __init__(self, event: dict[str, Any]) -> None:
        super().__init__(event)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


@pytest.mark.parametrize("name", EVENTS)
def test_the_words_and_the_colour_of_an_event_come_from_its_own_fields(name: str) -> None:
    kind, phrases = EVENTS[name], set(Facts({}))
    example = {"number": 1.5, "whole number": 2, "text": "x", "true or false": True, "list of names": ["a"]}
    full = {key: example.get(each.words, []) for key, each in {**COMMON, **kind.fields}.items()}
    for fields in (full, {}, *({key: value} for key, value in full.items())):
        facts = _ReadFacts({"event": name, **fields})
        for text in (kind.words, kind.style):
            shown = text.format_map(facts) if isinstance(text, str) else text(facts)
            assert shown and "\n" not in shown
        assert facts.read <= {*COMMON, *kind.fields, *phrases}
    if kind.required:
        assert "None" not in describe({"event": name, "time": 1.0, **full})


def test_an_event_of_another_version_is_shown_by_its_name() -> None:
    assert describe({"event": "moved", "node": "n1", "step": 3, "reason": "a\nb"}) == "moved on n1 at step 3: a"
