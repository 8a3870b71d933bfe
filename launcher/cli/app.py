"""The `holdfast` command: all verbs, and the entry point. A new verb is one import and one line below.

A verb imports the parts that do its work when it is called: `holdfast --help` must come at once.
"""

from __future__ import annotations

import io
import os
import sys
from abc import ABC, abstractmethod
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from launcher.cli import cluster
from launcher.cli.doctor import doctor
from launcher.cli.errors import Complaints
from launcher.cli.init import init
from launcher.cli.job_command import JobCommand, SubmitCommand
from launcher.cli.jobs import cancel, scale, stop, wait
from launcher.cli.logs import logs
from launcher.cli.observe import dashboard, metrics, report
from launcher.cli.options import GROUP
from launcher.cli.plain_command import plain
from launcher.cli.schema import schema
from launcher.cli.start import run, submit
from launcher.cli.status import status, top
from launcher.cli.supervise import supervise
from launcher.cli.usage import usage
from launcher.cli.why import why


class _RoomVerbs(TyperGroup, ABC):
    """The verbs of another package, imported when one of them is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self._verbs().list_commands(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return self._verbs().get_command(ctx, cmd_name)

    @abstractmethod
    def _verbs(self) -> Any:
        """Imports the package's group of verbs."""


class _CheckpointVerbs(_RoomVerbs):
    """`holdfast ckpt`."""

    def _verbs(self) -> Any:
        from ckpt.cli.app import app as verbs
        from launcher.cli.checkpoint_plan import app as plan

        group = typer.main.get_group(plain(verbs))
        group.add_command(typer.main.get_command(plain(plan)), "plan")
        return group


class _NodeVerbs(_RoomVerbs):
    """`holdfast node`."""

    def _verbs(self) -> Any:
        from launcher.env.node_env import app as env
        from lifecycle.cli import app as verbs

        group = typer.main.get_group(plain(verbs))
        group.add_command(typer.main.get_command(plain(env)), "env")
        return group


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(f"holdfast {version('holdfast-hpc')}")
        raise typer.Exit


app = typer.Typer(**{**GROUP, "add_completion": True}, context_settings={"help_option_names": ["-h", "--help"]})


@app.callback()
def _holdfast(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Keeps PyTorch training on Slurm running when nodes fail."""


app.command("init", short_help="Write an example job and batch scripts to copy and edit.")(init)
app.command("run", short_help="Run a job here, in the foreground, on the local cluster.", cls=JobCommand)(run)
app.command("submit", short_help="Submit a job to Slurm, or to the local cluster.", cls=SubmitCommand)(submit)
app.command("status", short_help="Show the state of a job, or a list of all jobs.")(status)
app.command("why", short_help="Show why a job failed, what it cost, and what to do.")(why)
app.command("top", short_help="Show all jobs, live.")(top)
app.command("logs", short_help="Print what a job's workers wrote.")(logs)
app.command("wait", short_help="Wait for a job's end; the exit code is the job's.")(wait)
app.command("report", short_help="Write the report of a job as one HTML file.")(report)
app.command("dashboard", short_help="Show your jobs live in a browser.")(dashboard)
app.command("metrics", short_help="Print a job's metrics in OpenMetrics.")(metrics)
app.command("scale", short_help="Change the number of nodes of an elastic job.")(scale)
app.command("stop", short_help="Save, then end a job. It is not requeued.")(stop)
app.command("cancel", short_help="End a job at once, without a save.")(cancel)
app.command("usage", short_help="Show the node-hours of each account: own, and borrowed by boosters.")(usage)
app.command("supervise", short_help="Supervise a job inside a batch script.")(supervise)
app.command("doctor", short_help="Check whether a job will run here.")(doctor)
app.command("schema", short_help="Print the JSON Schema of a job file or of settings.")(schema)
ckpt = typer.Typer(**GROUP, cls=_CheckpointVerbs, help="List, verify, copy and plan checkpoints.")
app.add_typer(ckpt, name="ckpt")
node = typer.Typer(**GROUP, cls=_NodeVerbs, help="Check and provision this node; heal the cluster's nodes.")
app.add_typer(node, name="node")
app.add_typer(plain(cluster.app), name="cluster")
plain(app)


def main(arguments: list[str] | None = None) -> int:
    """Entry point of `holdfast`.

    Args:
        arguments: the command line without the program's name; None takes it from the process.

    Returns:
        Exit code: 0 for ok, 1 for failed, 2 for a wrong request; of `holdfast run` also 10 to 17, for the job's end.
    """
    words = sys.argv[1:] if arguments is None else arguments
    _prepare_stdout()
    try:
        code = app(words, prog_name="holdfast", standalone_mode=False) or 0
        sys.stdout.flush()
        return code
    except Exception as error:
        exit_code = Complaints(words).of(error)
        if exit_code is None:
            raise
        return exit_code


def _prepare_stdout() -> None:
    """Makes a stdout that takes every text: one that is closed (`>&-`), and one that is not in UTF-8."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
