"""`holdfast node versions` and `holdfast node image`: versions that belong together, here and in an image."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from holdfast.blocks import print_json
from lifecycle.errors import NodeUsageError
from lifecycle.image import KINDS, Image
from lifecycle.inventory import installed
from lifecycle.versions import Installed, PinnedFile, VersionsVerdict, pinned_files, resolve
from slurm.command import run

Efa = Annotated[str, typer.Option(help="Version of the EFA installer.  [default: the newest pinned]", metavar="V")]


def versions(
    torch: Annotated[str, typer.Option(help="A torch version, instead of the installed one.", metavar="V")] = "",
    python: Annotated[
        str, typer.Option(metavar="FILE", help="The Python interpreter whose torch is examined.")
    ] = sys.executable,
    efa: Efa = "",
    files: Annotated[
        bool, typer.Option("--files", help="List the files that provisioning downloads: name, SHA-256 or -, file, URL.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the versions of torch, NCCL, aws-ofi-nccl and EFA here, and the set of versions that belong together.

    Exit code 1: the installed versions do not belong together.
    """
    if files:
        return _print_files(pinned_files(efa), as_json)
    found = Installed(torch=torch) if torch else installed(run, python)
    verdict = resolve(found, efa)
    if as_json:
        facts = {"installed": asdict(found), "pinned": asdict(verdict.pinned), "conflicts": list(verdict.conflicts)}
        print_json(facts)
    else:
        _print(found, verdict)
    raise typer.Exit(1 if verdict.conflicts else 0)


def image(
    kind: Annotated[str, typer.Argument(help=" or ".join(KINDS), metavar="KIND", show_default=False)],
    torch: Annotated[str, typer.Option(help="Version of torch in the image.", metavar="V", show_default=False)],
    wheel: Annotated[
        Path,
        typer.Option(help="Holdfast's wheel. Put it beside the recipe.", metavar="FILE", show_default=False),
    ],
    efa: Efa = "",
    base: Annotated[str, typer.Option(metavar="IMAGE", help="The base image.")] = "ubuntu:24.04",
) -> None:
    """Print the recipe of a training image with EFA.

    holdfast node image docker --torch 2.9.1 --wheel holdfast_hpc-0.3.0-py3-none-any.whl > Dockerfile
    """
    if kind not in KINDS:
        raise NodeUsageError(f"node image: got {kind!r}, expected {' or '.join(KINDS)}")
    made = Image.of(torch, wheel, efa, base)
    typer.echo(made.docker() if kind == "docker" else made.apptainer(), nl=False)


def _print_files(found: list[PinnedFile], as_json: bool) -> None:
    if as_json:
        return print_json([{**asdict(file), "file": file.name} for file in found])
    for file in found:
        typer.echo(f"{file.artifact} {file.sha256 or '-'} {file.name} {file.url}")
    return None


def _print(found: Installed, verdict: VersionsVerdict) -> None:
    pinned = verdict.pinned
    rows = [
        ("torch", found.torch, pinned.torch),
        ("NCCL of torch", found.torch_nccl, pinned.nccl),
        ("NCCL of the system", found.system_nccl, pinned.nccl),
        ("EFA installer", found.efa, pinned.efa),
        ("libfabric", found.libfabric, pinned.libfabric),
        ("aws-ofi-nccl", found.plugin, pinned.plugin),
    ]
    typer.echo(f"{'':<20}{'here':<20}set")
    for name, here, wanted in rows:
        typer.echo(f"{name:<20}{here or '-':<20}{wanted or '-'}")
    for conflict in verdict.conflicts:
        typer.echo(f"conflict: {conflict}")
    if not verdict.conflicts:
        typer.echo("no conflict between what is here")
