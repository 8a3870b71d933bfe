"""`holdfast run` and `holdfast submit`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.cli.options import Folder, GpusPerNode, JobFile, Json, Nodes, Spares
from launcher.cli.output import print_json

if TYPE_CHECKING:
    from launcher.jobfile import JobSpec


def run(job_file: JobFile, nodes: Nodes = None, spares: Spares = None, folder: Folder = "runs/%j") -> None:
    """Run a job on the local cluster and follow it to its end.

    Nodes are groups of processes on this machine. Ctrl-C cancels the job.

    Exit codes: 0 done, 1 internal error, 10 the same error in the script twice,
    11 no progress, 12 too few nodes, 13 cancelled, 14 not the fabric that the job file requires.
    """
    from launcher.executor import Executor
    from launcher.progress import follow
    from launcher.registry import KnownJob
    from lifecycle.blocks import console_on

    spec = _load(job_file, nodes=nodes, spares=spares)
    submitted = Executor(folder, cluster="local").submit(spec)
    job = KnownJob(
        job_id=submitted.job_id, name=spec.name, cluster="local", folder=submitted.paths.folder, nodes=spec.nodes,
        spares=spec.spares,
    )  # fmt: skip
    console = console_on(sys.stdout)
    console.print(f"job {job.job_id}: {_size(spec)}, folder {job.folder}", soft_wrap=True)
    raise typer.Exit(follow(job, console))


def submit(
    context: typer.Context,
    job_file: JobFile,
    cluster: Annotated[str, typer.Option(help="slurm or local.")] = "slurm",
    nodes: Nodes = None,
    spares: Spares = None,
    gpus_per_node: GpusPerNode = None,
    folder: Folder = "runs/%j",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what sbatch would get, submit nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Submit a job.

    Any further option after JOB.yaml goes to sbatch as it stands:

    holdfast submit job.yaml --account=team -p train

    The job's own exit code, as sacct shows it:
    0 done, 1 internal error, 10 the same error in the script twice,
    11 no progress, 12 too few nodes, 13 cancelled, 14 not the fabric that the job file requires.
    """
    from launcher.errors import UsageError

    flags = context.args
    if str(job_file).startswith("-"):
        raise UsageError(f"submit: got {job_file} first, expected JOB.yaml first and sbatch's options after it")
    if flags and cluster != "slurm":
        raise UsageError(f"submit: got {' '.join(flags)} with --cluster {cluster}, expected no sbatch options there")
    spec = _load(job_file, flags, nodes=nodes, spares=spares, gpus_per_node=gpus_per_node)
    if dry_run:
        return _print_dry_run(spec, cluster, folder, flags)
    from launcher.executor import Executor

    options = {"slurm_flags": flags} if cluster == "slurm" else {}
    submitted = Executor(folder, cluster=cluster, **options).submit(spec)
    if as_json:
        return print_json({"job_id": submitted.job_id, "folder": str(submitted.paths.folder)})
    typer.echo(f"submitted job {submitted.job_id}: {_size(spec)}, folder {submitted.paths.folder}")
    return None


def _load(job_file: Path, flags: Sequence[str] = (), **sizes: int | str | None) -> JobSpec:
    """The job file with the command line's sizes in place of its own, those of sbatch's --gres among them."""
    from launcher.jobfile import JobSpec, gpus_of_gres, load_job, read_job

    spec = load_job(job_file)
    given: dict[str, Any] = {name: size for name, size in sizes.items() if size is not None}
    gres = _gres(flags)
    if not given and gres is None:
        return spec
    mapping = {**read_job(job_file), **given}
    if gres is not None:
        mapping["slurm"] = {**spec.slurm, "gres": gres}
        if gpus_of_gres(gres) is not None and "gpus_per_node" not in given:
            mapping.pop("gpus_per_node", None)
    return JobSpec.from_mapping(mapping, job_file.absolute().parent, "command line")


def _gres(flags: Sequence[str]) -> str | None:
    if not flags:
        return None
    from launcher.submission.slurm import flag_values

    return flag_values(flags).get("gres")


def _print_dry_run(spec: JobSpec, cluster: str, folder: str, flags: list[str]) -> None:
    import shlex

    from launcher.errors import UsageError

    if cluster != "slurm":
        raise UsageError(f"--dry-run: got --cluster {cluster}, expected slurm; only there is a script to show")
    from launcher.executor import sbatch_script

    script, command = sbatch_script(spec, folder, flags)
    typer.echo(script.rstrip("\n"))
    typer.echo(f"# submitted by: {shlex.join(command)} SCRIPT", err=True)


def _size(spec: JobSpec) -> str:
    from launcher.history.view import plural

    return f"{plural(spec.nodes, 'node')} + {plural(spec.spares, 'spare')}"
