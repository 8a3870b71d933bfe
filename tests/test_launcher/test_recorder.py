"""A job folder whose file system hangs: the supervisor goes on, and the record is whole and in order afterwards."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from talkers import Talkers, ended, heartbeat, supervised

from launcher.connections.channel import Channel, Message
from launcher.history import events as events_module
from launcher.history.events import EventLog, read_events
from launcher.history.stored import StatusReader
from launcher.leadership.lease import Superseded
from launcher.supervisor.recorder import Recorder

DEADLINE_S = 20.0


class HeardWhileItHangs(Talkers):
    """The runners' hearts beat until the supervisor answers one while a write hangs; then it hangs no more."""

    hangs, goes_on = threading.Event(), threading.Event()
    answered = False

    def started(self, node: str, channel: Channel, attempt: dict[str, Any]) -> None:
        async def beat() -> None:
            while not self.goes_on.is_set():
                channel.send(heartbeat(step=7, **attempt))
                await asyncio.sleep(0.1)
            channel.send(ended(attempt))

        self._tasks.append(asyncio.create_task(beat()))

    def heard(self, channel: Channel, message: Message) -> None:
        if message["op"] == "ack" and self.hangs.is_set():
            HeardWhileItHangs.answered = True
            self.goes_on.set()


def test_runners_are_heard_while_the_record_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def write(fd: int, data: bytes) -> int:
        if b"workers_started" in data and not HeardWhileItHangs.hangs.is_set():
            HeardWhileItHangs.hangs.set()
            HeardWhileItHangs.goes_on.wait(DEADLINE_S)
        return real(fd, data)

    monkeypatch.setattr(events_module.os, "write", write)
    outcome, events = supervised(tmp_path, HeardWhileItHangs)
    HeardWhileItHangs.goes_on.set()
    assert HeardWhileItHangs.answered and outcome.name == "done", outcome
    names = [event["event"] for event in events if event["event"] != "node_ready"]
    assert names == ["job_start", "attempt_start", "workers_started", "attempt_end", "job_end"]


def test_nothing_is_written_once_another_supervisor_rules(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    rules, told = True, []

    def check() -> None:
        if not rules:
            raise Superseded("another rules")

    async def scene() -> None:
        nonlocal rules
        recorder = Recorder(log, check, lambda: told.append(True), StatusReader(tmp_path))
        recorder.start()
        recorder.add("job_start")
        await recorder.settled()
        rules = False
        recorder.add("fault", kind="hang")
        await recorder.settled()
        rules = True
        recorder.add("job_end")
        await recorder.close()

    asyncio.run(scene())
    log.close()
    assert [event["event"] for event in read_events(tmp_path / "events.jsonl")] == ["job_start"]
    assert told == [True]


class LosesItsTerms(Talkers):
    """Somebody removes the job's terms while it trains."""

    def started(self, node: str, channel: Channel, attempt: dict[str, Any]) -> None:
        if node == self.nodes[-1]:
            shutil.rmtree(self._job_dir / "terms")
        channel.send(ended(attempt))


def test_a_job_whose_terms_are_removed_ends_well(tmp_path: Path) -> None:
    outcome, events = supervised(tmp_path, LosesItsTerms)
    assert outcome.name == "done" and events[-1]["event"] == "job_end"


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_job_whose_folder_is_removed_ends_at_once_and_says_so(tmp_path: Path, is_made_again: bool) -> None:
    """Its workers train on: nothing else would end it."""

    class Trains(Talkers):
        def started(self, node: str, channel: Channel, attempt: dict[str, Any]) -> None:
            if node == self.nodes[-1]:
                shutil.rmtree(self._job_dir)
                if is_made_again:
                    self._job_dir.mkdir()

    outcome, _ = supervised(tmp_path, Trains)
    assert outcome.name == "internal" and outcome.reason.endswith("removed while the job ran; submit the job again")


def test_a_job_whose_folder_is_removed_between_attempts_ends_at_once(tmp_path: Path) -> None:
    class Fails(Talkers):
        def started(self, node: str, channel: Channel, attempt: dict[str, Any]) -> None:
            if node == self.nodes[-1]:
                shutil.rmtree(self._job_dir)
                failure = {"rank": 0, "exit_code": -9, "time": 0.0, "error": None, "traceback": None}
                channel.send(ended(attempt, ok=False, failures=[failure]))

    outcome, _ = supervised(tmp_path, Fails)
    assert outcome.name == "internal" and outcome.reason.endswith("removed while the job ran; submit the job again")
    assert not (tmp_path / "job").exists()
