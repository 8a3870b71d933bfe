"""`holdfast supervise`, for batch scripts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.options import JobFile, refuse_url


def supervise(
    job_file: JobFile,
    job_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The job's folder; all nodes must see it.  [default: runs/ and the job's id]",
            show_default=False,
        ),
    ] = None,
) -> None:  # fmt: skip
    """Supervise a job to its end, inside a job of the scheduler, such as Slurm's.

    It is for batch scripts; `holdfast submit` does not need it. The script has to `exec` this command, so that the
    scheduler's signals reach it. `holdfast init` writes examples into sbatch_templates/.
    """
    from launcher.errors import UsageError
    from launcher.job import gpus
    from launcher.job.booster_checks import require_booster
    from launcher.job.jobfile import load_job
    from launcher.job.module_names import check_modules
    from launcher.scheduler import surrounding
    from launcher.supervisor import supervise as run_to_its_end

    if job_dir is not None:
        refuse_url("--job-dir", job_dir)
    around = surrounding(os.environ)
    place = None if around is None else around.place(os.environ)
    if around is None or place is None:
        raise UsageError("supervise: this process is in no job of a scheduler; `holdfast run` runs a job without one")
    spec = load_job(job_file, auto_gpus=gpus.of_the_allocation(place.gpus))
    require_booster(spec)
    check_modules(spec, os.environ)
    raise typer.Exit(run_to_its_end(spec, job_dir or Path("runs") / place.allocation, around.name).exit_code)
