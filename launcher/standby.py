"""Takes a job over in place: `python -m launcher.standby JOB_DIR TERM closed|silent`, started by a runner.

A runner that has lost its supervisor starts us when its turn has come. Where the lease still changes the supervisor
lives, and it is our node that is cut off: we leave. Where it has run out, or the connection was closed and nobody is
reached at that address any more, we take the next term, and what was decided so far is read from the job's
folder. Should that be wrong it does no harm: a supervisor that finds a higher term leaves.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from launcher.terms import LEASE_S, LeaseWatch, Term, newest, newest_number

log = logging.getLogger(__name__)

_POLL_S = 0.1
_CONNECT_S = 0.5
KEEPER_S = 1.0  # a host that refuses connections lives: its batch script starts the next supervisor at once


def may_take_over(
    job_dir: Path,
    term: int,
    lease: LeaseWatch,
    is_gone: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Waits until the supervisor is gone; False if it is not, or somebody has taken over, or the job has ended.

    Args:
        job_dir: the job's folder.
        term: the term that would be taken over.
        lease: made when the supervisor was missed.
        is_gone: whether that is certain before the lease has run out.
        sleep: seconds.
    """
    while newest_number(job_dir) == term and not (job_dir / "result.json").exists():
        if lease.quiet_s() >= LEASE_S or is_gone():
            return True
        if lease.has_changed:
            return False
        sleep(_POLL_S)
    return False


class Absence:
    """Whether a supervisor that has closed its connection can be reached no more. A closed connection is its kernel's
    word: a node that is cut off, or frozen, closes none.

    Args:
        term: its term.
        clock: monotonic seconds.
    """

    def __init__(self, term: Term, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = (term.host, term.port)
        self._clock = clock
        self._refused_s: float | None = None

    def is_certain(self) -> bool:
        """Tries its address. Blocks for half a second at most."""
        try:
            socket.create_connection(self._address, timeout=_CONNECT_S).close()
        except ConnectionRefusedError:
            self._refused_s = self._clock() if self._refused_s is None else self._refused_s
            return self._clock() - self._refused_s >= KEEPER_S
        except socket.gaierror:
            return False
        except OSError as error:
            return error.errno != errno.ENETUNREACH  # then it is we who have no network
        self._refused_s = None
        return False


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    job_dir, term, was_closed = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "closed"
    lease = LeaseWatch(job_dir)
    from launcher.jobfile import JobSpec  # while the lease runs out: this takes a while
    from launcher.supervisor.entry import supervise_here

    spec = JobSpec.from_mapping(json.loads((job_dir / "job.json").read_text()), job_dir)
    holder = None
    with contextlib.suppress(OSError, ValueError):
        holder = newest(job_dir)
    absence = Absence(holder) if was_closed and holder is not None and holder.number == term else None
    if not may_take_over(job_dir, term, lease, absence.is_certain if absence is not None else lambda: False):
        log.info("the supervisor of term %s lives, or another has taken over", term)
        return 0
    return supervise_here(spec, job_dir, "slurm", take_over=term).exit_code


if __name__ == "__main__":
    sys.exit(main())
