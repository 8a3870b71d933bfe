"""The verbs of `holdfast ckpt` that change or make something."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal

from ckpt.errors import CheckpointError, ConfigError, NamespaceError
from ckpt.progress import Bar
from ckpt.tiers.copying import copy_step
from ckpt.tiers.opened import committed_step, make_namespace, open_namespace
from ckpt.tiers.retention import superfluous

_FAILED, _USAGE = 1, 2

_PLACE = "a shared checkpoint directory, or s3://bucket/prefix"
Source = Annotated[str, typer.Argument(metavar="PATH", help=f"A namespace's folder in {_PLACE}.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Adds the verbs to `holdfast ckpt`."""
    app.command("bench")(bench)
    app.command("copy")(copy)
    app.command("gc")(collect)
    app.command("export")(export)
    app.command("import")(import_step)


def bench(
    size_mib: Annotated[int, typer.Option("--size-mib", min=16, help="Of the state.")] = 512,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Times each figure is taken; the median counts.")] = 7,
    directory: Annotated[
        Path, typer.Option("--dir", exists=True, file_okay=False, writable=True, help="Storage to drain to.")
    ] = Path("/var/tmp"),
    as_json: JsonOption = False,
) -> None:
    """Measure saves, loads and drains on this machine, beside plain copies and torch's own checkpoints."""
    from ckpt.bench.figures import as_json as to_json
    from ckpt.bench.figures import as_table
    from ckpt.bench.run import run

    with _reported():
        figures = run(size_mib=size_mib, repeat=repeat, directory=directory)
    if as_json:
        typer.echo(json.dumps(to_json(figures), indent=1))
    else:
        Console().print(as_table(figures, f"Checkpoints of {size_mib} MiB, one rank, median of {repeat}"))


def copy(
    source: Source,
    destination: Annotated[str, typer.Argument(metavar="DST", help="Another such directory or URL.")],
    step: Annotated[
        int | None, typer.Option("--step", help="Only this step; all committed ones when left out.")
    ] = None,
) -> None:
    """Copy committed steps to another directory or bucket, verified on the way; those it has are left alone."""
    with _reported():
        here = open_namespace(source)
        there = make_namespace(destination, here.namespace)
        saves = here.steps() if step is None else [committed_step(here, step)]
        total = 2 * sum(here.read_manifest(save).nbytes for save in saves)  # verified, then written
        with Bar(f"copying {len(saves)} steps", total) as bar:
            for save in reversed(saves):  # oldest first: what is cut short leaves the newest for the next time
                copied = copy_step(here, there, save, bar.advance)
                typer.echo(f"step {save.step}: {'copied to' if copied else 'already in'} {there.where}")


def collect(
    path: Source,
    keep: Annotated[int, typer.Option("--keep", min=1, help="Newest committed steps that stay.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> None:
    """Remove all but the newest committed steps. Steps set aside by `verify --quarantine` stay."""
    with _reported():
        tier = open_namespace(path)
        going = superfluous(tier.catalog(), keep, None)
        nbytes = sum(entry.manifest.nbytes for entry in going if entry.manifest)
        names = [entry.name for entry in going] if dry_run else tier.retain(keep, None)
    for name in names:
        typer.echo(f"{'would remove' if dry_run else 'removed'} {tier.where}/{name}")
    typer.echo(f"{len(names)} steps, {decimal(nbytes)}{' would be' if dry_run else ''} freed")


def export(
    path: Source,
    step: Annotated[int | None, typer.Option("--step", help="Which step; the newest when left out.")] = None,
    dcp: Annotated[Path | None, typer.Option("--dcp", help="Make a torch DCP directory here.")] = None,
    safetensors: Annotated[Path | None, typer.Option("--safetensors", help="Make one safetensors file here.")] = None,
    rank: Annotated[int, typer.Option("--rank", min=0, help="Whose plain tensors and values; DTensors: of all.")] = 0,
) -> None:
    """Give a step away in a format of torch's own; every byte is verified first."""
    with _reported():
        if (dcp is None) == (safetensors is None):
            raise ConfigError("export: give one of --dcp DIR and --safetensors FILE")
        tier = open_namespace(path)
        save = committed_step(tier, step)
        from ckpt.adapters.exchange import export_dcp, export_safetensors
        from ckpt.adapters.stored import read_stored

        with Bar(f"verifying step {save.step}", tier.read_manifest(save).nbytes) as bar:
            stored = read_stored(tier, save, rank, bar.advance)
        if dcp is not None:
            export_dcp(stored, dcp)
        elif safetensors is not None:
            export_safetensors(stored, safetensors)
    left_out = f", without {len(stored.values)} values that are no tensors" if safetensors and stored.values else ""
    typer.echo(f"exported step {save.step}: {len(stored.parts)} tensors{left_out} to {dcp or safetensors}")


def import_step(
    source: Annotated[Path, typer.Argument(metavar="DCP_DIR", help="A torch DCP directory that you trust.")],
    path: Annotated[str, typer.Argument(metavar="PATH", help=f"{_PLACE.capitalize()}, or a namespace's folder there.")],
    step: Annotated[int, typer.Option("--step", min=1, help="The step it becomes.")],
    namespace: Annotated[str | None, typer.Option("--namespace", help="Where PATH is no namespace's folder.")] = None,
) -> None:
    """Take a torch DCP directory in as a step, for `dcp.load(state, storage_reader=ckpt.dcp_reader())`."""
    with _reported():
        tier = open_namespace(path) if namespace is None else make_namespace(path, namespace)
        from ckpt.adapters.exchange import import_dcp

        import_dcp(source, tier, step)
    typer.echo(f"imported {source} as step {step} of namespace {tier.namespace}")


@contextmanager
def _reported() -> Iterator[None]:
    """Errors in one line: exit code 2 for bad input, 1 for what went wrong."""
    try:
        yield
    except (CheckpointError, OSError) as error:
        typer.echo(f"holdfast ckpt: error: {error}", err=True)
        raise typer.Exit(_USAGE if isinstance(error, (ConfigError, NamespaceError)) else _FAILED) from None
