"""`holdfast node slurm-conf`: prints or lints the lines of slurm.conf that the hooks or elastic jobs need."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from holdfast.blocks import print_json
from lifecycle.errors import NodeUsageError
from lifecycle.hyperpod import read_cluster
from slurm.conf import Remark, hook_lines, lint
from slurm.hooks.entry import DIRECTORY
from slurm.preemption_conf import elastic_lines, lint_elastic

_MAX_BYTES = 16 << 20


def slurm_conf(
    lint_file: Annotated[
        Path | None, typer.Option("--lint", help="Print what this slurm.conf lacks, and why.", metavar="FILE")
    ] = None,
    directory: Annotated[
        Path, typer.Option(metavar="DIR", help="The directory of the hooks' scripts on every node.")
    ] = DIRECTORY,
    elastic: Annotated[
        bool, typer.Option("--elastic", help="The lines for elastic jobs instead of those for hooks.")
    ] = False,
    topology: Annotated[
        Path | None,
        typer.Option(
            "--topology", help="The lines of topology.conf, from HyperPod's resource_config.json.", metavar="FILE"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the lines that slurm.conf needs for the hooks, or with --lint what a slurm.conf lacks.

    With --elastic: the lines for elastic jobs, an example with two partitions. With --topology: topology.conf, for a
    HyperPod cluster whose Slurm has none.

    Exit code 1: --lint found a missing or wrong line without which the hooks, or elastic jobs, do not work.
    """
    if lint_file is None:
        lines = _topology(topology) if topology else elastic_lines() if elastic else hook_lines(directory)
        print_json(lines) if as_json else typer.echo("\n".join(lines))
        return
    text = _read(lint_file)
    remarks = lint_elastic(text) if elastic else lint(text, directory)
    if as_json:
        print_json([asdict(remark) for remark in remarks])
    else:
        for remark in remarks:
            typer.echo(_text(lint_file, remark))
        if not remarks:
            typer.echo(f"{lint_file}: all that {'elastic jobs' if elastic else 'the hooks'} need is there")
    raise typer.Exit(1 if any(remark.needed for remark in remarks) else 0)


def _topology(path: Path) -> list[str]:
    lines = read_cluster(path).topology_lines()
    if not lines:
        raise NodeUsageError(
            f"--topology {path}: no instance has a label network-node-layer-N, so the tree is not known"
        )
    return lines


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode(errors="replace")
    except OSError as error:
        raise NodeUsageError(f"--lint {path}: {error.strerror}; name the cluster's slurm.conf") from None


def _text(path: Path, remark: Remark) -> str:
    kind = "needed" if remark.needed else "advice"
    place = f"{path}:{remark.line}" if remark.line else str(path)
    got = f"got {remark.parameter}={remark.got}" if remark.line else f"{remark.parameter} is not set"
    return f"{place}: {kind}: {got}, expected {remark.expected}\n    {remark.why}"
