"""Starts the observer of a job and ends it with its supervisor."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ckpt.agent.process.launch import PYTHON
from holdfast.base.environment import PREFIX
from launcher.job.jobfile import JobSpec
from launcher.observer.otlp import is_asked
from launcher.scheduler import scheduler

log = logging.getLogger(__name__)

_WAIT_S = 20.0  # for the last notices: Slurm kills what is left when the batch script ends


@contextlib.contextmanager
def observed(spec: JobSpec, job_dir: Path, cluster: str) -> Iterator[None]:
    """Has an observer run meanwhile, if the job asks for one. A job runs on without an observer that cannot start."""
    is_wanted = spec.notify is not None or spec.metrics is not None or is_asked(os.environ)
    process = _started(job_dir, cluster) if is_wanted else None
    try:
        yield
    finally:
        if process is not None and process.stdin is not None:
            process.stdin.close()
            try:
                process.wait(_WAIT_S)
            except subprocess.TimeoutExpired:
                log.warning("the observer has not ended in %g s; it is left to itself", _WAIT_S)


def _started(job_dir: Path, cluster: str) -> subprocess.Popen[bytes] | None:
    place = scheduler(cluster).place(os.environ)
    job_id = job_dir.name if place is None else place.allocation
    # With HOLDFAST_RUN_ID it would count as a process of the run, which has ended only without any.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    try:
        log_file = os.open(job_dir / "log" / "observer.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            return subprocess.Popen(
                [*PYTHON, "-m", "launcher.observer", str(job_dir), job_id, repr(time.time())],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log_file,
                stderr=log_file,
                start_new_session=True,
            )
        finally:
            os.close(log_file)
    except OSError as error:
        print(
            f"holdfast: no notices and no metrics: the observer cannot be started ({error.strerror})", file=sys.stderr
        )
        return None
