"""`holdfast node provision`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.blocks import print_json
from holdfast.settings.errors import SettingsError
from holdfast.settings.yaml_file import read_settings
from lifecycle.errors import LifecycleError, NodeUsageError
from lifecycle.hyperpod import RESOURCE_CONFIG
from lifecycle.provision.fetch import CACHE_DIRECTORY, Fetch
from lifecycle.provision.plan import choose
from lifecycle.provision.provider import hyperpod, parallelcluster
from lifecycle.provision.resume import arm, disarm
from lifecycle.provision.site import SITE_FILE, Site
from lifecycle.provision.step import ProvisionedNode, Step
from lifecycle.provision.walk import Ending, StepOutcome, walk
from slurm import SlurmError
from slurm.command import CommandError, CommandRunner, Result, run

LOG_FILE = Path("/var/log/holdfast/provision.log")
# HyperPod's older way to configure Slurm: on_create.sh copies the file from beside it; HyperPod may have it as well.
_PARAMETERS = (
    Path("/etc/holdfast/provisioning_parameters.json"),
    Path("/opt/ml/config/provisioning_parameters.json"),
)
_CFN_CONFIG = Path("/etc/parallelcluster/cfnconfig")  # ParallelCluster writes this file before it runs site scripts
_NO_LOG = "{}: the log cannot be written ({}); continuing without a log"
_LOGGED = 20000  # number of characters of stdout, and of stderr, that the log keeps of one command
_log = logging.getLogger(__name__)

Names = Annotated[list[str] | None, typer.Option(metavar="STEP", help="Only this step; may be repeated.")]


def provision(
    only: Names = None,
    skip: Annotated[list[str] | None, typer.Option(help="Not this step; may be repeated.", metavar="STEP")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, change nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print JSON.")] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help=f"The site's settings for its nodes.  [default: {SITE_FILE}]", show_default=False
        ),
    ] = None,
    mirror: Annotated[
        str, typer.Option(help="Directory or s3://bucket/prefix with the pinned files.", metavar="WHERE")
    ] = "",
    resource_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="HyperPod's resource_config.json.", show_default=False)
    ] = None,
    parameters: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="HyperPod's older provisioning_parameters.json.", show_default=False),
    ] = None,
    root: Annotated[Path, typer.Option(hidden=True)] = Path("/"),
) -> None:
    """Install and configure this node for training, in steps. After a crash or a reboot, run it again to continue.

    A step whose result is already there changes nothing, so a second run changes nothing. A disk in use is never
    formatted.

    Exit code 0: all steps are done. 1: a step failed; the last lines name the step, the reason and the next action.
    """
    if as_json and not dry_run:
        raise NodeUsageError("--json: got it without --dry-run, expected both")
    steps = choose(only or (), skip or ())
    site = _site(config, mirror, resource_config, parameters)
    fetch = Fetch(site, root / CACHE_DIRECTORY.lstrip("/"))
    node = ProvisionedNode(root=root, site=site, run=_logged(run), fetch=fetch)
    if dry_run:
        return _print_plan([_planned(step, node, fetch) for step in steps], as_json)
    if os.geteuid() != 0:
        raise NodeUsageError(
            f"node provision: got user {os.geteuid()}, expected root; run it with sudo, or with --dry-run"
        )
    _open_log(LOG_FILE)
    _log.info("begin: steps %s", " ".join(step.name for step in steps))
    places = {step.name: f"[{number:>2}/{len(steps)}] {step.name:<11}" for number, step in enumerate(steps, 1)}
    outcomes = walk(
        steps,
        node,
        on_begin=lambda step: typer.echo(f"{places[step.name]} ", nl=False),
        on_end=lambda outcome: typer.echo(_line(outcome)),
        before_change=lambda: arm(node, sys.argv[1:], Path.cwd()),
    )
    if all(outcome.ending is not Ending.FAILED for outcome in outcomes):
        disarm(node, sys.argv[1:], Path.cwd(), whole=not only and not skip)
    raise typer.Exit(_summary(outcomes, sys.argv[1:]))


def _site(config: Path | None, mirror: str, resource_config: Path | None, parameters: Path | None) -> Site:
    """The settings of this node. The command line overrides node.yaml, which overrides the provider's files."""
    found: dict[str, Any] = {}
    if resource_config or parameters or RESOURCE_CONFIG.exists():
        old = parameters or next((path for path in _PARAMETERS if path.exists()), None)
        files = [path for path in (resource_config or RESOURCE_CONFIG, old) if path]
        found = hyperpod(files[0], old, _addresses())
        Site.from_mapping(found, ", ".join(map(str, files)))  # so that errors name these files, and not node.yaml
    elif _CFN_CONFIG.exists():
        found = parallelcluster(_CFN_CONFIG)
        Site.from_mapping(found, str(_CFN_CONFIG))
    path = config or SITE_FILE
    if config or path.exists():
        found = _over(found, read_settings(path))
    site = Site.from_mapping(found, str(path))
    return (
        dataclasses.replace(site, mirror=Site.from_mapping({"mirror": mirror}, "--mirror").mirror) if mirror else site
    )


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two mappings merged, where `above` overrides `below`: sections key by key, all other values as a whole."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _addresses() -> set[str]:
    found = json.loads(run(("ip", "-json", "address")).stdout)
    return {address["local"] for link in found for address in link.get("addr_info", ()) if "local" in address}


