"""The batch script's process and the supervisor that is its child."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from launcher.core.inputs import Input, Terminated
from launcher.leadership.terms import Term, claim
from launcher.outcome import Outcome
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
        return Outcome(name="stopped", step=after, exit_code=0, reason="", seconds=1.0)

    assert BatchProcess(work, tmp_path).run().step is None


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
