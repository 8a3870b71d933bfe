"""Signals that Slurm sends to every process of the job's steps, and the processes that a script starts.

A rank may handle such a signal, and its forked processes (a DataLoader's workers) inherit the handler. Only the rank
must act on the signal. So forked processes ignore these signals, including SIGTERM: if they ended during a requeue,
they would end the rank before all ranks have saved. Processes that multiprocessing spawns, or that its fork server
forks, must ignore them too. An exec keeps only ignored and blocked signals, so these processes set them again.

But then processes that are stuck when the rank is done would never end: `multiprocessing` sends SIGTERM to its children
and waits without a limit. Many scripts do the same with programs that they have started, which inherit that SIGTERM is
ignored. So this module also replaces these two calls.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Sequence
from multiprocessing import util
from multiprocessing.popen_fork import Popen
from pathlib import Path

# for the time limit; without "B:", `--signal=USR1@N` and USR2@N reach every process of the job's steps
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
STEP_SIGNALS = (signal.SIGTERM, *WARNINGS)  # SIGTERM: Slurm requeues, preempts or cancels the job

_masks = threading.local()  # of the thread that forks
_spawnv_passfds = util.spawnv_passfds
# Run first in processes that multiprocessing starts with an exec. Modules there may have the same names as Holdfast's,
# so this one is loaded by its path, and imports only the standard library.
_IN_SPAWNED = f"""\
import runpy
try:
    runpy.run_path({__file__!r})["leave_signals_to_the_starter"]()
except OSError:
    pass
"""


def leave_signals_to_the_rank() -> None:
    """Called once in a worker: the processes that it starts ignore STEP_SIGNALS, but can still be ended."""
    os.register_at_fork(before=_hold_back, after_in_parent=_let_come, after_in_child=_ignore)
    util.register_after_fork(_block_sigterm, lambda block: block())  # only in children of multiprocessing
    util.spawnv_passfds = _spawn  # type: ignore
    Popen.terminate = _terminate  # type: ignore  # spawned children are of classes below it
    subprocess.Popen.terminate = _terminate_program  # type: ignore


def leave_signals_to_the_starter() -> None:
    """Called in a process that multiprocessing has spawned, and in its fork server; same effect as in a forked one."""
    for number in STEP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WARNINGS)
    leave_signals_to_the_rank()


def _hold_back() -> None:
    """Blocks the signals during a fork. Otherwise one could run the rank's handler before the child ignores it."""
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, STEP_SIGNALS)


def _let_come() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _ignore() -> None:
    for number in STEP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _let_come()


def _block_sigterm() -> None:
    """A DataLoader's worker handles SIGTERM again, and ends if it is not from its rank. Programs that a script starts
    must not inherit this, as they would over an exec."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _spawn(path: bytes, args: Sequence[str], passfds: Sequence[int]) -> int:
    """Replaces the only exec in multiprocessing: the started process blocks the signals until it can ignore them."""
    args = list(args)
    code = args.index("-c") + 1 if "-c" in args else 0
    if code and "multiprocessing.resource_tracker import" not in args[code]:  # it ignores SIGTERM itself
        args[code] = _IN_SPAWNED + args[code]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STEP_SIGNALS)
    try:
        return _spawnv_passfds(path, args, passfds)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _terminate(process: Popen) -> None:
    """Ends a child that multiprocessing wants to end: by SIGTERM, or by SIGKILL if it would ignore that."""
    if _hears_sigterm(process.pid):
        process._send_signal(signal.SIGTERM)  # type: ignore[attr-defined]
    else:
        process.kill()


def _terminate_program(program: subprocess.Popen[bytes]) -> None:
    """The same for a program. A program that handles SIGTERM ends in its own way."""
    if _hears_sigterm(program.pid):
        program.send_signal(signal.SIGTERM)
    else:
        program.kill()


def _hears_sigterm(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    unheard = (int(mask, 16) for mask in re.findall(r"^Sig(?:Ign|Blk):\s*(\w+)", status, re.MULTILINE))
    return not any(mask >> (signal.SIGTERM - 1) & 1 for mask in unheard)
