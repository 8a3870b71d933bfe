"""The batch script's process and the supervisor that is its child."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.core.inputs import Input, Terminated
from launcher.core.outcomes import JobOutcome
from launcher.history.outcome import Outcome
from launcher.leadership.terms import Term, claim
from launcher.supervisor import batch_process
from launcher.supervisor.batch_process import BatchProcess
from launcher.supervisor.signals import signals_into


def test_a_sigterm_that_comes_when_the_supervisor_is_done_does_not_take_its_outcome_along(tmp_path: Path) -> None:
    """As Slurm sends it right after the requeue; whoever followed would look for runners that have been let go."""
    claim(tmp_path, Term(number=1, run_id="run", node="n1", host="n1", port=7, pid=1))

    async def supervise() -> None:
        with signals_into(asyncio.Queue()):
            pass

    def work(after: int | None) -> Outcome:
        asyncio.run(supervise())
        if after is None:
            for number in (signal.SIGTERM, signal.SIGINT):
                os.kill(os.getpid(), number)
        return Outcome(name=JobOutcome.STOPPED, step=after, reason="", seconds=1.0)

    assert BatchProcess(work, tmp_path).run().step is None


def outcome(name: str, step: int | None = None) -> Outcome:
    return Outcome(name=JobOutcome(name), step=step, reason="", seconds=1.0)


def test_a_folder_that_cannot_be_read_here_does_not_end_a_job_that_another_node_supervises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(tmp_path, Term(number=1, run_id="run", node="n2", host="n2", port=7, pid=1))
    answers = iter([b"1", OSError(errno.ESTALE, "stale"), OSError(errno.EIO, "broken"), b"2"])
    read_bytes = Path.read_bytes

    def read(path: Path) -> bytes:
        if path.name != "lease":
            return read_bytes(path)
        answer = next(answers, None)
        if answer is None:
            outcome("done", step=9).write(tmp_path, "run")
        elif isinstance(answer, OSError):
            raise answer
        return answer or b"3"

    def listed(folder: Path) -> list[str]:
        monkeypatch.undo()
        monkeypatch.setattr(Path, "read_bytes", read)
        raise OSError(errno.ESTALE, "stale")

    monkeypatch.setattr(os, "listdir", listed)
    assert BatchProcess(lambda _: outcome("superseded"), tmp_path).run().step == 9


def test_a_supervisor_that_always_fails_says_why_and_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(batch_process, "_ORPHANED_S", 0.0)

    def work(after: int | None) -> Outcome:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    outcome("done", step=9).write(tmp_path, "run")  # of an earlier run in this folder
    ended = BatchProcess(work, tmp_path).run()
    assert (ended.name, ended.exit_code) == ("internal", 1)
    assert ended.reason.startswith("5 supervisors in a row are lost here, the last one has failed")
    out, err = capfd.readouterr()
    assert out.count("in a row)") == 5 and "Disk quota exceeded" in err


@pytest.mark.parametrize(("lived_s", "deaths"), [(0.0, 1), (math.inf, 2)])
def test_a_killed_supervisor_is_followed_at_once_and_counts_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], lived_s: float, deaths: int
) -> None:
    monkeypatch.setattr(batch_process, "_LIVED_S", lived_s)
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waits"))

    def work(after: int | None) -> Outcome:
        number = after or 0
        if number == 2:
            return outcome("done", step=number)
        claim(tmp_path, Term(number=number + 1, run_id="run", node="n1", host="n1", port=7, pid=1))
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    assert BatchProcess(work, tmp_path).run().step == 2
    assert f"was killed by signal 9 ({deaths} of 5 in a row)" in capfd.readouterr().out.splitlines()[-1]


def test_signals_that_are_given_back_end_nothing_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []
    give = signal.signal

    def note(number: int, handler: Any) -> Any:
        given.append(handler)
        return give(number, handler)

    async def supervise() -> bool:
        inbox: asyncio.Queue[Input] = asyncio.Queue()
        with signals_into(inbox):
            os.kill(os.getpid(), signal.SIGTERM)
            assert await asyncio.wait_for(inbox.get(), 30) == Terminated()
            monkeypatch.setattr(signal, "signal", note)
        return True

    before = give(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert asyncio.run(supervise())
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN in given
        assert given.count(signal.SIG_DFL) == 2  # USR1 and USR2 were so before
    finally:
        give(signal.SIGTERM, before)
