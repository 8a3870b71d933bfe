"""`holdfast wait`, `scale`, `stop` and `cancel`, for jobs that were submitted."""

from __future__ import annotations

import re
import sys
import time
from typing import Annotated

import typer

from holdfast.blocks import WaitLine, print_json, printable
from launcher.cli.options import JobName, Json


def wait(job: JobName, as_json: Json = False) -> None:
    """Wait for a job's end.

    The exit code is the job's: 0 done or halted, 1 internal error or lost, 10 the script failed twice with the same
    error, 11 no progress, 12 too few nodes, 13 cancelled, 14 not the fabric that the job file requires, 15 done but no
    step is in a lower tier, 16 no step of the lower tiers can be restored, 17 not tried again: the fault would come
    again, or the job file says so. A job that is requeued has not ended. Ctrl-C ends only the waiting, with 130.
    """
    from launcher.cli.waiting import StandingLine
    from launcher.history.view import ending
    from launcher.job.registry import find_job
    from launcher.submission.job_control import await_end

    found = find_job(job)
    with StandingLine(sys.stderr) as line:
        status, exit_code = await_end(found, line.show)
    if as_json:
        print_json({"job_id": found.job_id, "exit_code": exit_code, **status.to_mapping()})
    else:
        typer.echo(printable(f"job {found.job_id}: {ending(status)}"))
    raise typer.Exit(exit_code)


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
    from launcher.job.registry import find_job
    from launcher.submission.job_control import scale_job

    found = find_job(job)
    size = _size(nodes)
    with WaitLine("asking Slurm"):
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
    as_json: Json = False,
) -> None:
    """Have all ranks save at one step, then end the job. It is not requeued.

    The job's state is then `halted`, its exit code 0. The save goes to all tiers below memory; memory is freed. The
    job file needs a checkpoint section. A job that waits in Slurm's queue leaves it, unless --at-step or --after is
    given. A new request replaces the earlier one.
    """
    from launcher.job.registry import find_job
    from launcher.submission.job_control import stop_job

    at_s = None if after is None else time.time() + _seconds(after)
    found = find_job(job)
    with WaitLine("asking Slurm"):
        message = stop_job(found, at_step, at_s)
    if as_json:
        return print_json({"job_id": found.job_id, "at_step": at_step, "at_s": at_s, "message": message})
    return typer.echo(message)


def cancel(job: JobName, as_json: Json = False) -> None:
    """End a job at once, without a last checkpoint. Its folder and its checkpoints stay."""
    from launcher.job.registry import find_job
    from launcher.submission.job_control import cancel_job

    found = find_job(job)
    with WaitLine(f"waiting for the end of job {found.job_id}"):
        message = cancel_job(found)
    if as_json:
        return print_json({"job_id": found.job_id, "message": message})
    return typer.echo(message)


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
