"""`holdfast ckpt plan`: combines the sizes in the job file with those of the command line, for ckpt's calculation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from launcher.errors import UsageError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


def _gb_s(of: str) -> Any:
    return typer.Option(min=0.001, metavar="X", help=f"GB/s of {of}, for the time it takes.", show_default=False)


@app.command("plan", short_help="What a job's checkpoints take of memory, disks and wire, and what they survive.")
def plan(
    job_file: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.", show_default=False)],
    state: Annotated[
        str | None,
        typer.Option("--state-bytes", metavar="SIZE", help="Of the whole state, over all ranks: 140GB, 1.5TiB."),
    ] = None,
    shard: Annotated[
        str | None, typer.Option("--shard-bytes", metavar="SIZE", help="Of each rank's part instead.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Instead of the job file's.", show_default=False)
    ] = None,
    nodes_per_switch: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Neighbours in the node list that share a switch.", show_default=False),
    ] = None,
    wire_gb_s: Annotated[float | None, _gb_s("each node's link to its peers")] = None,
    nvme_gb_s: Annotated[float | None, _gb_s("each node's disk")] = None,
    shared_gb_s: Annotated[float | None, _gb_s("the shared directory, for all nodes together")] = None,
    s3_gb_s: Annotated[float | None, _gb_s("the bucket, for all nodes together")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a job's checkpoints take of memory, disks and wire, and which losses they survive. Runs nothing."""
    from ckpt import CheckpointError
    from ckpt.cli.app import show_plan
    from launcher.jobfile import load_job

    spec = load_job(job_file)
    if spec.checkpoint is None:
        raise UsageError(f"{job_file.name}: checkpoint: missing; without it there is nothing to plan")
    try:
        show_plan(
            spec.checkpoint, nodes=nodes or spec.nodes, ranks_per_node=spec.workers_per_node, state=state, shard=shard,
            nodes_per_switch=nodes_per_switch, as_json=as_json, wire=wire_gb_s, nvme=nvme_gb_s, shared=shared_gb_s,
            s3=s3_gb_s,
        )  # fmt: skip
    except CheckpointError as error:
        raise UsageError(str(error)) from None
