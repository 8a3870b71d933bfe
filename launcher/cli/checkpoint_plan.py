"""`holdfast ckpt plan`: combines the job file, the command line and a job's record, for ckpt's calculation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from launcher.errors import UsageError
from launcher.history.events import read_events
from launcher.history.measured import MeasuredJob
from launcher.history.measured import measured as read_measured
from launcher.job.registry import find_job

app = typer.Typer(rich_markup_mode=None, add_completion=False)


def _gb_s(of: str) -> Any:
    return typer.Option(min=0.001, metavar="X", help=f"GB/s of {of}, for the time it takes.", show_default=False)


def _seconds(of: str) -> Any:
    return typer.Option(min=0.0, metavar="S", help=f"Seconds of {of}.", show_default=False)


def _record_of(job: str) -> MeasuredJob:
    folder = find_job(job).folder
    found = read_measured(read_events(folder / "events.jsonl"))
    if found.step_s is None and found.state_bytes is None:
        raise UsageError(f"--measured {job}: its record has no committed saves; give --state-bytes and --step-s")
    return found


def _until_a_fault(record: MeasuredJob, published_h: float) -> float:
    """The hours of one node until it fails, by a job's record. The published rate counts as one failure."""
    return (published_h + record.node_hours) / (1 + record.faults)


@app.command("plan", short_help="What a job's checkpoints take and survive, and how often to save.")
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
    node_memory: Annotated[
        str | None, typer.Option("--node-memory", metavar="SIZE", help="Of each node, for checkpoints.")
    ] = None,
    step_s: Annotated[float | None, _seconds("one step, without saves")] = None,
    stall_s: Annotated[float | None, _seconds("the time for which a save holds training up")] = None,
    restart_s: Annotated[float | None, _seconds("the time from a failure to the next step, from memory")] = None,
    mtbf_h: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="H", help="Hours of one node until it fails.", show_default=False),
    ] = None,
    failures: Annotated[
        str, typer.Option(metavar="NAME", help="Without --mtbf-h, whose published rate counts: llama3 or meta.")
    ] = "llama3",
    measured: Annotated[
        str | None,
        typer.Option(metavar="JOB", help="A job whose record gives what is not given here.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a job's checkpoints take and survive, how often to save, and what cannot work. Runs nothing."""
    from ckpt import CheckpointError
    from ckpt.cli.app import SOURCES, Conditions, parse_size, show_plan
    from launcher.job.jobfile import load_job

    spec = load_job(job_file)
    if failures not in SOURCES:
        raise UsageError(f"--failures: got {failures!r}, expected {' or '.join(SOURCES)}")
    record = MeasuredJob() if measured is None else _record_of(measured)
    if state is None and shard is None and record.state_bytes is not None:
        state = str(record.state_bytes)
    node_hours, faults_from = mtbf_h, "--mtbf-h" if mtbf_h else ""
    if mtbf_h is None and record.node_hours > 0:
        node_hours = _until_a_fault(record, SOURCES[failures].gpu_hours / spec.workers_per_node)
        faults_from = f"{record.faults} in {record.node_hours:,.0f} hours of nodes of job {measured}, and {failures}"
    if spec.checkpoint is None:
        raise UsageError(f"{job_file.name}: checkpoint: missing; without it there is nothing to plan")
    try:
        show_plan(
            spec.checkpoint, nodes=nodes or spec.nodes, ranks_per_node=spec.workers_per_node, state=state, shard=shard,
            nodes_per_switch=nodes_per_switch, conditions=Conditions(
                step_s=record.step_s if step_s is None else step_s,
                stall_s=record.stall_s if stall_s is None else stall_s,
                restart_s=record.restart_s if restart_s is None else restart_s,
                commit_s=record.commit_s, node_hours=node_hours, faults_from=faults_from, source=failures,
                node_memory_bytes=None if node_memory is None else parse_size(node_memory, "--node-memory"),
            ), as_json=as_json, wire=wire_gb_s, nvme=nvme_gb_s, shared=shared_gb_s,
            s3=s3_gb_s,
        )  # fmt: skip
    except CheckpointError as error:
        raise UsageError(str(error)) from None
