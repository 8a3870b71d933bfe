"""Measures how often the rank at fault is named when the workers hang, and what the recording of collectives costs.

    .venv/bin/python benchmarks/hang_verdicts.py [--count 100] [--cost]

Four ranks train on gloo in process groups of all, of the even and odd, and of the lower and upper ranks. At a random
step a random rank is made to hang in one of the ways below. When no rank goes on, the runner's own code takes the
stacks and collectives, and the verdict's rank is compared with that rank.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import mmap
import os
import random
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from holdfast.base.processes import die_with_parent, state_of
from launcher.diagnosis.hang_facts import RankFacts
from launcher.diagnosis.hang_verdict import judge
from launcher.runner.collectives import RECORDED, answer_collective_requests
from launcher.runner.stacks import Worker, answer_stack_requests, dump

RANKS = 4
QUIET_S = 1.0  # without progress of any rank: they hang
DEADLINE_S = 120.0
COST_STEP_S, COST_COLLECTIVES, COST_ROUNDS = 0.1, 20, 5

_GROUPS = (
    *(("pair", [0, 2]), ("pair", [1, 3]), ("twin", [0, 2]), ("twin", [1, 3])),
    *(("half", [0, 1]), ("half", [2, 3]), ("all", [0, 1, 2, 3])),
)
_MNT_FORCE, _MNT_DETACH = 1, 2

Groups = dict[str, Any]
_libc = ctypes.CDLL(None, use_errno=True)


# The ways to hang: each is called in the rank at fault, in place of a step's collectives.


def train_step(groups: Groups) -> None:
    """The collectives of a step, in the order of all ranks."""
    dist.all_reduce(torch.ones(16))
    after_first(groups)


def after_first(groups: Groups) -> None:
    dist.all_reduce(torch.ones(8), group=groups["pair"])
    dist.all_reduce(torch.ones(8), group=groups["twin"])
    dist.all_reduce(torch.ones(32), group=groups["half"])
    dist.broadcast(torch.ones(64), 0, group=groups["all"])


def skips(groups: Groups) -> None:
    after_first(groups)


def swaps_order(groups: Groups) -> None:
    dist.all_reduce(torch.ones(8), group=groups["pair"])
    train_step(groups)


def other_operation(groups: Groups) -> None:
    dist.barrier()


def wrong_size(groups: Groups) -> None:
    """An empty tensor, as of an empty last batch: gloo returns at once. Other sizes end the ranks, and hang none."""
    dist.all_reduce(torch.ones(0))
    after_first(groups)


def one_too_many(groups: Groups) -> None:
    dist.all_reduce(torch.ones(16))
    dist.all_reduce(torch.ones(2), group=groups["all"])
    after_first(groups)


def deadlock_of_groups(groups: Groups) -> None:
    """Two ranks wait for each other, each in another one of their two groups."""
    dist.all_reduce(torch.ones(16))
    dist.all_reduce(torch.ones(8), group=groups["twin"])


def teardown(groups: Groups) -> None:
    """The script has returned; its interpreter waits for a thread."""
    threading.Thread(target=threading.Event().wait).start()
    threading._shutdown()  # type: ignore[attr-defined]


def loader_stuck(groups: Groups) -> None:
    next(iter(DataLoader(Stuck(), num_workers=1)))


def lock_held(groups: Groups) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def gil_held_by_c(groups: Groups) -> None:
    mutex = ctypes.create_string_buffer(64)
    holds = ctypes.PyDLL(None)  # unlike CDLL, it keeps the GIL
    holds.pthread_mutex_lock(mutex)
    holds.pthread_mutex_lock(mutex)


def process_stopped(groups: Groups) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def file_system_hung(groups: Groups) -> None:
    os.stat(f"{groups['mount']}/batch")


def endless_loop(groups: Groups) -> None:
    while True:
        pass


Way = Callable[[Groups], None]
WAYS: tuple[Way, ...] = (
    *(skips, swaps_order, other_operation, wrong_size, one_too_many, deadlock_of_groups, teardown, loader_stuck),
    *(lock_held, gil_held_by_c, process_stopped, file_system_hung, endless_loop),
)


class Stuck(Dataset[int]):
    """A data set whose items never come."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        threading.Event().wait()
        return index


@dataclass(frozen=True, kw_only=True)
class Case:
    """One injected hang, and the verdict."""

    way: str
    rank: int
    named: int | None
    text: str

    @property
    def is_right(self) -> bool:
        return self.named == self.rank


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=100, help="number of hangs, of all ways in turn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cost", action="store_true", help="measure the cost of the recording instead")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.cost:
        print(cost())
        return
    draw = random.Random(arguments.seed)
    cases = []
    for number in range(arguments.count):
        cases.append(inject(WAYS[number % len(WAYS)], draw.randrange(RANKS), draw.randrange(3, 8)))
        print(f"{cases[-1].way:>20} rank {cases[-1].rank}: {'' if cases[-1].is_right else 'WRONG '}{cases[-1].text}")
        sys.stdout.flush()
    print(table(cases))


def table(cases: list[Case]) -> str:
    lines = ["| hang | injected | named |", "|---|---|---|"]
    for way in dict.fromkeys(case.way for case in cases):
        of_way = [case for case in cases if case.way == way]
        lines.append(f"| {way.replace('_', ' ')} | {len(of_way)} | {sum(case.is_right for case in of_way)} |")
    return "\n".join([*lines, f"| all | {len(cases)} | {sum(case.is_right for case in cases)} |"])


