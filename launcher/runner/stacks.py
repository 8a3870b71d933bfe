"""Stack dumps of a node's workers: the position of each worker, in `log/attempt-<k>/rank-<r>.stack`.

The file also has the collectives that the worker has entered; see `launcher.runner.collectives`.

On STACK_SIGNAL, faulthandler in the worker prints all threads into a file in the worker's memory (memfd). This needs no
lock, no interpreter and no file system. The runner reads the file there. If the handler cannot answer, because the
process is stopped or in uninterruptible sleep, the kernel gives its state, and py-spy its frames if it is installed
(pip install 'holdfast-hpc[debug]').
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.deadlines import within
from holdfast.base.environment import Variable
from holdfast.base.processes import handles, open_memfd, state_of, status_of
from launcher.diagnosis.hang_facts import is_unusual, ranks_text
from launcher.runner import collectives
from slurm import SlurmError
from slurm.command import run

# A real-time signal. NCCL uses USR1, submitit and Slurm's time limit USR2, glibc the first two real-time signals, tools
# the next few. It is sent only to processes that handle it.
STACK_SIGNAL = signal.SIGRTMAX - 2
ANSWER_S = 2.0
PY_SPY_S = 5.0
WRITE_S = 1.0  # for a file system to take a file; what is known of the ranks is reported without it

_MEMFD = "holdfast-stack"
_POLL_S = 0.02
_SETTLED_S = 0.1  # the dump is complete after this time without output
_DUMP_BYTES = 1 << 20
_TOLD_FRAMES = 12
_TOLD_COLLECTIVES = 8  # of each process group
_WHAT_CHARS = 120
_FRAME_CHARS = 200
_PR_SET_PTRACER = 0x59616D61
_STATUS = ("State", "SigPnd", "ShdPnd", "SigBlk", "SigCgt", "VmRSS", "Threads")  # proc(5)
_FAULTHANDLER_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
_PY_SPY_FRAME = re.compile(r"^    (\S.*) \((.+):(\d+)\)$", re.MULTILINE)
_OURS = re.compile(r"/launcher/runner/script\.py:|<frozen runpy>|/runpy\.py:")

_memory: int | None = None  # the worker's memfd; faulthandler keeps no reference to it


def answer_stack_requests() -> None:
    """In a worker: prints all threads' stacks on STACK_SIGNAL, and lets the runner's py-spy trace the process."""
    global _memory
    _memory = os.memfd_create(_MEMFD)
    faulthandler.register(STACK_SIGNAL, file=_memory, all_threads=True, chain=False)
    # Needed if Yama allows only descendants to be traced (Ubuntu's default): py-spy is the runner's child.
    with contextlib.suppress(KeyError, ValueError):
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, int(os.environ[Variable.RUNNER_PID]), 0, 0, 0)


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker to dump: its rank, its pid, and the number of step boundaries it has passed, if it reports them."""

    rank: int
    pid: int
    boundary: int | None


async def dump(workers: Iterable[Worker], log_dir: Path) -> list[dict[str, Any]]:
    """Writes the stack files of all given workers, in parallel: 9 s at most, within the supervisor's STACKS_TIMEOUT_S.

    Args:
        workers: those of this node.
        log_dir: the attempt's folder.

    Returns:
        for each what launcher.diagnosis.hang_facts:RankFacts needs; frames: of the main thread, innermost first.
    """
    return list(await asyncio.gather(*(_dump(worker, log_dir) for worker in workers)))


async def _dump(worker: Worker, log_dir: Path) -> dict[str, Any]:
    state, wait = state_of(worker.pid), _wait(worker.pid)
    stack, answer = await asyncio.gather(_stack(worker.pid, state), collectives.ask(worker.pid))
    parts = [_head(worker, state), *stack, *_collectives_text(answer)]
    await keep(log_dir / f"rank-{worker.rank}.stack", "\n".join(parts) + "\n")
    return {
        "rank": worker.rank,
        "pid": worker.pid,
        "state": state,
        "boundary": worker.boundary,
        "frames": main_thread(stack[-1] if stack else "")[:_TOLD_FRAMES],
        "wait": wait,
        "runs_threads": None if answer == {} else answer is not None,
        **_entered(answer or {}),
    }


async def _stack(pid: int, state: str) -> list[str]:
    """The worker's stack. If its handler does not answer: the kernel's view, and py-spy's."""
    if text := await _ask(pid):
        return [f"--- faulthandler\n{text}"]
    if not state:
        return []
    text = await asyncio.to_thread(_py_spy, pid)
    return [_kernel_view(pid), *([f"--- py-spy\n{text}"] if text else [])]


