"""`holdfast status` and `holdfast top`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.blocks import WaitLine, print_json
from launcher.cli.completion import job_ids, states
from launcher.cli.options import JOB_HELP, Json

if TYPE_CHECKING:
    from launcher.history.status import JobStatus
    from launcher.job.registry import KnownJob

_LISTED = 20

Limit = Annotated[
    int | None,
    typer.Option(help=f"List at most N jobs; 0: all. Default: {_LISTED}, with --json all.", metavar="N", min=0),
]
State = Annotated[
    str | None, typer.Option(help="List only jobs in this state.", metavar="STATE", autocompletion=states)
]


def status(
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help=JOB_HELP, show_default=False, autocompletion=job_ids)
    ] = None,
    state: State = None,
    limit: Limit = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show the job until it ends. q or Ctrl-C ends the view.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a job's state, attempt, nodes, step, committed steps, ETTR and last events; without JOB, a list of jobs.

    The list has the newest job first. ETTR (effective training time ratio) is the share of the job's time that went
    into steps that were kept.

    --watch fills the terminal and is drawn again each second; into a pipe it prints the events as they come.
    """
    from launcher.errors import UsageError
    from launcher.job.registry import find_job
    from launcher.submission.job_control import status_now

    if watch and (job is None or as_json):
        raise UsageError("--watch: expected JOB and no --json; `holdfast top` shows all jobs")
    if job is None:
        return _print_jobs(state, limit, as_json)
    if state is not None or limit is not None:
        raise UsageError(
            "status: got JOB with --state or --limit, expected only one of them; they choose from the list"
        )
    found = find_job(job)
    if watch:
        from holdfast.blocks import console_on
        from launcher.screen.watch import watch_job

        return watch_job(found, console_on(sys.stdout))
    with WaitLine(f"reading the events of job {found.job_id}"):
        now = status_now(found)
    if as_json:
        return print_json({"job": found.to_mapping(), **now.to_mapping()})
    from holdfast.blocks import print_block
    from launcher.history.view import render

    print_block(render(now, f"{found.job_id}  {found.name}  ({found.cluster}, {found.folder})"))
    return None


def top(
    all_users: Annotated[
        bool, typer.Option("--all-users", "-a", help="Show the jobs of all users of this Slurm cluster.")
    ] = False,
) -> None:
    """Show all jobs, drawn again each second: those that run or wait first, then those that have ended.

    --all-users is for administrators: it shows the jobs of Holdfast in Slurm's queue whose folders this user may read.

    q or Ctrl-C ends the view. Into a pipe it prints a line for each job whose state changes, and every 10 seconds one
    for each that runs.
    """
    from holdfast.blocks import console_on
    from launcher.screen.watch import watch_jobs

    watch_jobs(console_on(sys.stdout), all_users=all_users)


def _print_jobs(state: str | None, limit: int | None, as_json: bool) -> None:
    from launcher.errors import UsageError
    from launcher.history.status import STATES
    from launcher.job.registry import listed_jobs

    if state is not None and state not in STATES:
        raise UsageError(f"--state: got {state!r}, expected one of {', '.join(STATES)}")
    jobs = listed_jobs()[::-1]
    most = (0 if as_json else _LISTED) if limit is None else limit
    with WaitLine("reading the states", shows_by_itself=False) as line:
        listed, has_more = _chosen(jobs, state, most, line)
    if as_json:
        return print_json([{**job.to_mapping(), "state": now.state, "step": now.step} for job, now in listed])
    if not jobs:
        typer.echo(
            "no jobs submitted from here, none in ./runs; `holdfast run JOB.yaml` runs one on this machine, "
            "`holdfast submit JOB.yaml` submits one, `holdfast init` writes an example"
        )
        return None
    if not listed:
        return typer.echo(f"none of {len(jobs)} jobs is {state}")
    from holdfast.blocks import console_on, print_block
    from launcher.cli.job_table import job_table

    print_block(job_table(listed, console_on(sys.stdout).width))
    if has_more:
        typer.echo(f"the newest {len(listed)} of {len(jobs)} jobs; --limit 0 lists all")
    return None


def _chosen(
    jobs: list[KnownJob], state: str | None, most: int, line: WaitLine
) -> tuple[list[tuple[KnownJob, JobStatus]], bool]:
    """The first `most` jobs in a state, and whether there may be more."""
    from launcher.submission.job_control import status_now

    def with_states() -> Iterator[tuple[KnownJob, JobStatus]]:
        for count, job in enumerate(jobs):
            line.show(f"{count} of {len(jobs)} jobs")
            yield job, status_now(job)

    chosen = (each for each in with_states() if state is None or each[1].state == state)
    listed = list(itertools.islice(chosen, most or None))
    return listed, bool(most) and next(chosen, None) is not None
