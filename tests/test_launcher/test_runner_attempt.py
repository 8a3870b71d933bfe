"""What a runner ends of an attempt: the checkpoint agents of its own node, wherever they come from."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckpt.agent.process.launch import PID_FILE
from launcher.runner.attempt import NodeAttempt
from launcher.runner.config import RunnerConfig


def agent(
    ram_dir: Path, run_id: str = "run", role: str = "agent", attempt: int = 1, restart_count: int = 0
) -> subprocess.Popen[bytes]:
    """A process that has left its file as agents do."""
    env = {"HOLDFAST_RUN_ID": run_id, "HOLDFAST_ROLE": role, "HOLDFAST_ATTEMPT": str(attempt)}
    env["HOLDFAST_RESTART_COUNT"] = str(restart_count)
    code = "print(flush=True); import time; time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], env=os.environ | env, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline()
    (ram_dir / PID_FILE.format(pid=process.pid)).touch()
    return process


def test_agents_of_other_attempts_end_and_what_else_has_their_numbers_lives(tmp_path: Path) -> None:
    config = RunnerConfig(
        run_id="run", node="n", ram_dir=tmp_path, job_dir=tmp_path, host="localhost", port=1, parent_pid=None
    )
    old, coming, others, script, later = (
        agent(tmp_path),
        agent(tmp_path, attempt=2),
        agent(tmp_path, run_id="other"),
        agent(tmp_path, role=""),
        agent(tmp_path, restart_count=1),
    )
    gone = tmp_path / PID_FILE.format(pid=2**22 + 1)
    gone.touch()

    async def end() -> list[int]:
        return await NodeAttempt(config, print, lambda: None).end(next_attempt=2)

    assert asyncio.run(end()) == []
    assert old.wait(5) == -9
    assert [process.poll() for process in (coming, others, script, later)] == [None] * 4
    left = {PID_FILE.format(pid=pid) for pid in (old.pid, coming.pid, later.pid)}
    assert {file.name for file in tmp_path.iterdir()} <= left, "files of what is no agent of the run are removed"
    for process in (coming, others, script, later):
        process.kill()
        process.communicate()


def test_the_end_of_workers_says_whether_they_had_been_asked_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Workers:
        def __init__(self, report: Callable[[dict[str, Any]], None]) -> None:
            self.report = report

    made: list[Workers] = []
    monkeypatch.setattr("launcher.runner.attempt.Workers", lambda report: made.append(Workers(report)))
    config = RunnerConfig(
        run_id="run", node="n", ram_dir=tmp_path, job_dir=tmp_path, host="localhost", port=1, parent_pid=None
    )
    sent: list[dict[str, Any]] = []
    attempt = NodeAttempt(config, sent.append, lambda: None)
    made[0].report({"event": "ended", "ok": True})
    attempt.stop(terminated=True)
    made[0].report({"event": "ended", "ok": True})
    assert [message["stopped"] for message in sent] == [False, True]


def test_an_attempt_that_comes_while_another_one_is_ended_waits_for_that_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor that was cut off kills an attempt; the next supervisor kills it too, and starts another one."""

    class Workers:
        ended = asyncio.Event()
        kills = 0

        async def kill(self, timeout_s: float, on_slow: Any) -> list[int]:
            self.kills += 1
            await self.ended.wait()
            return []

        def start(self, task: dict[str, Any]) -> None:
            pass

    workers = Workers()
    monkeypatch.setattr("launcher.runner.attempt.Workers", lambda report: workers)
    config = RunnerConfig(
        run_id="run", node="n", ram_dir=tmp_path, job_dir=tmp_path, host="localhost", port=1, parent_pid=None
    )
    coming = agent(tmp_path, attempt=2)
    sent: list[dict[str, Any]] = []

    async def supervisors() -> None:
        attempt = NodeAttempt(config, sent.append, lambda: None)
        attempt.number = 1
        asked = [asyncio.create_task(attempt.kill(1)), asyncio.create_task(attempt.kill(1))]
        start = asyncio.create_task(attempt.end(next_attempt=2))
        while not workers.kills and not any(task.done() for task in asked):
            await asyncio.sleep(0)
        done, _ = await asyncio.wait({*asked, start}, timeout=0.1)
        assert not done and not sent and workers.kills == 1, "none may pass before the first has ended the attempt"
        workers.ended.set()
        await asyncio.gather(*asked, start)

    asyncio.run(supervisors())
    assert [(message["op"], message["left"]) for message in sent] == [("killed", [])] * 2
    assert coming.poll() is None, "another supervisor has started it for the next attempt"
    coming.kill()
    coming.communicate()
