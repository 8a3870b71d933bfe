"""`holdfast node check`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from lifecycle.errors import LifecycleError, UsageError
from lifecycle.health.catalog import CHECKS, select
from lifecycle.health.check import Level, Node
from lifecycle.health.finding import Status
from lifecycle.health.last_verdict import last_verdict
from lifecycle.health.runner import run_checks
from lifecycle.health.settings import SETTINGS_FILE, Settings
from lifecycle.health.table import print_catalog, print_findings
from lifecycle.health.verdict import VERDICT_FILE, Verdict
from lifecycle.instance import expected, instance_type

_LEVELS = " | ".join(level.word for level in Level)


def check(
    level: Annotated[str, typer.Option(help=f"How thorough: {_LEVELS}.", metavar="LEVEL")] = Level.QUICK.word,
    only: Annotated[list[str] | None, typer.Option(help="Only this check; may be repeated.", metavar="NAME")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the checks, run none.")] = False,
    config: Annotated[
        Path | None, typer.Option(help=f"The site's settings.  [default: {SETTINGS_FILE}]", show_default=False)
    ] = None,
    verdict: Annotated[
        Path | None,
        typer.Option(help=f"Where the verdict goes.  [default, as root: {VERDICT_FILE}]", show_default=False),
    ] = None,
) -> None:
    """Say whether this node is fit for training: what was measured, what was expected, what to do.

    prolog: under 2 s, from what the last run left and cheap probes. quick: under 60 s. deep: minutes, it loads the
    node; run it under a maintenance reservation.

    Run by root, and without --only, it leaves its verdict for the prolog and Slurm's hooks.

    Exit code 0: nothing critical (skipped and unknown are neither healthy nor failed). 1: something is critical.
    """
    chosen_level = _level(level)
    settings = _settings(config)
    if list_:
        return print_catalog(CHECKS, as_json)
    checks = select(chosen_level, only or (), () if only else settings.skip)
    node = Node(settings=settings, expected=expected(settings.instance or instance_type()))
    findings = run_checks(checks, node, chosen_level.budget_s)
    result = Verdict.of(findings, chosen_level, node)
    if not only:
        kept = [finding for finding in findings if finding.check != last_verdict.name]  # it speaks of the file itself
        _keep(Verdict.of(kept, chosen_level, node), verdict, whole=chosen_level > Level.PROLOG)
    if as_json:
        typer.echo(json.dumps(result.to_mapping(), indent=2))
    else:
        print_findings(result, node.expected, sys.stdout)
    raise typer.Exit(1 if result.status is Status.CRITICAL else 0)


def _level(word: str) -> Level:
    try:
        return Level[word.upper()]
    except KeyError:
        raise UsageError(f"--level: got {word}, expected {_LEVELS}") from None


def _settings(path: Path | None) -> Settings:
    """The file that was named must be there; the default one need not."""
    if path is None and not SETTINGS_FILE.exists():
        return Settings()
    return Settings.read(path or SETTINGS_FILE)


def _keep(result: Verdict, path: Path | None, whole: bool) -> None:
    if path is None and os.geteuid() != 0:
        return
    target = path or VERDICT_FILE
    try:
        result.write(target, whole)
    except OSError as error:
        raise LifecycleError(f"{target}: the verdict could not be written ({error.strerror})") from None
