"""The standby, which takes over a running job.

`python -m launcher.supervisor.standby JOB_DIR TERM closed|silent RUN_ID`

A runner that has lost its supervisor starts a standby on its turn. It closes the standby's stdin when it reaches the
supervisor again. While the lease is renewed, the supervisor lives and this node is cut off, so the standby waits. It
takes the next term when the lease has run out, or when the connection was closed and nothing answers at the
supervisor's address. Then it reads the state of the job from the events in the job's folder. A wrong take-over does no
harm: a supervisor that finds a higher term ends.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from launcher.leadership.terms import LEASE_S, LeaseWatch, Term, newest, newest_number
from launcher.scheduler import scheduler_of
from launcher.scheduler.interface import Scheduler

log = logging.getLogger(__name__)

_POLL_S = 0.1
_CONNECT_S = 0.5
RESTARTED_S = 1.0  # if the host refuses connections it lives, and its batch process starts the next supervisor at once


def may_take_over(
    job_dir: Path,
    term: int,
    lease: LeaseWatch,
    is_gone: Callable[[], bool] = lambda: False,
    is_reached: Callable[[], bool] = lambda: False,
    is_out: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait until the supervisor is lost. False if it answers again, another has taken over, or the job has ended.

    Args:
        job_dir: the job's folder.
        term: the term that would be taken over.
        lease: a watch of the lease, begun when the supervisor was lost.
        is_gone: whether the supervisor is certainly lost, even if the lease has not run out yet.
        is_reached: whether this node's runner reaches the supervisor again.
        is_out: whether this node is out of the job, and so must not take over. If no node may, Slurm gets the job back.
        sleep: waits for a number of seconds.
    """
    out = False
    while newest_number(job_dir) == term and not (job_dir / "result.json").exists() and not is_reached():
        if not out and (lease.quiet_s() >= LEASE_S or is_gone()):
            out = is_out()
            if not out:
                return True
        sleep(_POLL_S)
    return False


class Absence:
    """Observes whether a supervisor's address still answers.

    Args:
        term: the supervisor's term.
        clock: monotonic clock, in seconds.

    Attributes:
        is_silent: whether nothing answered at the last try, not even the kernel of the supervisor's host.
    """

    def __init__(self, term: Term, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = (term.host, term.port)
        self._clock = clock
        self._refused_s: float | None = None
        self.is_silent = False

    def look(self) -> None:
        """Try to connect to the supervisor's address. Blocks for half a second at most."""
        refused = silent = False
        try:
            socket.create_connection(self._address, timeout=_CONNECT_S).close()
        except ConnectionRefusedError:
            refused = True
        except socket.gaierror:
            pass  # a failed name lookup does not show that the host is silent
        except OSError as error:
            silent = error.errno != errno.ENETUNREACH  # with this error this host has no network
        self.is_silent = silent
        self._refused_s = (self._clock() if self._refused_s is None else self._refused_s) if refused else None

    def is_certain(self) -> bool:
        """Whether a supervisor that has closed its connection is certainly lost.

        A node that is cut off or frozen closes no connection, so its process has ended. If its host refuses
        connections, the batch process there may start the next supervisor; so this waits `RESTARTED_S`.
        """
        return self.is_silent or (self._refused_s is not None and self._clock() - self._refused_s >= RESTARTED_S)

    def keep_looking(self, until: threading.Event) -> None:
        """Call `look` repeatedly, until the event is set. Runs in a separate thread."""
        while not until.is_set():
            self.look()
            until.wait(_POLL_S)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    job_dir, term, was_closed = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "closed"
    scheduler = scheduler_of(sys.argv[4])
    lease = LeaseWatch(job_dir)
    loading = threading.Thread(target=_load)
    loading.start()
    holder, decided = None, threading.Event()
    with contextlib.suppress(OSError, ValueError):
        holder = newest(job_dir)
    absence = Absence(holder) if holder is not None and holder.number == term else None
    if absence is not None:
        threading.Thread(target=absence.keep_looking, args=(decided,), daemon=True).start()
    is_gone = absence.is_certain if absence is not None and was_closed else lambda: False
    is_reached = lambda: _has_ended(sys.stdin.fileno())  # noqa: E731
    may = may_take_over(job_dir, term, lease, is_gone, is_reached, lambda: _is_out(job_dir, _node(scheduler)))
    if not may:
        log.info("not taking over: the supervisor of term %s is alive, or another one has taken over", term)
        os._exit(0)  # at once, even during an import, because the runner may need to start the next standby
    decided.set()
    loading.join()
    from launcher.job.jobfile import read_job
    from launcher.supervisor.entry import supervise_here

    spec = read_job(job_dir)
    is_silent = absence is not None and absence.is_silent
    return supervise_here(spec, job_dir, scheduler.name, take_over=term, predecessor_is_silent=is_silent).exit_code


def _load() -> None:
    """Import the supervisor, which takes a while, during the wait."""
    import launcher.supervisor.entry  # noqa: F401


def _is_out(job_dir: Path, node: str | None) -> bool:
    """Whether a node is out or lost by the job's events.

    A requeue would look to such a node like the supervisor's loss, and its take-over would put the batch host out.
    """
    from launcher.core.replay import History, replay
    from launcher.history.events import read_events

    try:
        out = replay(read_events(job_dir / "events.jsonl"), History()).out
    except OSError as error:
        log.warning("cannot read the events: %s", error)
        return True
    return node in out


def _node(scheduler: Scheduler) -> str | None:
    place = scheduler.place(os.environ)
    return None if place is None else place.node


def _has_ended(fd: int) -> bool:
    """Whether the other end of a pipe is closed."""
    readable, _, _ = select.select([fd], [], [], 0)
    return bool(readable)


if __name__ == "__main__":
    sys.exit(main())
