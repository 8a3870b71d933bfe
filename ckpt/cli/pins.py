"""`holdfast ckpt pin` and `unpin`: a pinned step is never removed by retention or `gc`."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

from ckpt.cli.output import JsonOption, print_json, reported
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.lines import lines_of
from ckpt.tiers.lookup import open_namespace

NamespacePath = Annotated[
    str, typer.Argument(metavar="PATH", help="A namespace's folder in a shared directory, or its bucket's URL.")
]
Step = Annotated[int, typer.Argument(metavar="STEP", min=0, help="A committed step.")]
LineOption = Annotated[
    str | None,
    typer.Option("--line", metavar="ID", help="A line that was left, as `ls` names it; by default the newest."),
]


def pin(
    path: NamespacePath,
    step: Step,
    line: LineOption = None,
    note: Annotated[str, typer.Option("--note", metavar="WORDS", help="Why it is pinned, for `ls`.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Keep a step until it is unpinned, whatever a job's `keep` says and `gc` is asked. A running job obeys at once."""
    with reported():
        tier = open_namespace(path)
        tier.check()
        save = lines_of(tier).committed(step, line)
        was = directory_name(save) in tier.pins()
        if not was or note:
            tier.pin(save, note or f"by {getpass.getuser()}")
    if as_json:
        print_json(
            {"namespace": tier.namespace, "step": step, "line": save.line.id, "pinned": True, "changed": not was}
        )
        return
    typer.echo(f"step {step} of namespace {tier.namespace} {'was pinned already' if was else 'is pinned'}")


def unpin(path: NamespacePath, step: Step, line: LineOption = None, as_json: JsonOption = False) -> None:
    """Remove a step's pin. The next retention or `gc` treats it as any other step."""
    with reported():
        tier = open_namespace(path)
        tier.check()
        save = lines_of(tier).committed(step, line)
        was = directory_name(save) in tier.pins()
        tier.unpin(directory_name(save))
    if as_json:
        print_json({"namespace": tier.namespace, "step": step, "line": save.line.id, "pinned": False, "changed": was})
        return
    typer.echo(f"step {step} of namespace {tier.namespace} {'is not pinned any more' if was else 'was not pinned'}")
