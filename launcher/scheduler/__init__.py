"""What the launcher asks of a scheduler. Each scheduler is a package of `launcher.clusters`, and a row of SCHEDULERS.

cluster.py       the interface of the nodes of a job, for its supervisor
interface.py     the interface of everything else: submission, status, requeue, and whether a run still lives
run_liveness.py  the program that says whether another run has ended

Nothing imports a scheduler's package by name: `scheduler` loads it when it is first asked for. So packages below this
one, such as the runner's, need not import what submits jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from shutil import which
from typing import TYPE_CHECKING, NamedTuple

from launcher.errors import UsageError

if TYPE_CHECKING:
    from launcher.scheduler.interface import Scheduler


class Registered(NamedTuple):
    """A scheduler.

    Attributes:
        path: the class that implements `Scheduler`, as module:class.
        words: the place of its jobs.
        program: a program of it; the scheduler is the default where that is found. "": it is not.
    """

    path: str
    words: str
    program: str = ""


SCHEDULERS: Mapping[str, Registered] = {
    "slurm": Registered("launcher.clusters.slurm.scheduler:SlurmScheduler", "this Slurm cluster", "srun"),
    "local": Registered("launcher.clusters.local.scheduler:LocalScheduler", "this machine"),
}

NAMES = " or ".join(", ".join(SCHEDULERS).rsplit(", ", 1))  # for messages


def found_here() -> str:
    """The name of the first scheduler whose program is found on this machine; else "local", which needs none."""
    return next((name for name, each in SCHEDULERS.items() if each.program and which(each.program)), "local")


@cache
def scheduler(name: str) -> Scheduler:
    """The scheduler of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in SCHEDULERS:
        raise UsageError(f"cluster: got {name!r}, expected one of {', '.join(SCHEDULERS)}")
    module, _, of = SCHEDULERS[name].path.partition(":")
    found: Scheduler = getattr(import_module(module), of)()
    return found


def scheduler_of(run_id: str) -> Scheduler:
    """The scheduler of a run, whose name is the first word of the run's id.

    Raises:
        UsageError: there is none of that name.
    """
    return scheduler(run_id.partition("-")[0])


def surrounding(env: Mapping[str, str]) -> Scheduler | None:
    """The scheduler in one of whose jobs the process with this environment runs; None if it runs in none."""
    return next((found for found in map(scheduler, SCHEDULERS) if found.place(env) is not None), None)
