"""The boosters of a run on Slurm: further jobs, which Slurm may preempt one by one.

All of them have one name, by which they are found and ended whoever has submitted them: a supervisor may be killed
between sbatch's answer and its record.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from ckpt.agent.process.launch import PYTHON, outside_our_step
from launcher.core.inputs import AllocationState
from launcher.env.containers import of_the_batch
from launcher.jobfile import JobSpec
from slurm import Slurm
from slurm.hostlist import compress, expand
from slurm.records import NamedJob

Seen = tuple[AllocationState, str]

# Near the time limit each process of the steps gets what it gets at a preemption. Slurm may send it a minute early.
_WARNING = "TERM@60"
_RUNNING = ("RUNNING", "SUSPENDED")
_QUEUED = ("PENDING", "CONFIGURING")


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
        self.name = f"{spec.name}-booster-of-{base}"

    def ask(self, nodes: int, exclude: Iterable[str], environment: Mapping[str, str]) -> str:
        """Submits one; returns its job's number.

        Raises:
            SlurmError: Slurm refuses or does not answer. It may have it all the same.
        """
        # HOLDFAST_* of ours are the batch script's: where its memory is, say.
        env = {name: value for name, value in outside_our_step(os.environ).items() if not name.startswith("HOLDFAST_")}
        return str(self._slurm.submit([], self.script(nodes, exclude), {**env, **environment}))

    def script(self, nodes: int, exclude: Iterable[str]) -> str:
        """The text that sbatch gets. What runs there finds the rest in its environment."""
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
        lines = [f"#SBATCH --{name}" + ("" if value is True else f"={shlex.quote(str(value))}")
                 for name, value in options.items() if value != ""]  # fmt: skip
        command = shlex.join([*PYTHON, "-u", "-m", "launcher.scheduler.booster"])
        return "\n".join(["#!/bin/bash", *lines, "trap '' USR1 USR2", f"exec {command}", ""])

    def seen(self, known: Collection[str]) -> dict[str, Seen]:
        """How these stand, and why. Those of the run's that are not among them are ended.

        Raises:
            SlurmError: Slurm does not answer.
        """
        found = self._slurm.jobs_named(self.name)
        for number, job in found.items():
            if number not in known and _state(job) is not AllocationState.ENDED:
                self._slurm.cancel(number)
        gone = NamedJob(state="GONE", reason="Slurm has forgotten it")
        stand = {number: found.get(number, gone) for number in known}
        return {number: (_state(job), _reason(job)) for number, job in stand.items()}

    def end(self, number: str) -> None:
        """Ends one, or takes it out of the queue.

        Raises:
            SlurmError: Slurm refuses or does not answer.
        """
        self._slurm.cancel(number)

    def end_all(self) -> None:
        """Ends all of the run's, also those that nobody has recorded.

        Raises:
            SlurmError: Slurm does not answer.
        """
        self._slurm.cancel_named(self.name)


def _reason(job: NamedJob) -> str:
    """Slurm's; its state where there is none. A job that was just submitted has none yet."""
    return job.reason or ("" if job.state in _QUEUED else job.state.lower())


def _state(job: NamedJob) -> AllocationState:
    """One that is being ended has ended: its nodes do no more for the run."""
    if job.state in _QUEUED:
        return AllocationState.QUEUED
    if job.state in _RUNNING:
        return AllocationState.PREEMPTED if job.is_preempted else AllocationState.RUNNING
    return AllocationState.ENDED
