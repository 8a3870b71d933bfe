"""Takes a job over in place: `python -m launcher.standby JOB_DIR TERM`, started by a runner.

A runner that has lost its supervisor starts us when its turn has come. Where the lease still changes the supervisor
lives, and it is our node that is cut off: we leave. Where it has run out we take the next term, and what was decided so
far is read from the job's folder.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path

from launcher.terms import LEASE_S, LeaseWatch, newest_number

log = logging.getLogger(__name__)

_POLL_S = 0.1


def may_take_over(
    job_dir: Path,
    term: int,
    lease: LeaseWatch,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Waits until the lease has run out; False if it is renewed, or somebody has taken over, or the job has ended.

    Args:
        job_dir: the job's folder.
        term: the term that would be taken over.
        lease: made when the supervisor was missed.
        sleep: seconds.
    """
    while newest_number(job_dir) == term and not (job_dir / "result.json").exists():
        if lease.quiet_s() >= LEASE_S:
            return True
        if lease.has_changed:
            return False
        sleep(_POLL_S)
    return False


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    job_dir, term = Path(sys.argv[1]), int(sys.argv[2])
    lease = LeaseWatch(job_dir)
    from launcher.jobfile import JobSpec  # while the lease runs out: this takes a while
    from launcher.supervisor.entry import supervise_here

    spec = JobSpec.from_mapping(json.loads((job_dir / "job.json").read_text()), job_dir)
    if not may_take_over(job_dir, term, lease):
        log.info("the supervisor of term %s lives, or another has taken over", term)
        return 0
    return supervise_here(spec, job_dir, "slurm", take_over=term).exit_code


if __name__ == "__main__":
    sys.exit(main())
