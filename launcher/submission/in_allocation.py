"""Runs a supervised job inside an existing Slurm job, on that job's nodes.

`submitit.AutoExecutor`, hydra's submitit launcher and plain `srun` call a function in every task. Task 0 supervises;
the other tasks wait for the end and return the same outcome.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.deadlines import within
from launcher.connections.channel import ChannelError, connect
from launcher.core.outcomes import JobOutcome
from launcher.errors import LauncherError
from launcher.history.outcome import Outcome
from launcher.job import gpus
from launcher.job.booster_checks import require_booster
from launcher.job.jobfile import JobSpec
from launcher.leadership.terms import newest
from launcher.scheduler import surrounding
from launcher.submission.outcome import settle
from launcher.submission.submitit_base import JobPaths

START_TIMEOUT_S = 120.0  # time for task 0 to start the supervisor, and for its outcome after it has ended
_SILENCE_S = 30.0
_POLL_S = 1.0

log = logging.getLogger(__name__)

_calls = itertools.count()


@dataclass(frozen=True, kw_only=True)
class InsideJob:
    """The job in which this process runs (the outer job).

    Attributes:
        cluster: the scheduler in whose job the process is, else "local".
        nodes: number of nodes; None on the local cluster, which has any number of nodes.
        task: number of this task, from 0, among those that call the same function.
        folder: the folder of the outer job's files.
        job_id: id of the outer job; None if there is none.
        gpus: the GPUs that the outer job has on this node.
    """

    cluster: str
    nodes: int | None
    task: int
    folder: Path
    job_id: str | None
    gpus: int = 0

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> InsideJob:
        """Read the variables that submitit and the scheduler have set."""
        is_local_submitit = env.get("SUBMITIT_EXECUTOR") == "local" or "SUBMITIT_DEBUG_JOB_ID" in env
        job_id = env.get("SUBMITIT_LOCAL_JOB_ID") or env.get("SUBMITIT_DEBUG_JOB_ID") if is_local_submitit else None
        nodes, given, task = None, 0, int(env.get("SUBMITIT_LOCAL_GLOBALID", 0)) if is_local_submitit else 0
        around = None if is_local_submitit else surrounding(env)
        if around is not None and (place := around.place(env)) is not None:
            job_id, nodes, given, task = place.job_id, len(place.nodes), place.gpus, place.task
        folder = JobPaths(env["SUBMITIT_FOLDER"], job_id=job_id).folder if "SUBMITIT_FOLDER" in env else Path("runs")
        return cls(
            cluster="local" if around is None else around.name,
            nodes=nodes,
            task=task,
            folder=folder.absolute(),
            job_id=job_id,
            gpus=given,
        )


def run_here(mapping: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Run a job inside the outer job; returns its outcome as plain data.

    Args:
        mapping: the keys of a job file. Default for `nodes`: all nodes of the outer job, without the spares.
        source: name of the mapping in errors.

    Raises:
        JobFailed: the job ended before it was done.
        LauncherError: this is not task 0, and task 0 has ended without an outcome.
        SystemExit: the job has stopped, and continues when Slurm has requeued the outer job.
    """
    place = InsideJob.from_env(os.environ)
    spares = mapping.get("spares") or 0
    nodes = max(1, (place.nodes or 1) - spares) if isinstance(spares, int) else 1
    auto = gpus.of_this_machine if place.nodes is None else gpus.of_the_allocation(place.gpus)
    spec = JobSpec.from_mapping({"nodes": nodes, **mapping}, Path.cwd(), source, auto_gpus=auto)
    if place.nodes is not None:
        require_booster(spec)
    elif place.task == 0 and (remark := gpus.remark(spec.gpus_per_node, spec.workers_per_node)):
        log.warning("%s", remark)
    stem = place.job_id or time.strftime("%Y%m%d-%H%M%S")
    job_dir = place.folder / f"{stem}_torchrun-{next(_calls)}"
    earlier = Outcome.read(job_dir)
    if earlier is not None and earlier.name in (JobOutcome.DONE, JobOutcome.HALTED):
        return earlier.to_mapping()  # the job had ended before the outer job was requeued
    if place.task > 0:
        return settle(spec.name, _follow(job_dir, earlier))
    from launcher.supervisor import supervise

    outcome = supervise(spec, job_dir, place.cluster)
    return settle(spec.name, outcome)


def _follow(job_dir: Path, earlier: Outcome | None) -> Outcome:
    """Wait until task 0's supervisor has ended; returns the outcome that it has written."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while (outcome := Outcome.read(job_dir)) is None or outcome == earlier:
        if asyncio.run(_stay(job_dir)):
            deadline_s = time.monotonic() + START_TIMEOUT_S
        elif time.monotonic() > deadline_s:
            raise LauncherError(
                f"{job_dir}: task 0 of this job supervises, but cannot be reached and has left no outcome for "
                f"{START_TIMEOUT_S:g} s; see log/supervisor.log there"
            )
        else:
            time.sleep(_POLL_S)
    return outcome


async def _stay(job_dir: Path) -> bool:
    """Hold a connection to the supervisor while it answers. Returns False if none could be made."""
    try:
        term = newest(job_dir)
        if term is None:
            return False
        secret = bytes.fromhex((job_dir / "secret").read_text())
        hello = {"op": "follow", "host": socket.gethostname()}
        channel, _ = await connect(term.host, term.port, secret, hello)
    except (ChannelError, OSError, ValueError):
        return False
    try:
        while True:
            channel.send({"op": "here"})
            await within(_SILENCE_S, channel.receive())
            await asyncio.sleep(_POLL_S)
    except (TimeoutError, ChannelError):
        return True
    finally:
        await channel.close()
