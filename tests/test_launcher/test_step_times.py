"""The times of real workers' steps: what counts as data, compute and communication, and who reads it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

from holdfast.base import sections
from launcher.diagnosis.slow_rank import RankTimes
from launcher.runner.port import free_port
from launcher.runner.step_times import KEPT, StepMemory, StepReader, fewest_steps

STEPS = 12
WORKER = f"""
import os, sys, time
from launcher.runner.step_hooks import measure_steps
measure_steps()
import torch, torch.distributed as dist
from launcher.runner import step_hooks
class Event:
    def __init__(self, enable_timing): pass
    def record(self, stream): self.at_s = time.perf_counter()
    def query(self): return True
    def elapsed_time(self, later): return (later.at_s - self.at_s) * 1e3
class Device:  # an accelerator whose work is done at once
    class Stream:
        def wait_event(self, event): pass
    Event, current_stream = Event, staticmethod(lambda: "stream")
rank, way = int(os.environ["RANK"]), sys.argv[1]
dist.init_process_group("gloo")
if way == "stream": step_hooks._accelerator = lambda optimizer: Device
class Samples(torch.utils.data.Dataset):
    def __len__(self): return {STEPS} + 1
    def __getitem__(self, at):
        time.sleep(0.06 if rank == 1 and way == "data" else 0.0)
        return torch.ones(8)
module = torch.nn.Linear(8, 8)
model = torch.nn.parallel.DistributedDataParallel(module) if way == "ddp" else module
optimizer = torch.optim.SGD(model.parameters())
for batch in torch.utils.data.DataLoader(Samples()):
    time.sleep(0.06 if rank == 1 and way != "data" else 0.0)
    model(batch).sum().backward()
    if way != "ddp":
        for parameter in model.parameters(): dist.all_reduce(parameter.grad)
    optimizer.step()
print("trained", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["ddp", "data", "stream"])
def trained(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, dict[int, RankTimes]]]:
    """Two ranks, of which rank 1 is slow: the kind of training, and what the runner reads."""
    (tmp_path / "train.py").write_text(WORKER)
    common = {"PYTHONPATH": str(Path(__file__).resolve().parents[2]), "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    argv = [sys.executable, str(tmp_path / "train.py"), request.param]
    processes = [
        subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | common | {"RANK": str(rank)}
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == b"trained\n"
        readers = [StepReader(rank, process.pid, 5) for rank, process in enumerate(processes)]
        found = [times for reader in readers if (times := reader.take()) is not None]
        assert [reader.take() for reader in readers] == [None, None], "each step is told once"
        for reader in readers:
            reader.close()
        yield request.param, {times.rank: times for times in found}
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_the_slow_rank_works_and_the_other_one_waits(trained: tuple[str, dict[int, RankTimes]]) -> None:
    way, times = trained
    assert {rank: each.steps for rank, each in times.items()} == {0: STEPS, 1: STEPS}
    part = "data_s" if way == "data" else "compute_s"
    assert getattr(times[1], part) > 0.05
    assert times[1].work_s > 2 * times[0].work_s
    assert times[0].communication_s > 0.03
    assert times[0].communication_s > 2 * times[1].communication_s


def test_a_section_interrupts_the_one_around_it_and_all_add_up_to_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0, 5, 10, 30, 70, 90, 100])
    monkeypatch.setattr(sections, "perf_counter_ns", lambda: next(clock))
    steps: list[tuple[int, int, int]] = []
    sections.measure(lambda *step: steps.append(step))
    try:
        sections.finish_step()  # at 5: what came before is no step
        with sections.DATA, sections.COMMUNICATION:  # 10; 30 to 70; 90
            pass
        sections.finish_step()  # 100
    finally:
        sections.stop()
    data, compute, communication = steps[0]
    assert (data, compute, communication) == (20 + 20, 5 + 10, 40)


def test_a_process_that_a_script_forks_measures_nothing() -> None:
    steps: list[tuple[int, int, int]] = []
    sections.measure(lambda *step: steps.append(step))
    try:
        sections.finish_step()
        child = os.fork()
        if child == 0:
            sections.finish_step()
            os._exit(len(steps))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        sections.stop()


def test_only_the_newest_steps_are_read_if_there_are_more_than_the_memory_holds() -> None:
    memory, reader = StepMemory(), StepReader(3, os.getpid(), 5)
    for step in range(3 * KEPT):
        memory.write(step, 2 * step, 3 * step)
    times = reader.take()
    assert times is not None and times.steps == KEPT - 1
    assert times.data_s * 1e9 == pytest.approx(2.5 * KEPT, abs=1)
    for _ in range(4):
        memory.write(1, 1, 1)
    assert reader.take() is None, "four steps are too few"
    memory.write(1, 1, 1)
    until(lambda: (taken := reader.take()) is not None and taken.steps == 5, "the five steps")
    reader.close()


def test_a_process_without_this_memory_is_no_error() -> None:
    assert StepReader(0, os.getppid(), 5).take() is None


def test_larger_jobs_report_more_seldom() -> None:
    assert (fewest_steps(1), fewest_steps(250), fewest_steps(4096)) == (5, 5, 81)
