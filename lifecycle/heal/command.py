"""`holdfast node heal`, `holdfast node return` and `holdfast node lemons`: on the controller, as root."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from holdfast.blocks import WaitLine, print_json
from holdfast.settings.errors import SettingsError
from lifecycle.errors import LifecycleError, NodeUsageError
from lifecycle.heal.case import HealOutcome
from lifecycle.heal.healer import Healer
from lifecycle.heal.history import HISTORY_FILE, REPAIRED, RETURNED, HealHistory, only_one
from lifecycle.heal.lemons import Incident, Offender, offenders, read_incidents
from lifecycle.heal.settings import SETTINGS_FILE, HealSettings
from lifecycle.metrics import HEAL_FILE, of_healing, write_textfile
from slurm.client import Slurm
from slurm.errors import SlurmError
from slurm.hooks.places import Places

_DAY_S = 86400.0
_LOOK_S = 1.0

Config = Annotated[Path, typer.Option(help="Settings of healing.", metavar="FILE")]
State = Annotated[Path, typer.Option(help="The state of healing.", metavar="FILE")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def heal(
    once: Annotated[bool, typer.Option("--once", help="Look at all nodes once; the default.")] = False,
    every_s: Annotated[float | None, typer.Option("--every", help="Repeat after this time.", metavar="SECONDS")] = None,
    config: Config = SETTINGS_FILE,
    state: State = HISTORY_FILE,
    as_json: Json = False,
) -> None:
    """Heal the nodes that Holdfast's hooks have drained: reboot or replace, check, return.

    Without `heal: on` in its settings it only prints what it would do.
    Nodes that somebody else has drained are never touched.
    """
    if once and every_s is not None:
        raise NodeUsageError("--once and --every: expected one of them")
    if every_s is not None and not 0 < every_s <= _DAY_S:
        raise NodeUsageError(f"--every: got {every_s:g}, expected seconds, more than 0 and at most a day")
    settings = HealSettings.read(config)
    if every_s is None:
        _print(_look(settings, state), settings, as_json)
        return
    while True:
        try:
            _print(_look(settings, state), settings, as_json)
        except (
            SlurmError,
            LifecycleError,
            SettingsError,
        ) as error:
            # no controller, a full disk, a file just being edited: all may be temporary
            typer.echo(f"holdfast node heal: {error}", err=True)
        time.sleep(every_s)


def return_(
    node: Annotated[str, typer.Argument(help="Its name in Slurm.", metavar="NODE", show_default=False)],
    config: Config = SETTINGS_FILE,
    state: State = HISTORY_FILE,
    as_json: Json = False,
) -> None:
    """Check a repaired node, without jobs on it, and return it to service. Holdfast must have drained it.

    Exit code 1: somebody else has drained it, or it failed its check and stays drained.
    """
    told = ""

    def wait(outcome: HealOutcome) -> None:
        nonlocal told
        if _line(outcome) != told:
            told = _line(outcome)
            typer.echo(told, err=True)
        time.sleep(_LOOK_S)

    with only_one(state):
        outcome = Healer(Slurm(), HealSettings.read(config), HealHistory.read(state)).bring_back(node, wait)
    print_json(asdict(outcome)) if as_json else typer.echo(_line(outcome))
    raise typer.Exit(0 if outcome.what == REPAIRED else 1)


def lemons(
    days: Annotated[float, typer.Option(help="Days to look back.", metavar="DAYS", min=0, max=36500)] = 90.0,
    incidents: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help=f"Nodes' incidents.jsonl, jobs' events.jsonl; repeat it.  [default: {Places().incidents}]",
            show_default=False,
        ),
    ] = None,
    state: State = HISTORY_FILE,
    as_json: Json = False,
) -> None:
    """List the nodes that fail again and again, lemons (given up by healing) first."""
    own = Path(Places().incidents)
    here = [own] if own.exists() else []
    told = [incident for path in (incidents or here) for incident in _read(path)]
    found = offenders(HealHistory.read(state).events, told, time.time() - days * _DAY_S)
    if as_json:
        print_json([asdict(offender) for offender in found])
    elif found:
        _print_offenders(found)
    else:
        typer.echo(f"no node has had trouble in the last {days:g} days, as far as {state} tells")


def _read(path: Path) -> list[Incident]:
    try:
        return read_incidents(path)
    except OSError as error:
        raise NodeUsageError(f"--incidents {path}: {error.strerror}; name a file of incidents or events") from None


def _look(settings: HealSettings, state: Path) -> list[HealOutcome]:
    # With `heal: off` nothing is changed, so any user may call it.
    with only_one(state) if settings.is_on else contextlib.nullcontext():
        history = HealHistory.read(state)
        with WaitLine("looking at the cluster's nodes"):
            outcomes = Healer(Slurm(), settings, history).look()
        if settings.textfile is not None and os.geteuid() == 0:
            _measure(history, outcomes, Path(settings.textfile))
        return outcomes


def _measure(history: HealHistory, outcomes: Sequence[HealOutcome], directory: Path) -> None:
    """Writes the metrics of a look. Their failure is printed, and healing goes on."""
    try:
        found = {outcome.node: outcome.what for outcome in outcomes}
        write_textfile(directory, HEAL_FILE, of_healing(history, found, time.time()))
    except LifecycleError as error:
        typer.echo(f"holdfast node heal: {error}", err=True)


def _print(outcomes: Sequence[HealOutcome], settings: HealSettings, as_json: bool) -> None:
    if as_json:
        print_json({"heal": settings.heal, "nodes": [asdict(outcome) for outcome in outcomes]})
        return
    for outcome in outcomes:
        typer.echo(_line(outcome))
    if outcomes and not settings.is_on:
        typer.echo("nothing was changed: `heal: on` in the settings has it done")
    elif not outcomes:
        typer.echo("no node to heal")


def _line(outcome: HealOutcome) -> str:
    was = "passed its check; it was out for: " if outcome.what in (RETURNED, REPAIRED) else ""
    return f"{outcome.node}: {outcome.what}: {was}{outcome.why}"


def _print_offenders(found: Sequence[Offender]) -> None:
    from rich.table import Table
    from rich.text import Text

    from holdfast.blocks import print_block

    table = Table(
        "node", "lemon", "reboots", "replaced", "failed", "incidents", "last", "what", box=None, pad_edge=False
    )
    for one in found:
        counts = (one.reboots, one.replacements, one.failed, one.incidents)
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.last_s))
        table.add_row(one.node, "yes" if one.is_lemon else "", *map(str, counts), when, Text(one.last))
    print_block(table)