def _planned(step: Step, node: ProvisionedNode, fetch: Fetch) -> dict[str, str]:
    """The plan's row for a step. On a bare node it may be unknown, because an earlier step installs the tools."""
    try:
        if reason := step.skip(node):
            return {"step": step.name, "plan": "skip", "detail": reason}
        if step.is_done(node):
            return {"step": step.name, "plan": "nothing to do", "detail": step.goal(node)}
        for file in step.fetches(node):
            fetch.pinned(*file)
        return {"step": step.name, "plan": "apply", "detail": step.goal(node)}
    except CommandError as error:
        return {"step": step.name, "plan": "apply", "detail": f"not known yet: {error.reason}: {error.result.argv[0]}"}
    except (LifecycleError, SettingsError, SlurmError, OSError) as error:
        return {"step": step.name, "plan": "would fail", "detail": str(error)}


def _print_plan(rows: Sequence[Mapping[str, str]], as_json: bool) -> None:
    if as_json:
        return print_json(rows)
    from rich.table import Table
    from rich.text import Text

    from holdfast.blocks import print_block

    styles = {"apply": "yellow", "nothing to do": "green", "would fail": "red", "skip": "dim"}
    table = Table("step", "plan", "detail", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row["step"], Text(row["plan"], style=styles[row["plan"]]), Text(row["detail"], overflow="fold"))
    print_block(table)
    return None


def _line(outcome: StepOutcome) -> str:
    reason = f": {outcome.reason}" if outcome.reason else ""
    took = f"  {outcome.seconds:.1f} s" if outcome.ending in (Ending.DONE, Ending.FAILED) else ""
    return f"{outcome.ending.value}{reason}{took}"


def _summary(outcomes: Sequence[StepOutcome], arguments: Sequence[str]) -> int:
    """Prints the last lines and returns the exit code."""
    last = outcomes[-1] if outcomes else None
    if last is not None and last.ending is Ending.FAILED:
        again = shlex.join(["holdfast", *arguments])
        typer.echo(f"failed at step {last.step}: {last.reason}", err=True)
        typer.echo(f"log: {LOG_FILE}. Once the cause is fixed, run: {again}", err=True)
        return 1
    counts = {ending: sum(outcome.ending is ending for outcome in outcomes) for ending in Ending}
    following = "holdfast node check --level quick"
    if any(outcome.step == "hooks" and outcome.ending is Ending.DONE for outcome in outcomes):
        following = f"add the lines that `holdfast node slurm-conf` prints to slurm.conf; {following}"
    if not counts[Ending.DONE]:
        typer.echo(f"nothing to do ({counts[Ending.SKIPPED]} skipped); next: {following}")
    else:
        typer.echo(
            f"done: {counts[Ending.DONE]} applied, {counts[Ending.NOTHING_TO_DO]} had nothing to do, "
            f"{counts[Ending.SKIPPED]} skipped; next: {following}"
        )
    return 0


def _open_log(path: Path) -> None:
    logger = logging.getLogger("lifecycle.provision")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.handlers = []
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        handler = _LogFile(path)
    except OSError as error:
        typer.echo(_NO_LOG.format(path, error.strerror), err=True)
        logger.handlers = [logging.NullHandler()]  # without any handler, Python prints warnings to stderr
        return
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.handlers = [handler]


class _LogFile(logging.FileHandler):
    """A log file that reports its first write error (a full disk) once and then stops. Provisioning continues."""

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        typer.echo(_NO_LOG.format(self.baseFilename, getattr(error, "strerror", None) or error), err=True)
        with contextlib.suppress(OSError):  # close() flushes, which may fail again
            self.close()
        logging.getLogger("lifecycle.provision").handlers = [logging.NullHandler()]


def _logged(runner: CommandRunner) -> CommandRunner:
    """A runner that also logs each command, its exit code and its output."""

    def logged(argv: Sequence[str], **options: Any) -> Result:
        try:
            result = runner(argv, **{"cwd": "/", **options})  # other users may write in the current directory
        except CommandError as error:
            _log_command(error.result)
            raise
        _log_command(result)
        return result

    return logged


def _log_command(result: Result) -> None:
    output = result.stdout[-_LOGGED:] + result.stderr[-_LOGGED:]
    _log.info("%s -> %s (%.1f s)\n%s", shlex.join(result.argv), result.returncode, result.seconds, output)
