"""Processes that a script forks: Slurm's signals are for the rank alone, and the rank can end them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

# As a DataLoader with num_workers=1 leaves it: a daemon that waits for ever when its rank is done.
SCRIPT = """
import multiprocessing, os, signal, sys, time
from launcher.runner.step_signals import leave_signals_to_the_rank

def heard(number, frame):
    print(os.getpid(), "heard", signal.Signals(number).name, flush=True)

def stuck():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as torch has it in a DataLoader's worker
    print("child", os.getpid(), flush=True)
    while True:
        time.sleep(1)

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as script.py has it
    if "early" in sys.argv:  # before the child has run any code of ours
        os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGUSR1))
    leave_signals_to_the_rank()
    if "handler" in sys.argv:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, heard)
    child = multiprocessing.get_context(sys.argv[1]).Process(target=stuck, daemon=True)
    child.start()
    sys.stdin.readline()
    print("alive" if child.is_alive() else "dead", flush=True)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


@contextmanager
def start(script: Path, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A rank; killed if it does not end by itself."""
    pipe = subprocess.PIPE
    env = os.environ | {"PYTHONPATH": os.getcwd()}
    with subprocess.Popen(
        [sys.executable, script, *args], stdin=pipe, stdout=pipe, text=True, env=env, start_new_session=True
    ) as rank:
        try:
            yield rank
        finally:
            with suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)


@pytest.mark.parametrize("handler", [(), ("handler",)])
def test_signals_for_all_processes_are_heard_by_the_rank_alone(script: Path, handler: tuple[str, ...]) -> None:
    """Whether it handles them or leaves them be."""
    with start(script, "fork", *handler) as rank:
        assert rank.stdout is not None
        child = int(rank.stdout.readline().split()[1])
        numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
        said = []
        for number in numbers:
            os.kill(child, number)
            if handler:
                os.kill(rank.pid, number)
                said.append(rank.stdout.readline())
        rest, _ = rank.communicate("\n", timeout=60)
    assert said == ([f"{rank.pid} heard {number.name}\n" for number in numbers] if handler else [])
    assert rest == "alive\n"


def test_a_signal_that_comes_while_a_process_is_being_forked_is_not_heard_there(script: Path) -> None:
    with start(script, "fork", "handler", "early") as rank:
        assert rank.stdout is not None and rank.stdout.readline().startswith("child ")
        rest, _ = rank.communicate("\n", timeout=60)
    assert rest == "alive\n"


@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver"])
def test_a_rank_that_is_done_does_not_wait_for_a_child_that_is_stuck(script: Path, way: str) -> None:
    """multiprocessing asks it to end by the SIGTERM that it ignores, and waits for it without a limit."""
    with start(script, way) as rank:
        assert rank.stdout is not None
        child = int(rank.stdout.readline().split()[1])
        rank.communicate("\n", timeout=60)
    assert rank.returncode == 0
    assert not Path(f"/proc/{child}").exists()


PROGRAM = """
import os, subprocess, sys
from launcher.runner.step_signals import leave_signals_to_the_rank

SERVER = "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(7)); print('up', flush=True); signal.pause()"
leave_signals_to_the_rank()
server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, preexec_fn=os.setpgrp)
server.stdout.readline()
server.terminate()
print("ended with", server.wait(), flush=True)
"""


def test_a_program_that_a_script_starts_hears_its_sigterm(tmp_path: Path) -> None:
    """What multiprocessing's children block is not inherited by programs: a server is ended as its author meant it."""
    path = tmp_path / "script.py"
    path.write_text(PROGRAM)
    with start(path) as rank:
        said, _ = rank.communicate(timeout=60)
    assert said == "ended with 7\n"
