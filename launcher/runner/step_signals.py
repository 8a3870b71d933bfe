"""Signals that Slurm sends to every process of the job's steps, and the processes that a script forks.

A rank's own process may handle such a signal, and what it forks (a DataLoader's workers) inherits its handler: only the
rank is to act on it. Forked processes ignore these signals instead, SIGTERM too: ended in the middle of a requeue, they
would take the rank along before all ranks have saved. But then nothing would end those that are stuck when the rank is
done: `multiprocessing` asks its children with a SIGTERM, and waits for them without a limit.
"""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing import util
from multiprocessing.popen_fork import Popen

from launcher.runner.processes import status_of

# Of the time limit: without a B:, `--signal=USR1@N` and USR2@N reach every process of the job's steps.
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
STEP_SIGNALS = (signal.SIGTERM, *WARNINGS)  # SIGTERM: Slurm requeues, preempts or cancels the job

_masks = threading.local()  # of the thread that forks


def leave_signals_to_the_rank() -> None:
    """In a worker, once: what it forks ignores STEP_SIGNALS, and `multiprocessing` can end it all the same."""
    os.register_at_fork(before=_hold_back, after_in_parent=_let_come, after_in_child=_ignore)
    util.register_after_fork(_block_sigterm, lambda block: block())  # in children of multiprocessing alone
    Popen.terminate = _terminate  # type: ignore  # spawned children are of classes below it


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


def _terminate(process: Popen) -> None:
    """Ends a child that multiprocessing wants ended: by SIGTERM, or, where that does not reach it, for certain."""
    status = status_of(process.pid)
    unheard = int(status.get("SigIgn", "0"), 16) | int(status.get("SigBlk", "0"), 16)
    if unheard >> (signal.SIGTERM - 1) & 1:
        process.kill()
    else:
        process._send_signal(signal.SIGTERM)  # type: ignore[attr-defined]
