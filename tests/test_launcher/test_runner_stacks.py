"""Stacks of real processes: of one that runs, one that is stopped, one that handles no such signal."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import until

from holdfast.base.processes import state_of
from launcher.runner.activity import Activity
from launcher.runner.stacks import STACK_SIGNAL, Worker, dump, main_thread

ANSWERING = """
import threading
from launcher.runner.stacks import answer_stack_requests
answer_stack_requests()
lock = threading.Lock()
def deadlock():
    with lock:
        print("up", flush=True)
        lock.acquire()
threading.Thread(target=threading.Event().wait, daemon=True).start()
deadlock()
"""
DEAF = "import time; print('up', flush=True); time.sleep(600)"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], int]]:
    processes = []

    def start(script: str) -> int:
        (tmp_path / "train.py").write_text(script)
        argv = [sys.executable, tmp_path / "train.py"]
        root = str(Path(__file__).resolve().parents[2])
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": root})
        processes.append(process)
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        return process.pid

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def stack_of(pid: int, folder: Path) -> tuple[dict[str, object], str]:
    (report,) = asyncio.run(dump([Worker(rank=3, pid=pid, boundary=7)], folder))
    return report, (folder / "rank-3.stack").read_text()


def test_deadlocked_process_tells_the_line(start: Callable[[str], int], tmp_path: Path) -> None:
    report, text = stack_of(start(ANSWERING), tmp_path)
    frames = report["frames"]
    assert isinstance(frames, list) and frames[0].startswith(f"deadlock ({tmp_path}/train.py:")
    assert "rank 3" in text and "7 step boundaries passed" in text and text.count("hread 0x") == 2
    assert (tmp_path / "rank-3.stack").stat().st_mode & 0o077 == 0
    _, text = stack_of(start(ANSWERING), tmp_path)
    assert text.count("=== ") == 2, "a second dump is added to the first"


def test_a_folder_that_does_not_answer_costs_only_the_file(start: Callable[[str], int], tmp_path: Path) -> None:
    pid, folder = start(DEAF), tmp_path / "log"
    folder.mkdir()
    os.mkfifo(folder / "rank-0.stack")  # whoever opens it to write waits for a reader
    until(lambda: state_of(pid) == "S", "the process asleep")

    async def facts() -> list[dict[str, object]]:
        found = await dump([Worker(rank=0, pid=pid, boundary=4)], folder)
        os.close(os.open(folder / "rank-0.stack", os.O_RDONLY | os.O_NONBLOCK))
        return found

    (found,) = asyncio.run(facts())
    assert (found["rank"], found["state"], found["boundary"]) == (0, "S", 4)


def test_stopped_process_is_described_by_the_kernel(start: Callable[[str], int], tmp_path: Path) -> None:
    pid = start(ANSWERING)
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state_of(pid) == "T", "the stop")
    report, text = stack_of(pid, tmp_path)
    assert report["state"] == "T" and "T (stopped)" in text


def test_process_that_does_not_handle_the_signal_is_spared(start: Callable[[str], int], tmp_path: Path) -> None:
    pid = start(DEAF)
    _, text = stack_of(pid, tmp_path)
    assert state_of(pid) in ("R", "S") and "wchan" in text


def test_process_that_is_gone_is_said_to_be_so(tmp_path: Path) -> None:
    report, text = stack_of(2**22 + 1, tmp_path)
    assert (report["state"], report["frames"]) == ("", []) and "gone" in text


def test_folder_that_cannot_be_written_costs_only_the_file(start: Callable[[str], int], tmp_path: Path) -> None:
    (report,) = asyncio.run(dump([Worker(rank=0, pid=start(ANSWERING), boundary=None)], tmp_path / "missing"))
    assert report["frames"]


def test_signal_is_one_that_others_leave_alone() -> None:
    assert signal.SIGRTMIN + 8 < STACK_SIGNAL < signal.SIGRTMAX


def test_main_thread_of_py_spy_is_found_by_its_name() -> None:
    text = (
        "Process 12: python train.py\n\n"
        'Thread 13 (idle): "Thread-1"\n    wait (threading.py:320)\n'
        'Thread 12 (idle): "MainThread"\n    deadlock (/job/train.py:8)\n    <module> (/job/train.py:11)\n'
        "    run_script (/lib/launcher/runner/script.py:40)\n"
    )
    assert main_thread(text) == ["deadlock (/job/train.py:8)", "<module> (/job/train.py:11)"]


def test_output_or_cpu_time_is_activity_and_a_watchdogs_is_not(tmp_path: Path) -> None:
    now_s = 0.0
    ticks: dict[int, int | None] = {1: 0, 2: 0}
    activity = Activity(ticks=lambda pid: ticks[pid], clock=lambda: now_s)
    log = tmp_path / "rank-0.log"
    activity.follow(ticks, [log])
    first = activity.count

    def after_a_second() -> int:
        nonlocal now_s
        now_s += 1.0
        return activity.look() - first

    assert after_a_second() == 0
    ticks[2] = 50
    assert [after_a_second(), after_a_second()] == [1, 1]
    log.write_text("step 1")
    assert after_a_second() == 2
    ticks[1] = 2
    assert after_a_second() == 2 and not activity.has_ended
    ticks[1] = None
    assert after_a_second() == 2 and activity.has_ended
