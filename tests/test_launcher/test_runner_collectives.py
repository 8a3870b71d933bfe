"""The collectives of real processes on gloo: of ranks that wait in one, of one whose GIL is held, of one stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from holdfast.base.processes import state_of
from launcher.runner.collectives import COLLECTIVES_SIGNAL, ask, recorder_variables

RANK = """
import sys
from launcher.runner.collectives import answer_collective_requests, recorded
answer_collective_requests()
import ctypes, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
rank, port, way = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
pair = dist.new_group([0, 1], group_desc="pair")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
model(torch.ones(2, 4)).sum().backward()
print("up", flush=True)
if rank == 0:
    dist.all_reduce(torch.ones(3, 5), group=pair)
elif way == "gil":
    ctypes.PyDLL(None).pause()  # unlike CDLL, keeps the GIL
else:
    __import__("signal").pause()
"""


@pytest.fixture
def start_pair(tmp_path: Path) -> Iterator[Callable[[str], list[int]]]:
    processes: list[subprocess.Popen[bytes]] = []

    def start(way: str) -> list[int]:
        (tmp_path / "train.py").write_text(RANK)
        root = str(Path(__file__).resolve().parents[2])
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            port = str(held.getsockname()[1])
        for rank in ("0", "1"):
            argv = [sys.executable, str(tmp_path / "train.py"), rank, port, way]
            environment = os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
            processes.append(subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment))
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == b"up\n"
        return [process.pid for process in processes]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_rank_that_waits_in_a_collective_tells_it(start_pair: Callable[[str], list[int]]) -> None:
    waiting, absent = start_pair("sleep")
    answer: dict[str, Any] = {}

    def has_entered() -> bool:
        answer.update(asyncio.run(ask(waiting)) or {})
        return answer["collectives"][-1]["sizes"] == "[[3, 5]] -> [[3, 5]]"

    until(has_entered, "the all_reduce")
    last = answer["collectives"][-1]
    pair = answer["groups"][last["group"]]
    assert pair["ranks"] == [0, 1] and pair["desc"] == "pair"
    assert (last["op"], last["seq"], last["bytes"], last["dtype"]) == ("all_reduce", 1, 60, "Float")
    other = asyncio.run(ask(absent))
    assert other is not None and all(entry["group"] != last["group"] for entry in other["collectives"])
    gradients = [entry for entry in other["collectives"] if entry["op"] == "all_reduce"]
    assert [entry["bytes"] for entry in gradients] == [80], "the gradients that DDP reduces in C++ are recorded too"


def test_rank_whose_gil_is_held_or_that_is_stopped_does_not_answer(start_pair: Callable[[str], list[int]]) -> None:
    waiting, held = start_pair("gil")
    until(lambda: asyncio.run(ask(held)) is None, "the rank to take the GIL")
    os.kill(waiting, signal.SIGSTOP)
    until(lambda: state_of(waiting) == "T", "the stop")
    assert asyncio.run(ask(waiting)) is None


def test_process_without_the_thread_is_spared() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert asyncio.run(ask(process.pid)) == {}
        assert process.poll() is None
        process.kill()


def test_recorder_is_switched_on_but_never_over_the_users_size() -> None:
    assert recorder_variables({}, "2.13.0+cpu") == {"TORCH_FR_BUFFER_SIZE": "2000"}
    assert recorder_variables({}, "2.6.0") == {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
    assert recorder_variables({"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, "2.13.0") == {}
    assert recorder_variables({"TORCH_FR_BUFFER_SIZE": "64"}, "2.6.0") == {}


def test_signal_is_one_that_others_leave_alone() -> None:
    assert signal.SIGRTMIN + 8 < COLLECTIVES_SIGNAL < signal.SIGRTMAX
