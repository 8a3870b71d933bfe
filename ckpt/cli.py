"""`holdfast ckpt`: what checkpoints there are, and whether every byte of them verifies."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from ckpt.errors import CheckpointError
from ckpt.record.blocks import BLOCK_BYTES, checksum
from ckpt.record.manifest import open_regular
from ckpt.record.shard import ShardRecord, read_record
from ckpt.tiers.catalog import list_steps
from ckpt.tiers.mark import MARK
from ckpt.tiers.posix import read_mark

_SHARD = re.compile(r"(own-[0-9]+|copy-[0-9]+-[0-9]+)-[0-9]+\.json")
_FAILED, _USAGE = 1, 2

app = typer.Typer(help="Look at checkpoints and verify them.", no_args_is_help=True, add_completion=False)

PathArgument = Annotated[
    Path,
    typer.Argument(help="A shared checkpoint directory, one namespace's folder in it, or a node's memory directory."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, kw_only=True)
class StoredShard:
    """One shard, and where its bytes lie."""

    record: ShardRecord
    path: Path
    offset: int


@dataclass(kw_only=True)
class StoredStep:
    """One step as found on disk or in memory."""

    namespace: str
    tier: str
    step: int | None
    attempt: int | None
    world_size: int | None = None
    committed: bool | None = None  # None in memory: that is for all nodes together to say
    created_s: float | None = None
    shards: list[StoredShard] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "namespace": self.namespace,
            "tier": self.tier,
            "step": self.step,
            "attempt": self.attempt,
            "world_size": self.world_size,
            "bytes": sum(shard.record.layout.nbytes for shard in self.shards),
            "shards": len(self.shards),
            "age_s": None if self.created_s is None else round(max(0.0, time.time() - self.created_s), 1),
            "committed": self.committed,
            "problems": self.problems,
        }


@app.command("ls")
def list_all(path: PathArgument, as_json: JsonOption = False) -> None:
    """List the steps in a directory, newest first."""
    rows = [step.to_json() for step in _find(path)]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = _table("step", "attempt", "world size", "size", "shards", "age", "committed", "tier", "namespace")
    for row in rows:
        committed = {True: "yes", False: "no", None: "-"}[row["committed"]]
        table.add_row(
            _text(row["step"]),
            _text(row["attempt"]),
            _text(row["world_size"]),
            decimal(row["bytes"]),
            _text(row["shards"]),
            _age(row["age_s"]),
            "; ".join(["DAMAGED", *map(escape, row["problems"])]) if row["problems"] else committed,
            row["tier"],
            escape(row["namespace"]),
        )
    _print(table)


@app.command("verify")
def verify(
    path: PathArgument,
    step: Annotated[int | None, typer.Option("--step", help="Only this step.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Read every block of every step and compare it with its checksum. Exit code 1 when something is bad."""
    steps = [found for found in _find(path) if step in (None, found.step)]
    if step is not None and not steps:
        _usage(f"{path}: holds no step {step}; look with `holdfast ckpt ls`")
    for found in steps:
        for shard in found.shards:
            found.problems += _verify_shard(shard)
    rows = [{**found.to_json(), "ok": not found.problems} for found in steps]
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        table = _table("step", "attempt", "size", "result", "tier", "namespace")
        for row in rows:
            good = "not committed" if row["committed"] is False else "ok"
            result = good if row["ok"] else "\n".join(f"BAD {escape(problem)}" for problem in row["problems"])
            size = decimal(row["bytes"])
            table.add_row(
                _text(row["step"]), _text(row["attempt"]), size, result, row["tier"], escape(row["namespace"])
            )
        _print(table)
    if not all(row["ok"] for row in rows):
        raise typer.Exit(_FAILED)


def _find(path: Path) -> list[StoredStep]:
    """The steps under a path, newest first; ends the program when the path holds nothing of ours."""
    try:
        names = os.listdir(path)
        if MARK in names:
            return _shared_steps(path)
        if "board" in names or any(map(_SHARD.fullmatch, names)):
            return _memory_steps(path, names)
        namespaces = sorted(name for name in names if (path / name / MARK).is_file())
        if namespaces:
            return [step for name in namespaces for step in _shared_steps(path / name)]
    except (OSError, CheckpointError) as error:
        _usage(f"{path}: {error.strerror if isinstance(error, OSError) else error}")
    _usage(f"{path}: neither a checkpoint directory ({MARK} in it or one level below) nor a node's memory directory")


def _shared_steps(folder: Path) -> list[StoredStep]:
    namespace = str(read_mark(folder).namespace)
    steps = []
    for entry in list_steps(folder, namespace):
        found = StoredStep(
            namespace=namespace, tier="shared", step=entry.step, attempt=entry.attempt, committed=bool(entry.manifest)
        )
        if entry.manifest:
            found.world_size = entry.manifest.world_size
            found.created_s = entry.manifest.created_s
            found.shards = [
                StoredShard(record=place.record, path=folder / entry.name / place.file, offset=place.offset)
                for place in entry.manifest.shards
            ]
        elif entry.damaged:
            found.problems.append(f"{entry.name}: {entry.reason}")
        steps.append(found)
    return steps


def _memory_steps(folder: Path, names: list[str]) -> list[StoredStep]:
    """The shards that one node holds, by step."""
    steps: dict[tuple[Any, ...], StoredStep] = {}
    for name in sorted(filter(_SHARD.fullmatch, names)):
        stem = name.removesuffix(".json")
        try:
            record = read_record(folder, stem)
        except (CheckpointError, OSError) as error:
            steps[(stem,)] = StoredStep(
                namespace="?", tier="memory", step=None, attempt=None, problems=[f"{name}: {error}"]
            )
            continue
        found = steps.setdefault(
            (record.save, record.namespace),
            StoredStep(
                namespace=record.namespace,
                tier="memory",
                step=record.save.step,
                attempt=record.save.attempt,
                world_size=record.world_size,
            ),
        )
        found.shards.append(StoredShard(record=record, path=folder / f"{stem}.data", offset=0))
        found.created_s = max(found.created_s or 0.0, (folder / name).stat().st_mtime)
    return sorted(steps.values(), key=lambda step: (step.step or -1, step.attempt or -1), reverse=True)


def _verify_shard(shard: StoredShard) -> list[str]:
    """What is bad about a shard's bytes; reads them block by block."""
    where = f"rank {shard.record.rank} in {shard.path}"
    bad = []
    try:
        descriptor = open_regular(shard.path)
        try:
            left = shard.record.layout.nbytes
            for block, expected in enumerate(shard.record.blocks):
                data = os.pread(descriptor, min(BLOCK_BYTES, left), shard.offset + block * BLOCK_BYTES)
                left -= BLOCK_BYTES
                if checksum(data) != expected:
                    bad.append(block)
        finally:
            os.close(descriptor)
    except (CheckpointError, OSError) as error:
        return [f"{where}: {error}"]
    return (
        [f"{where}: {len(bad)} of {len(shard.record.blocks)} blocks do not match, first block {bad[0]}"] if bad else []
    )


def _usage(message: str) -> NoReturn:
    typer.echo(f"holdfast ckpt: error: {message}", err=True)
    raise typer.Exit(_USAGE)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(
            column, justify="right" if column in ("step", "attempt", "world size", "size", "shards", "age") else "left"
        )
    return table


def _print(table: Table) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=10_000)  # a file or a pipe has no lines to break
    console.print(table, highlight=False)


def _text(value: int | None) -> str:
    return "?" if value is None else str(value)


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"
