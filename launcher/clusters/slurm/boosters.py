"""The boosters of a run on Slurm: further jobs, which Slurm may preempt one by one.

A booster's job has the booster's number in its name. So a supervisor finds a booster that an earlier one has submitted,
also if that one was killed before sbatch's answer, and submits no other one in its place.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from ckpt.agent.process.launch import PYTHON, outside_our_step
from holdfast.base.environment import PREFIX, Variable
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

log = logging.getLogger(__name__)

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


def booster_name(job_name: str, base: int | str, number: str = "") -> str:
    """The name of a booster in Slurm.

    Args:
        job_name: the name in the job file.
        base: the Slurm job that the run started with.
        number: the booster's; "" for the beginning of the names of all boosters of the run.
    """
    return f"{job_name}-booster-of-{base}-{number}"


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
        self._base = base
        self._job_ids: dict[str, str] = {}  # by number

    def ask(self, number: str, nodes: int, exclude: Iterable[str], environment: Mapping[str, str]) -> str:
        """Submit a booster, unless Slurm has it already; returns its job id.

        Raises:
            SlurmError: Slurm refuses or does not answer. It may have the job nevertheless.
        """
        if found := self.job_ids({number}):
            return found[number]
        # This process' HOLDFAST_* variables are for the base only, for example the path of its memory directory.
        env = {name: value for name, value in outside_our_step(os.environ).items() if not name.startswith(PREFIX)}
        script = self.script(number, nodes, exclude)
        for name in overriding(env, script, _OWNED):
            del env[name]
        own: dict[str, str] = {Variable.ALLOCATION: number}
        self._job_ids[number] = job_id = str(self._slurm.submit([], script, {**env, **environment, **own}))
        return job_id

    def job_ids(self, numbers: Collection[str]) -> dict[str, str]:
        """The Slurm jobs of boosters, by number; of those that Slurm knows.

        Raises:
            SlurmError: Slurm does not answer.
        """
        if not self._job_ids.keys() >= {*numbers}:
            self._listed()
        return {number: self._job_ids[number] for number in numbers if number in self._job_ids}

    def script(self, number: str, nodes: int, exclude: Iterable[str]) -> str:
        """The batch script of a booster. Its program gets the rest from the environment."""
        excluded = {*exclude, *expand(str(self._spec.slurm.get("exclude", "")))}
        options = {
            "signal": _WARNING,
            **of_the_batch(self._spec.booster_options),
            "job-name": self._name(number),
            "dependency": "singleton",  # a second job of this name waits until the first one ends
            "nodes": nodes,
            "ntasks-per-node": 1,
            "exclude": compress(sorted(excluded)),
            "no-requeue": True,
            "no-kill": True,
            "export": "ALL",
            "open-mode": "append",
            "output": str(self._job_dir / "log" / "booster-%j.log"),
        }
        command = shlex.join([*PYTHON, "-u", "-m", "launcher.clusters.slurm.booster"])
        return batch_script(options, ["trap '' USR1 USR2", f"exec {command}"])

    def seen(self, known: Collection[str]) -> dict[str, SeenAllocation]:
        """What Slurm says about the boosters of this run, and about the known ones that it has forgotten.

        Raises:
            SlurmError: Slurm does not answer.
        """
        gone = SeenAllocation(AllocationState.ENDED, "Slurm has forgotten it")
        return dict.fromkeys(known, gone) | {number: self._seen(*found) for number, found in self._listed().items()}

    def why_terminated(self, number: str) -> str:
        """Why Slurm has sent a SIGTERM to a booster.

        Raises:
            SlurmError: Slurm does not answer.
        """
        found = self._listed().get(number)
        if found is None:
            return "Slurm has forgotten it"
        _, job = found
        if job.is_preempted or _is_near_its_end(job):
            return _reason(job)
        return "ended by a signal" if job.state in _RUNNING else "cancelled"

    def _name(self, number: str = "") -> str:
        return booster_name(self._spec.name, self._base, number)

    def _listed(self) -> dict[str, tuple[str, NamedJob]]:
        """The boosters of this run that Slurm has, by number: the job id and the job.

        A number has two jobs if the sbatch of a supervisor that was killed has come very late. The older one counts.
        The other one cannot start before it has ended, and is cancelled.
        """
        found: dict[str, tuple[str, NamedJob]] = {}
        jobs = self._slurm.jobs_named(self._name())
        for job_id in sorted(jobs, key=lambda job_id: (len(job_id), job_id)):
            number = jobs[job_id].name.removeprefix(self._name())
            if number not in found:
                found[number] = job_id, jobs[job_id]
            elif _state(jobs[job_id]) is not AllocationState.ENDED:
                log.warning("booster %s is job %s; job %s of this name is cancelled", number, found[number][0], job_id)
                self._slurm.cancel(job_id)
        self._job_ids |= {number: job_id for number, (job_id, _) in found.items()}
        return found

    def _seen(self, job_id: str, job: NamedJob) -> SeenAllocation:
        has_failed = job.state in _FAILED or job.reason.startswith(_ERRORS)
        reason = _reason(job)
        if has_failed and (words := self._last_words(job_id)):
            reason = f"{reason}; log/booster-{job_id}.log ends with: {words}"
        return SeenAllocation(_state(job), reason, job.nodes, has_failed)

    def _last_words(self, job_id: str) -> str:
        """The last line of a booster's log."""
        tail = Tail(self._job_dir / "log" / f"booster-{job_id}.log")
        with contextlib.suppress(OSError):
            tail.skip_to_last(_WORDS_LINES)
            lines = [*tail.lines(), tail.rest()]
            return next((line.strip() for line in reversed(lines) if line.strip()), "")[:_WORDS_CHARS]
        return ""

    def end(self, number: str) -> None:
        """End a booster, or remove it from the queue, if Slurm has it.

        Raises:
            SlurmError: Slurm refuses or does not answer.
        """
        self._slurm.cancel_named(self._name(number))

    def end_all(self) -> None:
        """End all boosters of the run, including those of earlier starts.

        Raises:
            SlurmError: Slurm does not answer.
        """
        for number, (_, job) in self._listed().items():
            if _state(job) is not AllocationState.ENDED:
                self.end(number)


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
