"""`holdfast node check`."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from holdfast.blocks import WaitLine, print_json
from lifecycle.errors import LifecycleError, NodeUsageError
from lifecycle.health.catalog import CHECKS, select
from lifecycle.health.check import VERDICT_FILE, Check, CheckedNode, Level
from lifecycle.health.finding import Status
from lifecycle.health.last_verdict import last_verdict
from lifecycle.health.runner import longest_s, run_checks
from lifecycle.health.settings import SETTINGS_FILE, Settings
from lifecycle.health.table import print_catalog, print_findings
from lifecycle.health.verdict import Verdict, read_verdict
from lifecycle.instance import expected, instance_type
from lifecycle.metrics import CHECKS_FILE, of_checks, write_textfile

_LEVELS = " | ".join(level.word for level in Level)


def check(
    level: Annotated[
        str,
        typer.Option(
            help=f"How thorough: {_LEVELS}.", metavar="LEVEL", autocompletion=lambda: [level.word for level in Level]
        ),
    ] = Level.QUICK.word,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this check; may be repeated.", metavar="NAME", autocompletion=lambda: [c.name for c in CHECKS]
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    brief: Annotated[bool, typer.Option("--brief", help="Only what is not ok, and a summary line.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the checks; run none.")] = False,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"The site's settings.  [default: {SETTINGS_FILE}]", show_default=False),
    ] = None,
    within: Annotated[
        float | None, typer.Option(help="Time limit in seconds, shorter than the level's.", metavar="S", min=1.0)
    ] = None,
    verdict: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help=f"File for the verdict.  [default, as root: {VERDICT_FILE}]", show_default=False
        ),
    ] = None,
) -> None:
    """Check this node's health. Each check prints what was measured, what was expected, and what to do.

    prolog: under 2 s; uses the last verdict and cheap probes.
    quick: under 60 s.
    deep: minutes (it first prints how many); loads the node. Run it under a maintenance reservation.

    Run by root and without --only, it writes its verdict for Slurm's hooks.

    Exit code 0: nothing is critical (skipped and unknown are neither healthy nor failed). 1: something is critical.
    """
    chosen_level = _level(level)
    settings = _settings(config)
    if list_:
        return print_catalog(CHECKS, as_json)
    checks = select(chosen_level, only or (), () if only else settings.skip)
    if only:  # a check that takes minutes gets that time only if it is named
        chosen_level = max(chosen_level, *(check.levels[0] for check in checks))
    node = CheckedNode(
        settings=settings,
        expected=expected(settings.instance or instance_type()),
        verdict=(verdict or VERDICT_FILE).absolute(),
    )
    budget_s = min(chosen_level.budget_s, within or chosen_level.budget_s)
    if chosen_level is Level.DEEP:
        _announce(checks, node, budget_s)
    with WaitLine("checking this node", shows_by_itself=False) as line:  # the checks are forks of this process
        findings = run_checks(checks, node, budget_s, line.show)
    result = Verdict.of(findings, chosen_level, node)
    if not only:
        kept = tuple(row for row in result.checks if row["name"] != last_verdict.name)  # it judges the file itself
        target = _keep(dataclasses.replace(result, checks=kept), verdict, whole=chosen_level > Level.PROLOG)
        if target is not None and settings.textfile is not None:
            _measure(target, Path(settings.textfile))
    if as_json:
        print_json(result.to_mapping())
    else:
        print_findings(result, node.expected, sys.stdout, brief)
    raise typer.Exit(1 if result.status is Status.CRITICAL else 0)


def _announce(checks: Sequence[Check], node: CheckedNode, budget_s: float) -> None:
    """Prints the longest duration of a run that may be silent for minutes."""
    minutes = math.ceil(longest_s(checks, node, budget_s) / 60)
    many = "1 check" if len(checks) == 1 else f"{len(checks)} checks"
    typer.echo(f"{os.uname().nodename}: {many}, done in {max(minutes, 1)} min at most", err=True)


def _level(word: str) -> Level:
    try:
        return Level[word.upper()]
    except KeyError:
        raise NodeUsageError(f"--level: got {word}, expected {_LEVELS}") from None


def _settings(path: Path | None) -> Settings:
    """The settings of a file. A file that was named must exist; the default one need not."""
    if path is None and not SETTINGS_FILE.exists():
        return Settings()
    return Settings.read(path or SETTINGS_FILE)


def _keep(result: Verdict, path: Path | None, whole: bool) -> Path | None:
    """Writes the verdict; returns its file, None for users who have none."""
    if path is None and os.geteuid() != 0:
        return None
    target = path or VERDICT_FILE
    try:
        result.write(target, whole)
    except OSError as error:
        raise LifecycleError(f"{target}: the verdict could not be written ({error.strerror})") from None
    return target


def _measure(verdict: Path, directory: Path) -> None:
    """Writes the metrics of the whole verdict. Their failure is printed, and is no result of a check."""
    try:
        node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
        write_textfile(directory, CHECKS_FILE, of_checks(read_verdict(verdict), node))
    except (LifecycleError, OSError, ValueError) as error:
        typer.echo(f"holdfast node check: {error}", err=True)
