"""The verbs of `holdfast ckpt` that write: copy, gc, pin, unpin, rollback, export, import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from ckpt.cli.output import JsonOption, print_json, printable, reported
from ckpt.cli.pins import pin, unpin
from ckpt.cli.progress import Bar, Waiting, counted
from ckpt.cli.rollback import roll_back
from ckpt.errors import ConfigError
from ckpt.format.lasting import NOTHING_ELSE
from ckpt.format.parsing import parsing
from ckpt.format.shard_record import SaveId
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.copying import copy_step
from ckpt.tiers.lines import check_related, lines_of
from ckpt.tiers.lookup import committed_step, is_url, make_namespace, open_namespace
from ckpt.tiers.retention import superfluous
from ckpt.tiers.throttle import Throttle
from ckpt.tiers.tier import Tier

_PLACE = "a shared checkpoint directory, or s3://bucket/prefix (also gs:// and az://)"
SourceArgument = Annotated[str, typer.Argument(metavar="PATH", help=f"A namespace's folder in {_PLACE}.")]


def register(app: typer.Typer) -> None:
    """Adds the verbs to `holdfast ckpt`."""
    app.command("copy", short_help="Copy committed steps to another directory or bucket.")(copy)
    app.command("gc", short_help="Remove all but the newest committed steps.")(collect)
    app.command("pin", short_help="Keep a step until it is unpinned.")(pin)
    app.command("unpin", short_help="Remove a step's pin.")(unpin)
    app.command("rollback", short_help="Have the next start restore an older step.")(roll_back)
    app.command("export", short_help="Write a step as torch DCP or safetensors.")(export)
    app.command("import", short_help="Take a torch DCP directory in as a step.")(import_step)


def copy(
    source: SourceArgument,
    destination: Annotated[str, typer.Argument(metavar="DST", help="Another such directory or URL.")],
    step: Annotated[
        int | None, typer.Option("--step", metavar="N", help="Only this step; by default all committed ones.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Copy committed steps to another directory or bucket, verified on the way. Steps already there are left alone.

    Pins are copied with their steps. A new place also gets the rules of milestones and best steps, which `gc` obeys.
    Refused if the other place has steps of an unrelated line of descent.
    """
    with reported():
        with Waiting(f"listing {source}", quiet=as_json):
            here = open_namespace(source)
            ours = lines_of(here)
            saves = ours.saves if step is None else [committed_step(here, step)]
            total = 2 * sum(here.read_manifest(save).nbytes for save in saves)  # verified, then written
        rows = []
        pinned = here.pins()
        with Bar(f"copying {counted(len(saves))}", total, quiet=as_json) as bar:
            there = make_namespace(destination, here.namespace, Throttle(None, on_write=bar.advance))
            check_related(ours, lines_of(there))
            for save in reversed(saves):  # oldest first: after an interrupt the newest are left for the next run
                copied = copy_step(here, there, save, bar.advance)
                if (name := directory_name(save)) in pinned and name not in there.pins():
                    there.pin(save, here.pin_note(name))
                rows.append({**_facts(here, save), "copied": copied, "to": there.where})
                if not as_json:
                    typer.echo(f"step {save.step}: {'copied to' if copied else 'already in'} {there.where}")
            for line in ours.begun if step is None else ():
                there.begin_line(line)  # a rollback, which must rule the copy too
            if there.read_lasting() == NOTHING_ELSE:
                there.write_lasting(here.read_lasting())
    if as_json:
        print_json(rows)


