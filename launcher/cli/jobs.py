"""`holdfast status`, `logs`, `scale`, `stop` and `cancel`, for jobs that were submitted."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import JobName, Json
from lifecycle.blocks import print_json

if TYPE_CHECKING:
    from launcher.registry import KnownJob


def status(
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="The job's id, name or folder.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a job's state, attempt, nodes, step, committed steps, ETTR and last events; without JOB, a list of jobs.

    ETTR (effective training time ratio) is the share of the job's time that went into steps that were kept.
    """
    from launcher.registry import find_job, listed_jobs
    from launcher.submission.job_control import status_now

    if job is None:
        return _print_jobs(listed_jobs(), as_json)
    found = find_job(job)
    now = status_now(found)
    if as_json:
        return print_json({"job": found.to_mapping(), **now.to_mapping()})
    from launcher.history.view import render
    from lifecycle.blocks import print_block

    print_block(render(now, f"{found.job_id}  {found.name}  ({found.cluster}, {found.folder})"))
    return None


def logs(
    job: JobName,
    rank: Annotated[int | None, typer.Option(help="One worker. Default: rank 0.", metavar="R")] = None,
    node: Annotated[str | None, typer.Option(help="All workers of one node.", metavar="NODE")] = None,
    supervisor: Annotated[bool, typer.Option("--supervisor", help="The supervisor's log instead.")] = False,
    attempt: Annotated[int | None, typer.Option(help="Default: the newest.", metavar="K")] = None,
    lines: Annotated[int | None, typer.Option("--lines", "-n", help="Only the last N lines.", metavar="N")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the output until the job ends.")] = False,
) -> None:
    """Print the output of a job's workers, by default that of rank 0 in the newest attempt."""
    from launcher.errors import UsageError
    from launcher.logs import Selection, follow_logs, print_logs
    from launcher.registry import find_job
    from launcher.submission.job_control import status_now

    if lines is not None and lines < 0:
        raise UsageError(f"--lines: got {lines}, expected 0 or more")
    found = find_job(job)
    selection = Selection(rank=rank, node=node, supervisor=supervisor, attempt=attempt)
    if follow:

        def note(line: str) -> None:
            typer.echo(f"holdfast logs: {line}", err=True)

        follow_logs(found.folder, selection, lines, typer.echo, lambda: status_now(found), note)
    else:
        print_logs(found.folder, selection, lines, typer.echo)


def scale(
    job: JobName,
    nodes: Annotated[
        str, typer.Argument(metavar="N|auto", help="Number of nodes; auto: the job file's.", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Have an elastic job train on N nodes. N is one of the sizes in its job file.

    The job grows when it has the nodes: on Slurm when its boosters start, on the local cluster at once. It shrinks at
    a step that all ranks agree on. Its state stays in memory. A new request replaces the earlier one; `auto` ends it:
    the job becomes as large as its job file allows.
    """
    from launcher.registry import find_job
    from launcher.submission.job_control import scale_job

    found = find_job(job)
    size = _size(nodes)
    message = scale_job(found, size)
    if as_json:
        return print_json({"job_id": found.job_id, "nodes": size})
    return typer.echo(message)


def stop(
    job: JobName,
    at_step: Annotated[
        int | None, typer.Option("--at-step", help="Stop at this step or later.", metavar="N", min=1)
    ] = None,
    after: Annotated[
        str | None, typer.Option(help="Stop after this time: 90s, 30m, 2h, 1d12h.", metavar="TIME")
    ] = None,
) -> None:
    """Have all ranks save at one step, then end the job. It is not requeued.

    The job's state is then `halted`, its exit code 0. The save goes to all tiers below memory; memory is freed. The
    job file needs a checkpoint section. A job that waits in Slurm's queue leaves it, unless --at-step or --after is
    given. A new request replaces the earlier one.
    """
    from launcher.registry import find_job
    from launcher.submission.job_control import stop_job

    at_s = None if after is None else time.time() + _seconds(after)
    typer.echo(stop_job(find_job(job), at_step, at_s))


def cancel(job: JobName) -> None:
    """End a job at once, without a last checkpoint. Its folder and its checkpoints stay."""
    from launcher.registry import find_job
    from launcher.submission.job_control import cancel_job

    typer.echo(cancel_job(find_job(job)))


def _size(text: str) -> int | None:
    """A number of nodes; None for "auto"."""
    from launcher.errors import UsageError

    if text == "auto":
        return None
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:9]) < 10**8:
        raise UsageError(f"N: got {text!r:.40}, expected a number of nodes, at least 1, or auto")
    return int(text)


def _seconds(text: str) -> float:
    from launcher.errors import UsageError

    parts = re.fullmatch(r"(?:(\d{1,4})d)?(?:(\d{1,4})h)?(?:(\d{1,5})m)?(?:(\d{1,7})s)?", text)
    if not text or parts is None:
        raise UsageError(f"--after: got {text!r}, expected a time with its units: 90s, 30m, 2h, 1d12h")
    return float(sum(int(part or 0) * unit for part, unit in zip(parts.groups(), (86400, 3600, 60, 1), strict=True)))


def _print_jobs(jobs: list[KnownJob], as_json: bool) -> None:
    from launcher.submission.job_control import status_now

    states = [(job, status_now(job)) for job in jobs]
    if as_json:
        return print_json([{**job.to_mapping(), "state": now.state, "step": now.step} for job, now in states])
    if not states:
        typer.echo("no jobs submitted from here, none in ./runs; `holdfast submit JOB.yaml` submits one")
        return None
    from launcher.cli.job_table import job_table
    from lifecycle.blocks import console_on, print_block

    print_block(job_table(states, console_on(sys.stdout).width))
    return None
