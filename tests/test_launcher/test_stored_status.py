"""The stored fold: whatever becomes of the file, the status is that of all events, and an old job costs no more."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_status import DONE, RESIZED, SWAPPED, event

from launcher.history import stored
from launcher.history.events import EventLog, read_events
from launcher.history.status import JobStatus, status_of
from launcher.history.stored import FOLD_FILE, StatusReader
from launcher.supervisor.recorder import Recorder

NOW_S = 1000.0
DEEP = '{"a":' * 100_000
FAILING = [
    *SWAPPED,
    *(event(41 + step, "problem", what="flush failed", failed="s3", attempt=1, step=step) for step in (20, 20, 30)),
    event(60, "backoff", seconds=30.0),
    event(61, "takeover", node="n9", term=4),
    event(62, "commit", tier="s3", step=30, attempt=1, term=3),  # of the supervisor that was taken over from
]


def lines_of(events: list[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(each).encode() + b"\n" for each in events]


def all_read(folder: Path) -> JobStatus:
    return status_of(read_events(folder / "events.jsonl"), NOW_S)


def store(folder: Path) -> None:
    StatusReader(folder).store()


@pytest.mark.parametrize("events", [DONE, RESIZED, FAILING], ids=["done", "resized", "failing"])
def test_wherever_the_fold_was_stored_the_status_is_that_of_all_events(
    events: list[dict[str, Any]], tmp_path: Path
) -> None:
    lines = lines_of(events)
    for cut in range(len(lines) + 1):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / "events.jsonl").write_bytes(b"".join(lines[:cut]))
        store(folder)
        followed = StatusReader(folder)
        followed.status()
        with (folder / "events.jsonl").open("ab") as file:
            file.write(b"".join(lines[cut:]))
        assert StatusReader(folder).status(NOW_S) == followed.status(NOW_S) == all_read(folder)


def test_events_before_the_fold_are_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    many = [event(19 + step, "commit", attempt=0, tier="memory", step=10 + step) for step in range(200)]
    path.write_bytes(b"".join(lines_of([*SWAPPED[:6], *many])))
    store(tmp_path)
    told = all_read(tmp_path)
    unreadable = len(path.read_bytes()) - 8192
    with path.open("r+b") as file:
        file.write(b"?" * unreadable)
    assert StatusReader(tmp_path).status(NOW_S) == told


@settings(max_examples=60)
@given(st.data())
def test_a_damaged_or_shortened_fold_is_as_good_as_none(data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "events.jsonl").write_bytes(b"".join(lines_of(DONE)))
        store(folder)
        whole = bytearray((folder / FOLD_FILE).read_bytes())
        at = data.draw(st.integers(0, len(whole) - 1))
        if data.draw(st.booleans()):
            del whole[at:]
        else:
            whole[at] ^= data.draw(st.integers(1, 255))
        (folder / FOLD_FILE).write_bytes(whole)
        assert StatusReader(folder).status(NOW_S) == all_read(folder)


@pytest.mark.parametrize(
    "content", ["null", "[]", "{}", '{"a":' * 100_000, '{"offset": 1e999}', '{"fold": {"spans": 3}}']
)
def test_what_is_no_fold_is_as_good_as_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b"".join(lines_of(DONE)))
    (tmp_path / FOLD_FILE).write_text(content)
    assert StatusReader(tmp_path).status(NOW_S) == all_read(tmp_path)


@pytest.mark.parametrize(
    ("change", "value"),
    [("pace", {"part_s": 0}), ("is_training", True), ("start_s", 1e300), ("recent", [{"event": "fault", "time": "x"}])],
)
def test_a_forged_fold_harms_no_reader(change: str, value: object, tmp_path: Path) -> None:
    """Its owner may write a fold whose sum is right."""
    (tmp_path / "events.jsonl").write_bytes(b"".join(lines_of(DONE[:3])))
    store(tmp_path)
    content = json.loads((tmp_path / FOLD_FILE).read_text())
    content["fold"][change] = value
    content["sum"] = stored._sum(content["fold"])
    (tmp_path / FOLD_FILE).write_text(json.dumps(content))
    assert StatusReader(tmp_path).status(NOW_S) == all_read(tmp_path)


@pytest.mark.parametrize("later", [RESIZED, DONE[:2], []])
def test_a_fold_of_other_events_is_as_good_as_none(later: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(lines_of(DONE)))
    store(tmp_path)
    followed = StatusReader(tmp_path)
    followed.status()
    path.write_bytes(b"".join(lines_of(later)))
    assert StatusReader(tmp_path).status(NOW_S) == all_read(tmp_path)
    if path.stat().st_size < len(b"".join(lines_of(DONE))):
        assert followed.status(NOW_S) == all_read(tmp_path)


def test_a_fold_of_another_release_is_as_good_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "events.jsonl").write_bytes(b"".join(lines_of(DONE)))
    with monkeypatch.context() as patch:
        patch.setattr(stored, "_release", lambda: "0.0.1")
        store(tmp_path)
    written = (tmp_path / FOLD_FILE).read_bytes()
    assert StatusReader(tmp_path).status(NOW_S) == all_read(tmp_path)
    store(tmp_path)
    assert (tmp_path / FOLD_FILE).read_bytes() != written


def test_a_torn_last_line_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    whole = b"".join(lines_of(SWAPPED))
    reader = StatusReader(tmp_path)
    for end in range(len(whole) - 300, len(whole) + 1):
        path.write_bytes(whole[:end])
        assert reader.status(NOW_S) == all_read(tmp_path)


def test_sigkill_before_any_change_of_a_file_leaves_a_fold_that_is_right(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b"".join(lines_of(DONE[:6])))
    store(tmp_path)
    (tmp_path / "events.jsonl").write_bytes(b"".join(lines_of(DONE)))
    killed = 0
    while True:
        child = os.fork()
        if child == 0:
            _killed_at(killed)
            store(tmp_path)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        assert StatusReader(tmp_path).status(NOW_S) == all_read(tmp_path)
        if not os.WIFSIGNALED(status):
            break
        killed += 1
    assert os.WEXITSTATUS(status) == 0 and killed >= 2, killed


def _killed_at(moment: int) -> None:
    """Ends this process before its n-th change of a file."""
    left = moment

    def burn(*_: object) -> None:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    real = os.write
    sys.addaudithook(lambda name, _: burn() if name in ("os.rename", "os.remove") else None)
    os.write = lambda *arguments: (burn(), real(*arguments))[1]  # type: ignore[assignment, func-returns-value]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_nothing_is_written_into_another_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "_WORTH_A_WRITE_BYTES", 1)
    (tmp_path / "events.jsonl").write_bytes(b"".join(lines_of(DONE)))
    os.chown(tmp_path, 65534, 65534)
    assert StatusReader(tmp_path).status(NOW_S) == all_read(tmp_path)
    assert not (tmp_path / FOLD_FILE).exists()
    os.chown(tmp_path, 0, 0)
    assert StatusReader(tmp_path).status(NOW_S) == all_read(tmp_path)
    assert (tmp_path / FOLD_FILE).exists(), "the owner's own status has stored it"


def test_the_supervisor_stores_the_fold_now_and_then_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.supervisor.recorder.STORE_EVERY", 4)
    log = EventLog(tmp_path / "events.jsonl")
    offsets = []

    async def scene() -> None:
        recorder = Recorder(log, lambda: None, lambda: None, StatusReader(tmp_path))
        recorder.start()
        for each in DONE:
            recorder.add(each["event"], **{key: value for key, value in each.items() if key != "event"})
            await recorder.settled()
            if (tmp_path / FOLD_FILE).exists():
                offsets.append(json.loads((tmp_path / FOLD_FILE).read_text())["offset"])
        await recorder.close()

    asyncio.run(scene())
    log.close()
    assert len(set(offsets)) == len(DONE) // 4 + bool(len(DONE) % 4)
    assert offsets[-1] == (tmp_path / "events.jsonl").stat().st_size
    assert StatusReader(tmp_path).status(NOW_S) == all_read(tmp_path)
