"""Processes that a script starts: Slurm's signals are for the rank alone, and the rank can end them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from holdfast.base.processes import session_pids

WAYS = ("fork", "spawn", "forkserver")

# As a DataLoader with num_workers=1 leaves it: a daemon that waits for ever when its rank is done.
SCRIPT = """
import multiprocessing, os, signal, sys, time
from launcher.runner.step_signals import leave_signals_to_the_rank

def heard(number, frame):
    print(os.getpid(), "heard", signal.Signals(number).name, flush=True)

def stuck(say_up=lambda: None):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as torch has it in a DataLoader's worker
    print("child", os.getpid(), flush=True)
    say_up()
    while True:
        time.sleep(1)

def nest():
    fork = multiprocessing.get_context("fork")
    up = fork.Event()
    fork.Process(target=stuck, args=(up.set,), daemon=True).start()
    up.wait()

if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # as script.py and the warm process have it
    if "early" in sys.argv:  # before the child has run any code of ours
        os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGUSR1))
    leave_signals_to_the_rank()
    if "handler" in sys.argv:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, heard)
    start = multiprocessing.get_context(sys.argv[1]).Process
    if "nested" in sys.argv:
        child = start(target=nest)
        child.start()
        child.join()
    else:
        child = start(target=stuck, daemon=True)
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
@pytest.mark.parametrize("way", WAYS)
def test_signals_for_all_processes_are_heard_by_the_rank_alone(
    script: Path, way: str, handler: tuple[str, ...]
) -> None:
    """Whether it handles them or leaves them be. Its helpers are spared too: a fork server, a resource tracker."""
    with start(script, way, *handler) as rank:
        assert rank.stdout is not None
        rank.stdout.readline()
        everybody = set(session_pids(rank.pid))
        said = []
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            for pid in everybody:
                os.kill(pid, number)
            if handler:
                said.append(rank.stdout.readline())
        left = set(session_pids(rank.pid))
        rest, _ = rank.communicate("\n", timeout=60)
    names = ("SIGTERM", "SIGUSR1", "SIGUSR2") if handler else ()
    assert said == [f"{rank.pid} heard {name}\n" for name in names]
    assert left == everybody and rest == "alive\n"


def test_a_signal_that_comes_while_a_process_is_being_forked_is_not_heard_there(script: Path) -> None:
    with start(script, "fork", "handler", "early") as rank:
        assert rank.stdout is not None and rank.stdout.readline().startswith("child ")
        rest, _ = rank.communicate("\n", timeout=60)
    assert rest == "alive\n"


@pytest.mark.parametrize("nested", [(), ("nested",)])
@pytest.mark.parametrize("way", WAYS)
def test_a_rank_that_is_done_does_not_wait_for_a_child_that_is_stuck(
    script: Path, way: str, nested: tuple[str, ...]
) -> None:
    """multiprocessing asks it to end by the SIGTERM that it ignores, and waits for it without a limit. The same holds
    for a process of the rank's that has started it."""
    with start(script, way, *nested) as rank:
        assert rank.stdout is not None
        child = int(rank.stdout.readline().split()[1])
        rank.communicate("\n", timeout=60)
    assert rank.returncode == 0
    assert not Path(f"/proc/{child}").exists()


PROGRAM = """
import os, signal, subprocess, sys
from launcher.runner.step_signals import leave_signals_to_the_rank

SERVER = "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(7)); print('up', flush=True); signal.pause()"
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as script.py has it
leave_signals_to_the_rank()
argv = [sys.executable, "-c", SERVER] if sys.argv[1] == "handles it" else ["sh", "-c", "echo up; exec sleep 600"]
preexec_fn = os.setpgrp if "preexec_fn" in sys.argv else None
server = subprocess.Popen(argv, stdout=subprocess.PIPE, preexec_fn=preexec_fn)
server.stdout.readline()
server.terminate()
print("ended with", server.wait(), flush=True)
"""


@pytest.mark.parametrize("preexec_fn", [(), ("preexec_fn",)])
@pytest.mark.parametrize(("server", "code"), [("handles it", 7), ("does not", -9)])
def test_a_program_that_a_script_starts_can_be_terminated(
    tmp_path: Path, server: str, code: int, preexec_fn: tuple[str, ...]
) -> None:
    """What multiprocessing's children block is not inherited by programs: a server is ended as its author meant it.
    That its rank ignores SIGTERM is: a program that does not handle it would not hear it."""
    path = tmp_path / "script.py"
    path.write_text(PROGRAM)
    with start(path, server, *preexec_fn) as rank:
        said, _ = rank.communicate(timeout=60)
    assert said == f"ended with {code}\n"