def _entered(answer: dict[str, Any]) -> dict[str, Any]:
    """The newest collectives of each group, as few and as short as the verdict needs."""
    entries, groups = answer.get("collectives", []), answer.get("groups", {})
    newest: dict[str, list[int]] = {}
    for index, entry in enumerate(entries):
        if not entry["is_p2p"]:
            newest.setdefault(entry["group"], []).append(index)
    told = [
        entries[index] for index in sorted(index for kept in newest.values() for index in kept[-_TOLD_COLLECTIVES:])
    ]
    return {
        "entered": [
            {
                "group": entry["group"],
                "desc": groups[entry["group"]]["desc"],
                "ranks": ranks_text(groups[entry["group"]]["ranks"]),
                "seq": entry["seq"],
                "op": entry["op"],
                "what": f"{entry['sizes']} {entry['dtype']}"[:_WHAT_CHARS],
                "is_over": entry["left_ns"] is not None,
            }
            for entry in told
        ],
        "is_unusual": is_unusual([f"{entry['group']} {entry['op']} {entry['sizes']}" for entry in entries]),
    }


def _collectives_text(answer: dict[str, Any] | None) -> list[str]:
    """The worker's newest collectives for people, oldest first."""
    if answer is None:
        return ["--- collectives: no Python thread answers: the process is stopped, or C code holds its GIL"]
    if not answer:
        return []
    if answer["problem"]:
        return [f"--- collectives: {answer['problem']}"]
    lines = [
        f"  {time.strftime('%H:%M:%S', time.localtime(entry['entered_ns'] / 1e9))} group {entry['group']} "
        f"{'p2p ' if entry['is_p2p'] else ''}{entry['seq']}: {entry['op']} {entry['sizes']} {entry['dtype']}"
        for entry in answer["collectives"]
    ]
    return ["--- collectives entered, oldest first", *lines]


def main_thread(text: str) -> list[str]:
    """The frames of the main thread in a dump of faulthandler or py-spy: "function (file:line)", innermost first."""
    if '"MainThread"' in text:
        block = text.partition('"MainThread"')[2].partition("\nThread ")[0]
        frames = [f"{name} ({file}:{line})" for name, file, line in _PY_SPY_FRAME.findall(block)]
    else:
        block = re.split(r"(?m)^(?:Current thread|Thread) ", text)[-1]  # the main thread is the last
        frames = [f"{name} ({file}:{line})" for file, line, name in _FAULTHANDLER_FRAME.findall(block)]
    ends = next((index for index, frame in enumerate(frames) if _OURS.search(frame)), len(frames))
    return [frame[-_FRAME_CHARS:] for frame in frames[:ends] or frames]


async def _ask(pid: int) -> str:
    """The output of the worker's handler; empty if it cannot answer."""
    if state_of(pid) in ("", "T", "t", "Z") or not handles(pid, STACK_SIGNAL):  # else the signal would end it
        return ""
    memory = open_memfd(pid, _MEMFD)
    if memory is None:
        return ""
    try:
        before = seen = os.fstat(memory).st_size
        deadline = time.monotonic() + ANSWER_S
        changed_s = None
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, STACK_SIGNAL)
        while time.monotonic() < deadline and (changed_s is None or time.monotonic() - changed_s < _SETTLED_S):
            await asyncio.sleep(_POLL_S)
            size = os.fstat(memory).st_size
            if size != seen:
                seen, changed_s = size, time.monotonic()
        return os.pread(memory, min(seen - before, _DUMP_BYTES), before).decode(errors="replace")
    finally:
        os.close(memory)


def _py_spy(pid: int) -> str:
    beside = Path(sys.executable).parent / "py-spy"
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        return ""
    try:  # nonblocking, so py-spy neither stops the process nor waits for it
        return run([program, "dump", "--nonblocking", "--pid", str(pid)], timeout_s=PY_SPY_S, check=False).stdout
    except SlurmError:
        return ""


def _wait(pid: int) -> str:
    """The kernel function in which the main thread waits; "" if it runs, or if this user may not read it."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/wchan").read_text().strip().strip("0")
    return ""


def _head(worker: Worker, state: str) -> str:
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    passed = "" if worker.boundary is None else f", {worker.boundary} step boundaries passed"
    return f"=== {now} rank {worker.rank}, pid {worker.pid}, state {state or 'gone'}{passed}"


def _kernel_view(pid: int) -> str:
    """The kernel's view of each thread, as far as this user may read it."""
    status = status_of(pid)
    lines = [f"--- kernel: {', '.join(f'{field} {status[field]}' for field in _STATUS if field in status)}"]
    with contextlib.suppress(OSError):
        for thread in sorted(os.listdir(f"/proc/{pid}/task"), key=int):
            task = Path(f"/proc/{pid}/task/{thread}")
            words = [f"thread {thread}"]
            for name in ("wchan", "syscall", "stack"):  # only root or a tracer can read the last two
                with contextlib.suppress(OSError):
                    words.append(f"{name}: {' '.join((task / name).read_text().split())}")
            lines.append("  " + "; ".join(words))
    return "\n".join(lines)


async def keep(path: Path, text: str) -> None:
    """Appends a text to a file of the attempt. A shared file system that does not answer must not stop the runner."""
    with contextlib.suppress(TimeoutError):
        await within(WRITE_S, asyncio.to_thread(_append, path, text))


def _append(path: Path, text: str) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
