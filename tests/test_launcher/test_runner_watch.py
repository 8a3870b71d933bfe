"""How a runner follows its node's checkpoint agent. Real agents: test_supervisor.py."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from ckpt import Board
from ckpt.agent.process.launch import command
from holdfast.base.processes import state_of
from launcher.runner import watch
from launcher.runner.watch import (
    AGENT_RESTART_TIMEOUT_S,
    AGENT_SILENCE_S,
    AGENT_START_TIMEOUT_S,
    AGENT_STOPPED_S,
    LOOK_S,
    Patience,
    Watch,
)

# Holds a process by ptrace: it lives, is not stopped in the kernel's words, and does nothing, as if it were stuck.
HOLD = """
import ctypes, os, sys
libc, pid = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
if libc.ptrace(16, pid, None, None):  # PTRACE_ATTACH
    sys.exit(os.strerror(ctypes.get_errno()))
os.waitpid(pid, 0x40000000)  # __WALL
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A node's real agent, of attempt 3."""
    ram_dir = tmp_path / "ram"
    ram_dir.mkdir(mode=0o700)
    with agent_of(ram_dir, generation=0) as process:
        yield process


@contextmanager
def agent_of(ram_dir: Path, generation: int) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {
        "HOLDFAST_RUN_ID": "run",
        "HOLDFAST_ATTEMPT": "3",
        "HOLDFAST_NODE": "n0",
        "HOLDFAST_NODES": "n0",
        "HOLDFAST_RANKS_PER_NODE": "1",
        "HOLDFAST_GENERATION": str(generation),
        "HOLDFAST_RAM_DIR": str(ram_dir),
        "HOLDFAST_CHECKPOINT": json.dumps({"namespace": "ns", "memory": {"every_steps": 1}}),
    }
    with subprocess.Popen(command(), env=environment, stderr=subprocess.DEVNULL) as process:
        yield process
        process.kill()


@contextmanager
def stuck(pid: int) -> Iterator[None]:
    """A process does nothing meanwhile."""
    pipe = subprocess.PIPE
    hold = [sys.executable, "-c", HOLD, str(pid)]
    with subprocess.Popen(hold, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as holder:
        assert holder.stdout is not None and holder.stderr is not None
        if holder.stdout.readline() != "held\n":
            pytest.skip(f"ptrace: {holder.stderr.read()}")  # Yama allows it to parents alone
        try:
            assert state_of(pid) == "t"
            yield
        finally:
            holder.communicate()


async def joined(ram_dir: Path, told: list[dict[str, Any]]) -> Watch:
    """A watch that follows the agent."""
    found = Watch(3, 0, ram_dir, told.append, Patience())
    await found.rejoin(0)
    assert not lost(told)
    return found


def lost(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was told of a lost agent."""
    return [message for message in told if message["op"] == "agent_lost"]


def test_an_agent_that_answers_is_kept_however_often_it_is_asked(
    tmp_path: Path, agent: subprocess.Popen[bytes]
) -> None:
    async def scenario() -> None:
        told: list[dict[str, Any]] = []
        found = await joined(tmp_path / "ram", told)
        for _ in range(int(3 * AGENT_STOPPED_S / LOOK_S)):
            found.look_after_agent()
            while found._unanswered:
                await asyncio.sleep(0.001)
        assert not lost(told)
        found.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_the_section_with_the_longest_limit_is_told_of_workers_that_still_train(
    tmp_path: Path, agent: subprocess.Popen[bytes]
) -> None:
    async def scenario() -> None:
        found = await joined(tmp_path / "ram", [])
        board = Board.open(tmp_path / "ram")
        for rank in (0, 1, 2):
            board.write_row(rank, rank=rank, attempt=3, boundary=1, step=1)
        assert found.section() == "step"
        board.set_section(0, "checkpoint")
        board.set_section(1, "evaluation")
        assert found.section() == "evaluation"
        board.leave(1)
        assert found.section() == "checkpoint"
        found.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_an_agent_that_is_to_make_way_and_listens_yet_is_not_taken_for_the_one_that_takes_its_place(
    tmp_path: Path, agent: subprocess.Popen[bytes]
) -> None:
    async def scenario() -> None:
        told: list[dict[str, Any]] = []
        found = await joined(tmp_path / "ram", told)
        found.leave_agent()
        rejoining = asyncio.create_task(found.rejoin(1))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not rejoining.done()
        agent.kill()
        agent.wait()
        with agent_of(tmp_path / "ram", generation=1):
            await rejoining
            assert not lost(told)
            found.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize(
    ("is_stopped", "patience_s", "how"),
    [(True, AGENT_STOPPED_S, "is stopped"), (False, AGENT_SILENCE_S, "does not answer")],
)
def test_an_agent_that_does_nothing_is_lost_after_so_many_looks(
    tmp_path: Path, agent: subprocess.Popen[bytes], is_stopped: bool, patience_s: float, how: str
) -> None:
    """It lives and its socket listens. What the kernel says of it decides how long."""
    told: list[dict[str, Any]] = []

    async def looks_until_lost() -> int:
        found = await joined(tmp_path / "ram", told)
        if is_stopped:
            agent.send_signal(signal.SIGSTOP)
            until(lambda: state_of(agent.pid) == "T", "the stop")
            looks = await look(found)
        else:
            with stuck(agent.pid):
                looks = await look(found)
        found.close()
        return looks

    async def look(found: Watch) -> int:
        looks = 0
        while not lost(told):
            found.look_after_agent()
            looks += 1
            await asyncio.sleep(0)
        return looks

    assert asyncio.run(asyncio.wait_for(looks_until_lost(), 60)) == int(patience_s / LOOK_S) + 1
    (told_once,) = lost(told)
    assert told_once["generation"] == 0 and f"its process {agent.pid} {how}" in told_once["reason"]


def test_agents_that_have_come_up_before_are_not_waited_for_as_long() -> None:
    patience = Patience()
    assert patience.limit_s == AGENT_START_TIMEOUT_S
    patience.came_up(0.3)
    assert patience.limit_s == AGENT_RESTART_TIMEOUT_S
    patience.came_up(5.0)
    assert patience.limit_s == 50.0
    patience.came_up(20.0)
    assert patience.limit_s == AGENT_START_TIMEOUT_S


def test_an_agent_that_does_not_come_up_again_is_lost_and_the_next_has_more_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "AGENT_RESTART_TIMEOUT_S", 0.1)
    patience = Patience()
    patience.came_up(0.01)
    told: list[dict[str, Any]] = []
    asyncio.run(asyncio.wait_for(Watch(3, 0, tmp_path, told.append, patience).run(), AGENT_START_TIMEOUT_S / 2))
    assert [(message["op"], message["attempt"]) for message in told] == [("agent_lost", 3)]
    assert "agent-3.sock: no connection (No such file or directory)" in told[0]["reason"]
    assert told[0]["reason"].endswith("; tried for 0.1 s")
    assert patience.limit_s == AGENT_START_TIMEOUT_S
