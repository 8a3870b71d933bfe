"""Signals that Slurm sends to every process of the job's steps, and the processes that a script starts.

A rank's own process may handle such a signal, and what it forks (a DataLoader's workers) inherits its handler: only the
rank is to act on it. Forked processes ignore these signals instead, SIGTERM too: ended in the middle of a requeue, they
would take the rank along before all ranks have saved. Those that multiprocessing spawns, or has its fork server fork,
are to do the same, but an exec leaves of a process only what it ignores and blocks: they are told again.

But then nothing would end those that are stuck when the rank is done: `multiprocessing` asks its children with a
SIGTERM, and waits for them without a limit. So does many a script with a program that it has started, and that has
inherited that SIGTERM is ignored.
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

# Of the time limit: without a B:, `--signal=USR1@N` and USR2@N reach every process of the job's steps.
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
STEP_SIGNALS = (signal.SIGTERM, *WARNINGS)  # SIGTERM: Slurm requeues, preempts or cancels the job

_masks = threading.local()  # of the thread that forks
_spawnv_passfds = util.spawnv_passfds
# Before what a process runs that multiprocessing starts by an exec. A module there may have a name of ours, so this one
# is loaded by its path, and imports the standard library alone.
_IN_SPAWNED = f"""\
import runpy
try:
    runpy.run_path({__file__!r})["leave_signals_to_the_starter"]()
except OSError:
    pass
"""


def leave_signals_to_the_rank() -> None:
    """In a worker, once: what it starts is deaf to STEP_SIGNALS, and can be ended all the same."""
    os.register_at_fork(before=_hold_back, after_in_parent=_let_come, after_in_child=_ignore)
    util.register_after_fork(_block_sigterm, lambda block: block())  # in children of multiprocessing alone
    util.spawnv_passfds = _spawn  # type: ignore
    Popen.terminate = _terminate  # type: ignore  # spawned children are of classes below it
    subprocess.Popen.terminate = _terminate_program  # type: ignore


def leave_signals_to_the_starter() -> None:
    """In a process that multiprocessing spawned, and in its fork server: as in one that was forked."""
    for number in STEP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WARNINGS)
    leave_signals_to_the_rank()


def _hold_back() -> None:
    """One that comes to the forked process before it ignores it would find the rank's handler there."""
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, STEP_SIGNALS)


def _let_come() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _ignore() -> None:
    for number in STEP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _let_come()


def _block_sigterm() -> None:
    """A DataLoader's worker takes SIGTERM again, and ends by one that its rank has not sent. No program that a script
    starts is to inherit this, as it would over an exec."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _spawn(path: bytes, args: Sequence[str], passfds: Sequence[int]) -> int:
    """In place of the only exec in multiprocessing: what it starts blocks the signals until it can ignore them."""
    args = list(args)
    code = args.index("-c") + 1 if "-c" in args else 0
    if code and "multiprocessing.resource_tracker import" not in args[code]:  # it ignores SIGTERM by itself
        args[code] = _IN_SPAWNED + args[code]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STEP_SIGNALS)
    try:
        return _spawnv_passfds(path, args, passfds)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _terminate(process: Popen) -> None:
    """Ends a child that multiprocessing wants ended: by SIGTERM, or, where that does not reach it, for certain."""
    if _hears_sigterm(process.pid):
        process._send_signal(signal.SIGTERM)  # type: ignore[attr-defined]
    else:
        process.kill()


def _terminate_program(program: subprocess.Popen[bytes]) -> None:
    """The same for a program. One that handles SIGTERM ends as its author meant it."""
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
