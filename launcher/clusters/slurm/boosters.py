"""The boosters of a run on Slurm: further jobs, which Slurm may preempt one by one.

All boosters of a run have the same job name. By this name a supervisor finds boosters that an earlier supervisor has
submitted and not recorded, because it was killed after sbatch's answer. The core ends them.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from ckpt.agent.process.launch import PYTHON, outside_our_step
from holdfast.base.environment import PREFIX
from launcher.core.boosters import PREEMPTED
from launcher.core.inputs import AllocationState
from launcher.env.containers import of_the_batch
from launcher.history.tail import Tail
from launcher.job.jobfile import JobSpec
from launcher.job.sbatch_options import NOT_FROM_ENVIRONMENT
from launcher.scheduler.cluster import SeenAllocation
from slurm import Slurm
from slurm.batch_script import batch_script, overriding
from slurm.hostlist import compress, expand
from slurm.records import NamedJob

# Before the time limit each process of the steps gets SIGTERM, as at a preemption. Slurm may send it a minute early.
_WARNING = "TERM@60"
# A booster's partition or QOS gives it the rest; the user's own defaults are for other jobs.
_OWNED = (*NOT_FROM_ENVIRONMENT, "qos", "time")
_WARNED_S = 150.0  # the time that is left at the warning, at most
_WORDS_LINES, _WORDS_CHARS = 8, 300
_RUNNING = ("RUNNING", "SUSPENDED")
_QUEUED = ("PENDING", "CONFIGURING")
_FAILED = ("FAILED", "BOOT_FAIL", "OUT_OF_MEMORY", "LAUNCH_FAILED", "RECONFIG_FAIL")
# Slurm's reasons of a job that has ended with an error of its own; the state is COMPLETING for a while
_ERRORS = ("NonZeroExitCode", "RaisedSignal", "JobLaunchFailure", "SystemFailure", "OutOfMemory", "BootFail")


def booster_name(job_name: str, base: int | str) -> str:
    """The name of a run's boosters in Slurm.

    Args:
        job_name: the name in the job file.
        base: the Slurm job that the run started with.
    """
    return f"{job_name}-booster-of-{base}"


class SlurmBoosters:
    """The boosters of one run.

    Args:
        spec: the job.
        job_dir: its folder.
        base: the Slurm job that the run started with.
        slurm: the cluster.
    """

    def __init__(self, spec: JobSpec, job_dir: Path, base: int, slurm: Slurm) -> None:
        self._spec = spec
        self._job_dir = job_dir
        self._slurm = slurm
        self.name = booster_name(spec.name, base)

    def ask(self, nodes: int, exclude: Iterable[str], environment: Mapping[str, str]) -> str:
        """Submit a booster; returns its job id.

        Raises:
            SlurmError: Slurm refuses or does not answer. It may have the job nevertheless.
        """
        # This process' HOLDFAST_* variables are for the base only, for example the path of its memory directory.
        env = {name: value for name, value in outside_our_step(os.environ).items() if not name.startswith(PREFIX)}
        script = self.script(nodes, exclude)
        for name in overriding(env, script, _OWNED):
            del env[name]
        return str(self._slurm.submit([], script, {**env, **environment}))

    def script(self, nodes: int, exclude: Iterable[str]) -> str:
        """The batch script of a booster. Its program gets the rest from the environment."""
        excluded = {*exclude, *expand(str(self._spec.slurm.get("exclude", "")))}
        log = str(self._job_dir / "log" / "booster-%j.log")
        options = {
            "signal": _WARNING,
            **of_the_batch(self._spec.booster_options),
            "job-name": self.name,
            "nodes": nodes,
            "ntasks-per-node": 1,
            "exclude": compress(sorted(excluded)),
            "no-requeue": True,
            "no-kill": True,
            "export": "ALL",
            "open-mode": "append",
            "output": log,
        }
        command = shlex.join([*PYTHON, "-u", "-m", "launcher.clusters.slurm.booster"])
        return batch_script(options, ["trap '' USR1 USR2", f"exec {command}"])

    def seen(self, known: Collection[str]) -> dict[str, SeenAllocation]:
        """What Slurm says about the boosters of this run, and about the known ones that it has forgotten.

        Raises:
            SlurmError: Slurm does not answer.
        """
        gone = NamedJob(state="GONE", reason="Slurm has forgotten it")
        found = dict.fromkeys(known, gone) | self._slurm.jobs_named(self.name)
        return {number: self._seen(number, job) for number, job in found.items()}

    def why_terminated(self, number: str) -> str:
        """Why Slurm has sent a SIGTERM to a booster.

        Raises:
            SlurmError: Slurm does not answer.
        """
        job = self._slurm.jobs_named(self.name).get(number)
        if job is None:
            return "Slurm has forgotten it"
        if job.is_preempted or _is_near_its_end(job):
            return _reason(job)
        return "ended by a signal" if job.state in _RUNNING else "cancelled"

    def _seen(self, number: str, job: NamedJob) -> SeenAllocation:
        has_failed = job.state in _FAILED or job.reason.startswith(_ERRORS)
        reason = _reason(job)
        if has_failed and (words := self._last_words(number)):
            reason = f"{reason}; log/booster-{number}.log ends with: {words}"
        return SeenAllocation(_state(job), reason, job.nodes, has_failed)

    def _last_words(self, number: str) -> str:
        """The last line of a booster's log."""
        log = Tail(self._job_dir / "log" / f"booster-{number}.log")
        with contextlib.suppress(OSError):
            log.skip_to_last(_WORDS_LINES)
            lines = [*log.lines(), log.rest()]
            return next((line.strip() for line in reversed(lines) if line.strip()), "")[:_WORDS_CHARS]
        return ""

    def end(self, number: str) -> None:
        """End a booster, or remove it from the queue.

        Raises:
            SlurmError: Slurm refuses or does not answer.
        """
        self._slurm.cancel(number)

    def end_all(self) -> None:
        """End all boosters of the run, including those that were never recorded.

        Raises:
            SlurmError: Slurm does not answer.
        """
        self._slurm.cancel_named(self.name)


def _reason(job: NamedJob) -> str:
    """Slurm's reason, or the job's state if there is none. A job that was just submitted has no reason yet."""
    if job.is_preempted:
        return PREEMPTED
    if _is_near_its_end(job):
        return "its time limit is near"
    return job.reason or ("" if job.state in _QUEUED else job.state.lower())


def _is_near_its_end(job: NamedJob) -> bool:
    is_started = job.state not in _QUEUED
    return is_started and job.time_left_s is not None and job.time_left_s <= _WARNED_S


def _state(job: NamedJob) -> AllocationState:
    """The booster's state. A job that is ending counts as ended, because its nodes do no more work for the run."""
    if job.state in _QUEUED:
        return AllocationState.QUEUED
    if job.state in _RUNNING:
        return AllocationState.PREEMPTED if job.is_preempted else AllocationState.RUNNING
    return AllocationState.ENDED
