"""Stack dumps of a node's workers: the position of each worker, in `log/attempt-<k>/rank-<r>.stack`.

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

from holdfast.base.environment import Variable
from holdfast.base.processes import handles, open_memfd, state_of, status_of
from slurm import SlurmError
from slurm.command import run

# A real-time signal. NCCL uses USR1, submitit and Slurm's time limit USR2, glibc the first two real-time signals, tools
# the next few. It is sent only to processes that handle it.
STACK_SIGNAL = signal.SIGRTMAX - 2
ANSWER_S = 2.0
PY_SPY_S = 5.0

_MEMFD = "holdfast-stack"
_POLL_S = 0.02
_SETTLED_S = 0.1  # the dump is complete after this time without output
_DUMP_BYTES = 1 << 20
_TOLD_FRAMES = 12
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
    """Writes the stack files of all given workers, in parallel, within ANSWER_S + PY_SPY_S.

    Args:
        workers: those of this node.
        log_dir: the attempt's folder.

    Returns:
        {rank, state, boundary, frames} for each; frames: of the main thread, innermost first.
    """
    return list(await asyncio.gather(*(_dump(worker, log_dir) for worker in workers)))


async def _dump(worker: Worker, log_dir: Path) -> dict[str, Any]:
    state = state_of(worker.pid)
    parts = [_head(worker, state)]
    text, source = await _ask(worker.pid), "faulthandler"
    if not text and state:
        parts += [_kernel_view(worker.pid)]
        text, source = await asyncio.to_thread(_py_spy, worker.pid), "py-spy"
    if text:
        parts += [f"--- {source}\n{text}"]
    # A shared file system that does not answer must not stop the runner.
    await asyncio.to_thread(_append, log_dir / f"rank-{worker.rank}.stack", "\n".join(parts) + "\n")
    frames = main_thread(text)[:_TOLD_FRAMES]
    return {"rank": worker.rank, "state": state, "boundary": worker.boundary, "frames": frames}


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


def _append(path: Path, text: str) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