def inject(way: Way, guilty: int, step: int) -> Case:
    """Lets a job of four ranks hang, and judges it. Forks its ranks from this process."""
    with tempfile.TemporaryDirectory() as name, hung_mount(Path(name) / "mount") as mount:
        steps, pids = mmap.mmap(-1, 8 * RANKS), []
        try:
            for rank in range(RANKS):
                pids.append(_fork(rank, Path(name), steps, way if rank == guilty else None, step, mount))
            _await_hang(pids, steps, step)
            workers = [Worker(rank=rank, pid=pid, boundary=_step(steps, rank)) for rank, pid in enumerate(pids)]
            reports = asyncio.run(dump(workers, Path(name)))
            verdict = judge(RankFacts.from_report(f"node{report['rank']}", report) for report in reports)
            named = verdict.guilty[0].rank if verdict.guilty else None
            return Case(way=way.__name__, rank=guilty, named=named, text=verdict.text)
        finally:
            for pid in pids:  # all of them first: a rank that loses another one prints an error
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            for pid in pids:
                os.waitpid(pid, 0)


@contextlib.contextmanager
def hung_mount(path: Path) -> Iterator[Path]:
    """A file system whose server never answers. Who may not mount gets a FIFO that nobody writes to."""
    path.mkdir()
    with contextlib.suppress(OSError):
        server = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={server},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
        if _libc.mount(b"hung", bytes(path), b"fuse", 0, options.encode()) == 0:
            try:
                yield path
            finally:
                _libc.umount2(bytes(path), _MNT_FORCE | _MNT_DETACH)
                os.close(server)
            return
        os.close(server)
    yield path


def _fork(rank: int, folder: Path, steps: mmap.mmap, way: Way | None, at_step: int, mount: Path) -> int:
    pid = os.fork()
    if pid:
        os.setpgid(pid, pid)
        return pid
    try:
        os.setpgid(0, 0)
        die_with_parent(os.getppid())
        answer_stack_requests()
        answer_collective_requests()
        _train(rank, f"file://{folder}/rendezvous", steps, way, at_step, mount)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _train(rank: int, rendezvous: str, steps: mmap.mmap, way: Way | None, at_step: int, mount: Path) -> None:
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=RANKS)
    groups: Groups = {"mount": mount}
    for name, members in _GROUPS:
        group = dist.new_group(members, group_desc=name)
        if rank in members:
            groups[name] = group
    step = 0
    while True:
        step += 1
        struct.pack_into("<q", steps, 8 * rank, step)
        (way if way is not None and step == at_step else train_step)(groups)


def _step(steps: mmap.mmap, rank: int) -> int:
    step: int = struct.unpack_from("<q", steps, 8 * rank)[0]
    return step


def _await_hang(pids: list[int], steps: mmap.mmap, at_step: int) -> None:
    """Returns when all ranks have reached the step, and none has gone on for QUIET_S."""
    deadline_s = time.monotonic() + DEADLINE_S
    before, since_s = b"", time.monotonic()
    while time.monotonic() < deadline_s:
        now = steps[:]
        if now != before or min(_step(steps, rank) for rank in range(RANKS)) < at_step:
            before, since_s = now, time.monotonic()
        if time.monotonic() > since_s + QUIET_S:
            return
        if gone := [rank for rank, pid in enumerate(pids) if state_of(pid) in ("", "Z")]:
            raise RuntimeError(f"ranks {gone} have ended; expected a hang; their errors are above")
        time.sleep(0.02)
    raise RuntimeError(f"the ranks are at steps {[_step(steps, rank) for rank in range(RANKS)]} and do not hang")


# The cost.


def cost() -> str:
    """CPU time of an all_reduce with and without the recorder, in turns in new processes."""
    best = {"0": 1.0, str(RECORDED): 1.0}
    for _ in range(COST_ROUNDS):
        for size in best:
            best[size] = min(best[size], _in_fork(size))
    off_s, on_s = best["0"], best[str(RECORDED)]
    share = (on_s - off_s) * COST_COLLECTIVES / COST_STEP_S
    return (
        f"all_reduce without {off_s * 1e6:.2f} us, with the recorder {on_s * 1e6:.2f} us: "
        f"{share:.4%} of a step of {COST_STEP_S:g} s with {COST_COLLECTIVES} collectives"
    )


def _in_fork(size: str) -> float:
    """Seconds of CPU time of one all_reduce with a recorder of this size, which torch reads once in a process."""
    result = mmap.mmap(-1, 8)
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException), tempfile.NamedTemporaryFile() as file:
            os.environ["TORCH_FR_BUFFER_SIZE"] = size
            answer_collective_requests()
            dist.init_process_group("gloo", init_method=f"file://{file.name}", rank=0, world_size=1)
            values = torch.ones(16)
            taken = []
            for _ in range(10):
                begin_s = time.thread_time()
                for _ in range(2000):
                    dist.all_reduce(values)
                taken.append((time.thread_time() - begin_s) / 2000)
            struct.pack_into("<d", result, 0, min(taken))
        os._exit(0)
    os.waitpid(pid, 0)
    seconds: float = struct.unpack_from("<d", result, 0)[0]
    if not seconds:
        raise RuntimeError("the process that measures has failed")
    return seconds


if __name__ == "__main__":
    main()
