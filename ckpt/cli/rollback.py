"""`holdfast ckpt rollback`: begins a line of descent after an older step, so that the next start restores that step."""

from __future__ import annotations

import os
import secrets
import time
from typing import Annotated

import typer

from ckpt.cli.output import FAILED, JsonOption, end, print_json, printable, reported
from ckpt.cli.progress import Waiting
from ckpt.config import owner_of
from ckpt.tiers.claim import Claim
from ckpt.tiers.lines import lines_of
from ckpt.tiers.lookup import open_namespace
from ckpt.tiers.tier import Tier
from ckpt.timeouts import AgentDeadlines

_LOOK_EVERY_S = 2.0


def roll_back(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A namespace's folder in a shared directory, or its bucket's URL.")
    ],
    to: Annotated[int, typer.Option("--to", metavar="N", min=0, help="The committed step to go on from.")],
    line: Annotated[
        str | None,
        typer.Option("--line", metavar="ID", help="A line that was left, as `ls` names it; by default the newest."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Have the next start restore an older step. Nothing is removed or renamed: newer steps stay as a line aside.

    Refused while a run saves to the namespace.
    """
    with reported(), Waiting(f"looking for a run that saves to {path}", quiet=as_json):
        tier = open_namespace(path)
        tier.check()
        found = lines_of(tier)
        save = found.committed(to, line)
        newest = found.newest
        is_empty = all(other.line != newest for other in found.saves)
        is_done = newest in found.begun and is_empty and newest.ancestors[:1] == ((save.line.id, to),)
        if not is_done:
            _refuse_if_in_use(tier, AgentDeadlines().quiet_s)
            newest = found.begin(save, secrets.token_hex(16), owner_of(os.environ))
            tier.begin_line(newest)
        aside = found.aside(newest)
    if as_json:
        print_json({"namespace": tier.namespace, "step": to, "line": newest.id, "begun": not is_done, "aside": aside})
        return
    already = "already; nothing was changed" if is_done else f"as the beginning of {newest}"
    typer.echo(f"the next start of namespace {tier.namespace} restores step {to} {already}")
    for text in aside:
        typer.echo(f"stays aside: {printable(text)}")


def _refuse_if_in_use(tier: Tier, quiet_s: float) -> None:
    """Ends the program if a run is alive: its claim changes. A claim that stays the same is that of a dead run."""
    found = tier.read_claim()
    if found is None or found.released:
        return
    typer.echo(f"{tier.where}: claimed by {found}; watching for up to {quiet_s:g} s whether it is alive", err=True)
    until_s = time.monotonic() + quiet_s
    while time.monotonic() < until_s:
        time.sleep(_LOOK_EVERY_S)
        now = tier.read_claim()
        if now is None or now.released:
            return
        if now != found:
            _end_in_use(tier, now)


def _end_in_use(tier: Tier, claim: Claim) -> None:
    end(f"{tier.where}: is in use by {claim}; stop that job first, then roll back (`holdfast stop`)", FAILED)
