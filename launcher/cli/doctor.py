"""`holdfast doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.blocks import WaitLine, print_block, print_json
from launcher.cli.completion import clusters
from launcher.cli.options import Folder, Json, refuse_url
from launcher.scheduler import NAMES


def doctor(
    job_file: Annotated[
        Path | None, typer.Argument(metavar="JOB.yaml", help="Check for this job.", show_default=False)
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help=f"{NAMES}.  [default: slurm where srun is found]",
            metavar="NAME",
            show_default=False,
            autocompletion=clusters,
        ),
    ] = None,
    folder: Folder = "runs/%j",
    as_json: Json = False,
) -> None:
    """Check whether a job will run here. Each finding has the next step.

    On Slurm it reads the configuration and runs one step, of a few minutes at most, on one free node. Elsewhere it
    checks this machine, for the local cluster. It writes small files into the folder and an object into the job's
    bucket, and removes them.

    Exit code 1: something is critical.
    """
    from launcher.doctor.examination import examine
    from launcher.doctor.page import page, verdict
    from launcher.job.jobfile import load_job
    from launcher.scheduler import SCHEDULERS, found_here, scheduler
    from lifecycle import Status

    found = scheduler(cluster or found_here())
    refuse_url("--folder", folder)
    spec = None if job_file is None else load_job(job_file)
    place = Path(folder.partition("%")[0] or ".").absolute()
    with WaitLine(f"looking at {SCHEDULERS[found.name].words}, a node and the folders"):
        findings = examine(spec, place, found)
    worst = verdict(findings)
    if as_json:
        print_json({"status": worst.word, "findings": [finding.to_mapping() for finding in findings]})
    else:
        print_block(page(findings))
    raise typer.Exit(1 if worst is Status.CRITICAL else 0)
