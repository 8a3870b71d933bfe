"""The `holdfast` command. Each verb checks its words, calls the part that does the work, and prints what that says.

Imports of the parts stand inside the verbs: `holdfast --help` must come at once.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from launcher.jobfile import JobSpec
    from launcher.registry import KnownJob


_PIPE_WIDTH = 10_000


class _RoomVerbs(TyperGroup, ABC):
    """A room's own verbs, imported when one is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self._verbs().list_commands(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return self._verbs().get_command(ctx, cmd_name)

    @abstractmethod
    def _verbs(self) -> Any:
        """The group that has them."""


class _CheckpointVerbs(_RoomVerbs):
    """`holdfast ckpt`."""

    def _verbs(self) -> Any:
        from ckpt.cli import app as verbs
        from launcher.checkpoint_plan import app as plan

        group = typer.main.get_group(verbs)
        group.add_command(typer.main.get_command(plan), "plan")
        return group


class _NodeVerbs(_RoomVerbs):
    """`holdfast node`."""

    def _verbs(self) -> Any:
        from launcher.node_env import app as env
        from lifecycle.cli import app as verbs

        group = typer.main.get_group(verbs)
        group.add_command(typer.main.get_command(env), "env")
        return group


_OPTIONS: dict[str, Any] = {"no_args_is_help": True, "add_completion": False, "pretty_exceptions_enable": False}
app = typer.Typer(**_OPTIONS, help="Keeps PyTorch training on Slurm running through the nodes it loses.")
cluster_app = typer.Typer(**_OPTIONS, help="A real Slurm of several nodes on this one machine (needs root).")
ckpt_app = typer.Typer(**_OPTIONS, cls=_CheckpointVerbs, help="List, verify, rebuild, copy and plan checkpoints.")
app.add_typer(ckpt_app, name="ckpt")
node_app = typer.Typer(**_OPTIONS, cls=_NodeVerbs, help="Check and provision this node; heal those of the cluster.")
app.add_typer(node_app, name="node")
app.add_typer(cluster_app, name="cluster")

JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.", show_default=False)]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, name or folder.", show_default=False)]
Nodes = Annotated[int | None, typer.Option(help="Nodes that train, instead of the job file's.", metavar="N")]
Spares = Annotated[int | None, typer.Option(help="Warm nodes beside them, instead of the job file's.", metavar="N")]
GpusPerNode = Annotated[
    str | None,
    typer.Option("--gpus-per-node", help="GPUs on each node, instead of the job file's.", metavar="[TYPE:]N"),
]
Folder = Annotated[str, typer.Option(help="The job's folder; %j is the job's id. For Slurm, where all nodes see it.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ClusterName = Annotated[str, typer.Option(help="The cluster's name.")]


def main(arguments: list[str] | None = None) -> int:
    """Entry point of `holdfast`.

    Args:
        arguments: the command line without the program's name; None takes it from the process.

    Returns:
        Exit code: 0 for ok, 1 for failed, 2 for a wrong request; of `holdfast run` also 10 to 14, for the job's end.
    """
    from ckpt import CheckpointError
    from launcher.errors import LauncherError
    from lifecycle import LifecycleError
    from slurm import SlurmError

    try:
        return app(sys.argv[1:] if arguments is None else arguments, prog_name="holdfast", standalone_mode=False) or 0
    except (LauncherError, LifecycleError, SlurmError, CheckpointError) as error:
        return _complain(str(error), getattr(error, "exit_code", 1))
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    except typer.Abort:
        return _complain("interrupted", 130)
    except Exception as error:
        if not hasattr(error, "format_message"):  # click's usage errors, wherever typer keeps its click
            raise
        return _complain(f"{error.format_message().rstrip('.')}; `{_help_command(error)}` tells more", 2)


def _complain(message: str, exit_code: int) -> int:
    print(f"holdfast: error: {' '.join(message.split())}", file=sys.stderr)
    return exit_code


def _help_command(error: Any) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context else 'holdfast'} --help"


@app.command(short_help="Run a job here, in the foreground, on the local cluster.")
def run(job_file: JobFile, nodes: Nodes = None, spares: Spares = None, folder: Folder = "runs/%j") -> None:
    """Run a job on the local cluster and follow it to its end.

    Nodes are groups of processes on this machine. Ctrl-C cancels the job.

    Exit codes: 0 done, 1 internal error, 10 the same error in the script twice,
    11 no progress, 12 too few nodes, 13 cancelled, 14 not the fabric that the job file requires.
    """
    from launcher.executor import Executor
    from launcher.progress import follow
    from launcher.registry import KnownJob

    spec = _load(job_file, nodes=nodes, spares=spares)
    submitted = Executor(folder, cluster="local").submit(spec)
    job = KnownJob(
        job_id=submitted.job_id, name=spec.name, cluster="local", folder=submitted.paths.folder, nodes=spec.nodes,
        spares=spec.spares,
    )  # fmt: skip
    console = _console()
    console.print(f"job {job.job_id}: {_size(spec)}, folder {job.folder}", soft_wrap=True, highlight=False)
    raise typer.Exit(follow(job, console))


@app.command(
    short_help="Submit a job to Slurm, or to the local cluster.",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
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
        return _print_json({"job_id": submitted.job_id, "folder": str(submitted.paths.folder)})
    typer.echo(f"submitted job {submitted.job_id}: {_size(spec)}, folder {submitted.paths.folder}")
    return None


@app.command(short_help="Show how a job stands; without JOB, all jobs.")
def status(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="The job's id, name or folder.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a job's state, attempt, nodes, step, committed steps, ETTR and last events; without JOB, a list of jobs.

    ETTR is the share of the time since the start that was spent gaining steps that counted.
    """
    from launcher.operate import status_now
    from launcher.registry import find_job, listed_jobs

    if job is None:
        return _print_jobs(listed_jobs(), as_json)
    found = find_job(job)
    now = status_now(found)
    if as_json:
        return _print_json({"job": found.to_mapping(), **now.to_mapping()})
    from launcher.history.view import render

    _print_block(render(now, f"{found.job_id}  {found.name}  ({found.cluster}, {found.folder})"))
    return None


@app.command(short_help="Print what a job's workers wrote.")
def logs(
    job: JobName,
    rank: Annotated[int | None, typer.Option(help="One worker. Default: rank 0.", metavar="R")] = None,
    node: Annotated[str | None, typer.Option(help="All workers of one node.", metavar="NODE")] = None,
    supervisor: Annotated[bool, typer.Option("--supervisor", help="The supervisor's log instead.")] = False,
    attempt: Annotated[int | None, typer.Option(help="Default: the newest.", metavar="K")] = None,
    lines: Annotated[int | None, typer.Option("--lines", "-n", help="Only the last N lines.", metavar="N")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
) -> None:
    """Print what a job's workers wrote: rank 0 of the newest attempt, unless told otherwise."""
    from launcher.errors import UsageError
    from launcher.logs import Selection, follow_logs, print_logs
    from launcher.operate import status_now
    from launcher.registry import find_job

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


@app.command(short_help="End a job for good.")
def cancel(job: JobName) -> None:
    """End a job for good, at once and without a last checkpoint. Its folder and its checkpoints stay."""
    from launcher.operate import cancel_job
    from launcher.registry import find_job

    typer.echo(cancel_job(find_job(job)))


@cluster_app.command("up", short_help="Start a cluster.")
def cluster_up(
    name: ClusterName = "default", nodes: Annotated[int, typer.Option(help="Number of nodes.", metavar="N")] = 4
) -> None:
    """Start a Slurm cluster whose nodes are namespaces of this machine, and say how to use it."""
    from slurm.testbed import TestCluster

    cluster = TestCluster.up(name=name, nodes=nodes)
    typer.echo(f"cluster {name}: {' '.join(cluster.nodes)}\n{cluster.usage}")


@cluster_app.command("down", short_help="Remove a cluster.")
def cluster_down(name: ClusterName = "default") -> None:
    """Remove a cluster and all that runs on it; also one that was built half way."""
    from slurm.testbed import TestCluster

    TestCluster.load(name).down()
    typer.echo(f"cluster {name} removed")


@cluster_app.command("status", short_help="Show a cluster; without --name, all clusters.")
def cluster_status(
    name: Annotated[str | None, typer.Option(help="The cluster's name.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Show the nodes of one cluster or of all, with their state in Slurm and their link."""
    from slurm.testbed import TestCluster

    names = list(TestCluster.list()) if name is None else [name]
    facts = [TestCluster.load(known).status() for known in names]
    if as_json:
        return _print_json(facts)
    if not facts:
        typer.echo("no cluster; `holdfast cluster up` starts one")
    for cluster in facts:
        typer.echo(f"cluster {cluster['name']}: controller {cluster['controller']}, SLURM_CONF={cluster['slurm_conf']}")
        for node in cluster["nodes"]:
            link = "link up" if node["link"] else "link down"
            alive = "running" if node["running"] else "crashed"
            typer.echo(f"  {node['name']:<8} {node['address']:<16} {node['state'] or '?':<10} {alive}, {link}")
    return None


def _load(job_file: Path, flags: Sequence[str] = (), **sizes: int | str | None) -> JobSpec:
    """The job file with the command line's sizes in place of its own, those of sbatch's --gres among them."""
    from launcher.jobfile import JobSpec, gpus_of_gres, load_job
    from launcher.strict_yaml import read_yaml

    spec = load_job(job_file)
    given: dict[str, Any] = {name: size for name, size in sizes.items() if size is not None}
    gres = _gres(flags)
    if not given and gres is None:
        return spec
    mapping = {**read_yaml(job_file), **given}
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


def _print_jobs(jobs: list[KnownJob], as_json: bool) -> None:
    from launcher.operate import status_now

    states = [(job, status_now(job)) for job in jobs]
    if as_json:
        return _print_json([{**job.to_mapping(), "state": now.state, "step": now.step} for job, now in states])
    if not states:
        typer.echo("no jobs submitted from here, none in ./runs; `holdfast submit JOB.yaml` submits one")
        return None
    from rich.table import Table
    from rich.text import Text

    from launcher.history.view import state_style

    table = Table("job", "name", "cluster", "state", "step", "folder", box=None, pad_edge=False)
    for job, now in states:
        state = Text(now.state, style=state_style(now.state))
        table.add_row(job.job_id, job.name, job.cluster, state, str(now.step), Text(str(job.folder), overflow="fold"))
    _print_block(table)
    return None


def _print_block(block: RenderableType) -> None:
    """As it is on a terminal; elsewhere without the blanks that fill up its lines."""
    console = _console()
    if console.is_terminal:
        return console.print(block)
    with console.capture() as capture:
        console.print(block)
    return typer.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def _console() -> Console:
    """Colours on a terminal; elsewhere plain lines, wide enough not to be folded."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)


def _size(spec: JobSpec) -> str:
    from launcher.history.view import plural

    return f"{plural(spec.nodes, 'node')} + {plural(spec.spares, 'spare')}"


def _print_json(facts: Any) -> None:
    typer.echo(json.dumps(facts, indent=2, default=str))
