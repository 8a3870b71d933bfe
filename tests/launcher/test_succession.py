"""A runner that finds no supervisor: it fences its node, and in the end hands the job back."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest

from launcher.runner import runner as runner_module
from launcher.runner.config import RunnerConfig
from launcher.runner.runner import Runner
from launcher.runner.succession import Succession


def test_a_runner_without_a_supervisor_hands_the_job_back_and_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "LEAVE_S", 1.0)
    handed_back_s: list[float] = []

    async def hand_back(succession: Succession) -> None:
        handed_back_s.append(time.monotonic())

    monkeypatch.setattr(Succession, "abandon", hand_back)
    (tmp_path / "secret").write_text("00")
    with socket.socket() as nobody:  # bound and not listening: every connection is refused
        nobody.bind(("127.0.0.1", 0))
        config = RunnerConfig(
            run_id="test-succession",
            node="n1",
            ram_dir=tmp_path / "ram",
            job_dir=tmp_path,
            host="127.0.0.1",
            port=nobody.getsockname()[1],
            parent_pid=None,
        )
        begun_s = time.monotonic()
        asyncio.run(Runner(config).run())
    assert len(handed_back_s) == 1 and handed_back_s[0] - begun_s >= 1.0