def collect(
    path: SourceArgument,
    keep: Annotated[int, typer.Option("--keep", metavar="N", min=1, help="Number of newest committed steps to keep.")],
    left: Annotated[
        bool, typer.Option("--left", help="Also remove the steps of all lines of descent but the newest.")
    ] = False,
    newest_only: Annotated[
        bool, typer.Option("--newest-only", help="Also remove milestones and the best steps. Pinned steps stay.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be removed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove all but the newest committed steps, of each line of descent.

    Pinned steps stay, and the milestones and best steps of the job that saved last (`keep_every_steps`, `keep_best`).
    Steps quarantined by `verify --quarantine`, and steps of another format, stay.
    """
    with reported():
        with Waiting(f"listing {path}", quiet=as_json):
            tier = open_namespace(path)
            lasting = NOTHING_ELSE if newest_only else tier.read_lasting()
            entries, pinned = list(tier.catalog()), tier.pins()
        going = superfluous(entries, keep, lines=tier.lines(), left=left, lasting=lasting, pinned=pinned)
        sizes = {entry.name: entry.manifest.nbytes if entry.manifest else 0 for entry in going}
        nbytes = sum(sizes.values())
        names = list(sizes)
        if not dry_run:
            with Bar(f"removing {counted(len(going))}", nbytes, quiet=as_json) as bar:
                advance = bar.advance
                names = tier.retain(keep, removed=lambda name: advance(sizes.get(name, 0)), left=left, lasting=lasting)
    if as_json:
        steps = {entry.name: {"step": entry.step, "attempt": entry.attempt} for entry in going}
        rows = [
            {"namespace": tier.namespace, **steps.get(name, {}), "bytes": sizes.get(name, 0), "removed": not dry_run}
            for name in names
        ]
        print_json(rows)
        return
    for name in names:
        typer.echo(f"{'would remove' if dry_run else 'removed'} {tier.where}/{name}")
    typer.echo(f"{counted(len(names))}, {decimal(nbytes)}{' would be' if dry_run else ''} freed")


def export(
    path: SourceArgument,
    step: Annotated[int | None, typer.Option("--step", metavar="N", help="The step; by default the newest.")] = None,
    dcp: Annotated[Path | None, typer.Option("--dcp", metavar="DIR", help="Write a torch DCP directory here.")] = None,
    safetensors: Annotated[
        Path | None, typer.Option("--safetensors", metavar="FILE", help="Write one safetensors file here.")
    ] = None,
    rank: Annotated[
        int, typer.Option("--rank", metavar="R", min=0, help="The rank whose plain tensors and values to export.")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Write a step in a format of torch's own. Every byte is verified first."""
    with reported():
        if (dcp is None) == (safetensors is None):
            raise ConfigError("export: give one of --dcp DIR and --safetensors FILE")
        with Waiting(f"listing {path}", quiet=as_json):
            tier = open_namespace(path)
            save = committed_step(tier, step)
        from ckpt.convert.dcp_safetensors import export_dcp, export_safetensors
        from ckpt.convert.full_step import read_stored

        total = 2 * tier.read_manifest(save).nbytes  # verified, then written
        bar = Bar(f"exporting step {save.step}", total, quiet=as_json)
        with bar, parsing(f"{tier.where}, step {save.step}"):
            stored = read_stored(tier, save, rank, bar.advance)
            if dcp is not None:
                export_dcp(stored, dcp, bar.advance)
            elif safetensors is not None:
                export_safetensors(stored, safetensors)
                bar.advance(total // 2)
    values = len(stored.values) if safetensors else 0
    if as_json:
        counts = {"tensors": len(stored.tensors), "values_left_out": values}
        print_json({**_facts(tier, save), **counts, "to": str(dcp or safetensors)})
        return
    left_out = f" (without {values} values that are not tensors)" if values else ""
    typer.echo(f"exported step {save.step}: {len(stored.tensors)} tensors{left_out} to {dcp or safetensors}")


def import_step(
    source: Annotated[Path, typer.Argument(metavar="DCP_DIR", help="A torch DCP directory. No code in it is run.")],
    path: Annotated[str, typer.Argument(metavar="PATH", help=f"{_PLACE.capitalize()}, or a namespace's folder there.")],
    step: Annotated[int, typer.Option("--step", metavar="N", min=1, help="Number of the new step.")],
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NAME", help="The namespace, if PATH is not its folder.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Import a torch DCP directory as a step, for `dcp.load(state, storage_reader=ckpt.dcp_reader())`.

    The step begins a line of descent, so it is what the next start restores. Other steps stay.
    """
    with reported():
        if namespace is None and not is_url(path) and not Path(path).exists():
            raise ConfigError(f"{path}: does not exist; --namespace NAME creates it for that namespace")
        tier = open_namespace(path) if namespace is None else make_namespace(path, namespace)
        from ckpt.convert.dcp_safetensors import import_dcp

        total = 2 * sum(file.stat().st_size for file in source.glob("*.distcp"))  # read, then written
        with Bar(f"importing step {step}", total, quiet=as_json) as bar:
            save = import_dcp(source, tier, step, bar.advance)
        aside = lines_of(tier).aside(save.line)
    if as_json:
        print_json({**_facts(tier, save), "to": tier.where, "line": save.line.id, "aside": aside})
        return
    typer.echo(f"imported {source} as step {step} of namespace {tier.namespace}; the next start restores it")
    for text in aside:
        typer.echo(f"stays aside: {printable(text)}")


def _facts(tier: Tier, save: SaveId) -> dict[str, Any]:
    return {"namespace": tier.namespace, "step": save.step, "attempt": save.attempt}
