"""`holdfast run` and `holdfast submit`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.blocks import WaitLine, print_json
from launcher.cli.completion import clusters
from launcher.cli.job_command import SCRIPT_ARGUMENTS
from launcher.cli.options import Folder, GpusPerNode, JobFile, Json, Nodes, Spares
from launcher.scheduler import NAMES

if TYPE_CHECKING:
    from launcher.job.jobfile import JobSpec


def run(
    context: typer.Context,
    job_file: JobFile,
    nodes: Nodes = None,
    spares: Spares = None,
    gpus_per_node: GpusPerNode = None,
    folder: Folder = "runs/%j",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show the events without the lines of rank 0.")] = False,
    as_json: Json = False,
) -> None:
    """Run a job on the local cluster and follow it to its end: its events, and what rank 0 prints.

    Nodes are groups of processes on this machine. Ctrl-C cancels the job. Words after -- replace the job file's args:

        holdfast run job.yaml -N 2 -- --steps 10

    With --json each event is a JSON object on one line; the first has the job's id and folder.

    Exit codes: 0 done, 1 internal error, 10 the script failed twice with the same error,
    11 no progress, 12 too few nodes, 13 cancelled, 14 not the fabric that the job file requires,
    15 done but no step is in a lower tier, 16 no step of the lower tiers can be restored,
    17 not tried again: the fault would come again, or the job file says so.
    """
    from holdfast.blocks import console_on
    from launcher.cli.progress import follow
    from launcher.job.registry import KnownJob
    from launcher.submission.executor import Executor

    arguments = context.meta[SCRIPT_ARGUMENTS]
    spec = _load(job_file, "local", nodes=nodes, spares=spares, gpus_per_node=gpus_per_node, args=arguments)
    submitted = Executor(folder, cluster="local").submit(spec)
    job = KnownJob(
        job_id=submitted.job_id, name=spec.name, cluster="local", folder=submitted.paths.folder, nodes=spec.nodes,
        spares=spec.spares,
    )  # fmt: skip
    raise typer.Exit(follow(job, console_on(sys.stdout), shows_output=not quiet, as_json=as_json))


def submit(
    context: typer.Context,
    job_file: JobFile,
    cluster: Annotated[str, typer.Option(help=f"{NAMES}.", metavar="NAME", autocompletion=clusters)] = "slurm",
    nodes: Nodes = None,
    spares: Spares = None,
    gpus_per_node: GpusPerNode = None,
    folder: Folder = "runs/%j",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the sbatch script; submit nothing.")] = False,
    test_only: Annotated[
        bool, typer.Option("--test-only", help="Ask Slurm when and where the job would start; submit nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Submit a job.

    Other options, before or after JOB.yaml, go to sbatch unchanged. Words after -- replace the job file's args:

        holdfast submit -p train -t 1-0 -A team job.yaml -- --lr 3e-4

    The job's own exit code, as sacct shows it:
    0 done, 1 internal error, 10 the script failed twice with the same error,
    11 no progress, 12 too few nodes, 13 cancelled, 14 not the fabric that the job file requires,
    15 done but no step is in a lower tier, 16 no step of the lower tiers can be restored,
    17 not tried again: the fault would come again, or the job file says so.
    """
    from launcher.scheduler import scheduler

    flags = context.args
    arguments = context.meta[SCRIPT_ARGUMENTS]
    spec = _load(job_file, cluster, flags, nodes=nodes, spares=spares, gpus_per_node=gpus_per_node, args=arguments)
    if dry_run or test_only:
        with WaitLine(f"asking {cluster}"):
            text, remark = scheduler(cluster).preview(spec, folder, flags, asks=test_only)
        typer.echo(text)
        return typer.echo(remark, err=True) if remark else None
    from launcher.submission.executor import Executor

    options = {f"{cluster}_flags": flags} if flags else {}
    with WaitLine("submitting"):
        submitted = Executor(folder, cluster=cluster, **options).submit(spec)
    if as_json:
        return print_json({"job_id": submitted.job_id, "folder": str(submitted.paths.folder)})
    typer.echo(f"submitted job {submitted.job_id}: {_size(spec)}, folder {submitted.paths.folder}")
    return typer.echo(
        f"watch it: holdfast status {submitted.job_id} --watch; its output: holdfast logs {submitted.job_id} -f"
    )


def _load(job_file: Path, cluster: str, flags: Sequence[str] = (), **changes: Any) -> JobSpec:
    """Reads the job file and applies the command line to it, including sbatch's --gres and --chdir.

    Where the job grows, its boosters get the sbatch options of the command line that describe nodes as well.
    """
    from launcher.job import gpus
    from launcher.job.jobfile import load_job
    from launcher.scheduler import scheduler

    found = scheduler(cluster)
    auto = gpus.of_this_machine if found.is_this_machine else gpus.not_here
    given = {name: value for name, value in changes.items() if value is not None}
    options = found.options(flags)
    if decisive := {name: options[name] for name in ("gres", "chdir") if options.get(name)}:
        given["slurm"] = decisive
    spec = load_job(job_file, given, auto)
    if spec.most_boosters and (shared := _of_the_nodes(options)):
        return load_job(job_file, {**given, "slurm": {**given.get("slurm", {}), **shared}})
    return spec


def _of_the_nodes(options: Mapping[str, str]) -> dict[str, str | bool]:
    """A flag without a value is true."""
    from launcher.job.elastic import of_the_nodes

    excluded = {"exclude": options["exclude"]} if options.get("exclude") else {}
    return {name: value or True for name, value in (of_the_nodes(options) | excluded).items()}


def _size(spec: JobSpec) -> str:
    from launcher.history.wording import plural

    return f"{plural(spec.nodes, 'node')} + {plural(spec.spares, 'spare')}"
