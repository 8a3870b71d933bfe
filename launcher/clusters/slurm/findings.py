"""What `holdfast doctor` finds about Slurm, and the step in which it looks at a node."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from launcher.clusters.mpirun import find_mpirun
from launcher.doctor.boosters import judge_boosters
from launcher.doctor.slurm_settings import judge_export, judge_settings
from launcher.job.jobfile import JobSpec
from lifecycle import Finding, Status
from slurm import Slurm, SlurmError
from slurm.command import CommandRunner
from slurm.conf import lint

QUEUE_S = 60  # how long the step waits for a free node
STEP_MIN = 5
_OF_THE_STEP = ("partition", "account", "qos", "reservation", "constraint", "container-image", "container-mounts")


def findings(spec: JobSpec | None, runner: CommandRunner) -> Iterator[Finding]:
    """The findings about Slurm itself; only that of the check "slurm" if it does not answer."""
    try:
        slurm = Slurm(run=runner)
        config = slurm.config()
    except SlurmError as error:
        advice = "set SLURM_CONF to the cluster's slurm.conf and check munge; --cluster local checks only this machine"
        yield _bad("slurm", str(error), "an answer to scontrol show config", advice)
        return
    yield from judge_settings(config)
    yield from judge_boosters(spec, slurm)
    yield from judge_export(config, None if spec is None else spec.slurm.get("export"), _login_shell())
    yield from _hooks(config)
    try:
        types = slurm.mpi_types()
        listed = ", ".join(types) or "nothing"
    except SlurmError as error:
        types, listed = (), str(error)
    if "pmix" in types:
        yield Finding(check="pmix", status=Status.OK, measured="srun --mpi=list has pmix", expected="pmix")
    else:
        advice = "install Slurm's pmix plugin: srun starts the checkpoint agents by it"
        row = _bad("pmix", f"srun --mpi=list: {listed[:200]}", "pmix", advice)
        if (mpirun := find_mpirun()) is not None:
            row = replace(row, status=Status.WARNING, advice=f"{advice}; without it {mpirun} does, in no container")
        yield row


def step(spec: JobSpec | None, *, has_pmix: bool) -> list[str]:
    """The words before a command that run it in one step on a free node of a job."""
    options = {} if spec is None else {name: spec.slurm[name] for name in _OF_THE_STEP if name in spec.slurm}
    gpus = [f"--gpus-per-node={spec.gpus_per_node}"] if spec is not None and spec.gpus_per_node else []
    return [
        *("srun", "--nodes=1", "--ntasks=1", f"--immediate={QUEUE_S}", f"--time={STEP_MIN}", "--quiet"),
        *("--job-name=holdfast-doctor", f"--mpi={'pmix' if has_pmix else 'none'}", *gpus),
        *(f"--{name}={value}" if value is not True else f"--{name}" for name, value in options.items()),
    ]


def _login_shell() -> str:
    """That of the caller; "" for a user without an account."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_shell
    except KeyError:
        return ""


def _hooks(config: Mapping[str, str]) -> Iterator[Finding]:
    path = Path(config.get("SLURM_CONF", "/etc/slurm/slurm.conf"))
    try:
        remarks = lint(path.read_text(errors="replace"))
    except OSError as error:
        why = f"{path}: {error.strerror}"
        yield Finding(check="hooks", status=Status.UNKNOWN, measured=why, advice="ask an administrator")
        return
    needed = [remark.parameter for remark in remarks if remark.needed]
    row = Finding(check="hooks", status=Status.OK, measured=f"{path} calls them", expected="Holdfast's hooks")
    if needed:
        advice = f"holdfast node slurm-conf --lint {path}; jobs run without hooks, but failed nodes stay in service"
        row = replace(row, status=Status.WARNING, measured=f"{path} lacks {', '.join(needed)}", advice=advice)
    yield row


def _bad(check: str, measured: str, expected: str, advice: str) -> Finding:
    measured = " ".join(measured.split())
    return Finding(check=check, status=Status.CRITICAL, measured=measured, expected=expected, advice=advice)
