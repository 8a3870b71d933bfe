"""`holdfast ckpt`: what checkpoints there are, and whether every byte of them verifies."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from ckpt.awaiting import awaiting
from ckpt.cli_plan import show_plan as show_plan
from ckpt.cli_rebuild import rebuild_lost
from ckpt.errors import CheckpointError, CorruptError, one_line
from ckpt.progress import Bar, counted
from ckpt.record.manifest import Manifest
from ckpt.record.shard import ShardRecord, read_record
from ckpt.redundancy.parity import ParityRecord, read_parity
from ckpt.reported import FAILED, UNREAD, end, printable, reported
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.lookup import is_url, local_tiers, s3_tiers
from ckpt.tiers.mark import MARK
from ckpt.tiers.posix import read_file
from ckpt.tiers.quarantine import noted_bad
from ckpt.tiers.reads import Read, find_bad, reader
from ckpt.tiers.tier import Tier
from ckpt.verbs import register

_SHARD = re.compile(r"(own-[0-9]+|copy-[0-9]+-[0-9]+|parity)-[0-9]+\.json")

app = typer.Typer(help="Look at checkpoints, verify and rebuild them.", no_args_is_help=True, add_completion=False)
PathArgument = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A shared or NVMe checkpoint directory, one namespace's folder in it, a node's memory directory, "
        "or s3://bucket/prefix (AWS_ENDPOINT_URL and boto3's other settings apply).",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, kw_only=True)
class StoredShard:
    """One shard or parity, and where its bytes lie."""

    record: ShardRecord | ParityRecord
    where: str
    read: Read


@dataclass(kw_only=True)
class StoredStep:
    """One step as found on disk or in memory."""

    namespace: str
    tier: str
    step: int | None
    attempt: int | None
    world_size: int | None = None
    source: Tier | None = None  # of a step in a tier
    name: str | None = None  # of its directory there
    committed: bool | None = None  # None on one node: that is for all nodes together to say
    created_s: float | None = None
    shards: list[StoredShard] = field(default_factory=list)
    parity: list[StoredShard] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)  # where storage failed, which says nothing of what it holds

    def to_json(self) -> dict[str, Any]:
        return {
            "namespace": self.namespace,
            "tier": self.tier,
            "step": self.step,
            "attempt": self.attempt,
            "world_size": self.world_size,
            "bytes": sum(shard.record.nbytes for shard in self.shards),
            "parity_bytes": sum(parity.record.nbytes for parity in self.parity),
            "shards": len(self.shards),
            "age_s": None if self.created_s is None else round(max(0.0, time.time() - self.created_s), 1),
            "committed": self.committed,
            "problems": self.problems,
            "unread": self.unread,
        }


@app.command("ls")
def list_all(path: PathArgument, as_json: JsonOption = False) -> None:
    """List the steps in a directory, newest first."""
    with awaiting(path):
        rows = [step.to_json() for step in _find(path)]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = _table("step", "attempt", "world size", "size", "shards", "age", "committed", "tier", "namespace")
    for row in rows:
        committed = {True: "yes", False: "no", None: "-"}[row["committed"]]
        table.add_row(
            *map(_text, (row["step"], row["attempt"], row["world_size"])),
            decimal(row["bytes"]),
            f"{row['shards']}{' + parity' if row['parity_bytes'] else ''}",
            _age(row["age_s"]),
            _found_wrong(row) or committed,
            row["tier"],
            _shown(row["namespace"]),
        )
    _print(table)


@app.command("verify")
def verify(
    path: PathArgument,
    step: Annotated[int | None, typer.Option("--step", help="Only this step.")] = None,
    set_aside: Annotated[
        bool, typer.Option("--quarantine", help="Set bad steps of a tier aside, so that none is restored.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Read every block of every step and compare it with its checksum.

    Exit code 1 when something is bad, 3 when something could not be read: that is never taken for bad, nor set aside.
    """
    with awaiting(path) as heard:
        steps = [found for found in _find(path, UNREAD) if step in (None, found.step) and found.tier != "aside"]
        if step is not None and not steps:
            end(f"{path}: holds no step {step}; look with `holdfast ckpt ls`")
        shards = [(found, shard) for found in steps for shard in found.shards + found.parity]
        nbytes = sum(shard.record.nbytes for _, shard in shards)
        with Bar(f"verifying {counted(len(steps))}", nbytes, quiet=as_json, heard=heard) as bar:
            for found, shard in shards:
                _verify_shard(found, shard, bar.advance)
        for found in steps:
            if set_aside and found.unread:
                found.unread.append("nothing of it was set aside; verify it again")
            elif set_aside and found.problems and found.name and found.source:
                found.problems.append(f"set aside as {_set_aside(found.source, found.name, found.problems)}")
    rows = [{**found.to_json(), "ok": not found.problems and not found.unread} for found in steps]
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        table = _table("step", "attempt", "size", "result", "tier", "namespace")
        for row in rows:
            good = "not committed" if row["committed"] is False else "ok"
            wrong = [("BAD", text) for text in row["problems"]] + [("UNREAD", text) for text in row["unread"]]
            result = "\n".join(f"{word} {_shown(text)}" for word, text in wrong)
            size = decimal(row["bytes"])
            table.add_row(
                _text(row["step"]), _text(row["attempt"]), size, result or good, row["tier"], _shown(row["namespace"])
            )
        _print(table)
    if not all(row["ok"] for row in rows):
        raise typer.Exit(FAILED if any(row["problems"] for row in rows) else UNREAD)


def _find(where: str, unread: int = FAILED) -> list[StoredStep]:
    """The steps under a path or URL, newest first; ends the program when nothing of ours is there.

    Args:
        where: the path or URL.
        unread: exit code where storage fails.
    """
    with reported(unread):
        if is_url(where):
            return [step for tier in s3_tiers(where) for step in _tier_steps(tier, "s3")]
        path = Path(where)
        names = os.listdir(path)
        if "board" in names or any(map(_SHARD.fullmatch, names)):
            return _memory_steps(path, names)
        if tiers := local_tiers(path):
            return [step for tier, kind in tiers for step in _tier_steps(tier, kind)]
    end(f"{where}: neither a checkpoint directory ({MARK} in it or below) nor a node's memory directory")


def _tier_steps(tier: Tier, kind: str) -> list[StoredStep]:
    steps = []
    for entry in tier.catalog():
        found = StoredStep(
            namespace=tier.namespace, tier=kind, step=entry.step, attempt=entry.attempt,
            committed=None if tier.node_local and entry.manifest else bool(entry.manifest),
            source=tier, name=entry.name,
        )  # fmt: skip
        if entry.manifest:
            found.world_size = entry.manifest.world_size
            found.created_s = entry.manifest.created_s
            try:
                found.shards = _manifest_shards(tier, entry.name, entry.manifest)
            except CorruptError as error:
                found.problems.append(f"{entry.name}: {error}")
        elif entry.damaged:
            found.problems.append(f"{entry.name}: {entry.reason}")
        elif entry.unread:
            found.unread.append(f"{entry.name}: {entry.reason}")
        steps.append(found)
    for name, reason in tier.aside():
        problems = [f"{name}: {reason}"]
        steps.append(StoredStep(namespace=tier.namespace, tier="aside", step=None, attempt=None, problems=problems))
    return steps


def _manifest_shards(tier: Tier, name: str, manifest: Manifest) -> list[StoredShard]:
    return [
        StoredShard(
            record=place.record, where=f"{tier.where}/{name}/{place.file}", read=reader(tier, manifest.save, place)
        )
        for place in manifest.shards
    ]


def _memory_steps(folder: Path, names: list[str]) -> list[StoredStep]:
    """The shards that one node holds, by step."""
    steps: dict[tuple[Any, ...], StoredStep] = {}
    for name in sorted(filter(_SHARD.fullmatch, names)):
        stem = name.removesuffix(".json")
        try:
            record = (read_parity if stem.startswith("parity") else read_record)(folder, stem)
        except (CheckpointError, FileNotFoundError) as error:
            problem = f"{name}: {error}"
            steps[(stem,)] = StoredStep(namespace="?", tier="memory", step=None, attempt=None, problems=[problem])
            continue
        except OSError as error:
            unread = f"{name}: could not be read: {one_line(error)}"
            steps[(stem,)] = StoredStep(namespace="?", tier="memory", step=None, attempt=None, unread=[unread])
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
        kind = found.shards if isinstance(record, ShardRecord) else found.parity
        data = folder / f"{stem}.data"
        kind.append(StoredShard(record=record, where=str(data), read=partial(read_file, data)))
        found.created_s = max(found.created_s or 0.0, (folder / name).stat().st_mtime)
        if not found.problems and (reason := noted_bad(folder, directory_name(record.save))) is not None:
            found.problems.append(f"set aside by a restore: {reason}")
    return sorted(steps.values(), key=lambda step: (step.step or -1, step.attempt or -1), reverse=True)


def _set_aside(tier: Tier, name: str, problems: list[str]) -> str:
    try:
        return tier.set_aside(name, "; ".join(problems))
    except (CheckpointError, OSError) as error:
        end(f"{name} is not set aside: {error}", FAILED)


def _verify_shard(found: StoredStep, shard: StoredShard, advance: Callable[[int], None]) -> None:
    """Notes what is bad about a shard's bytes; reads them block by block."""
    where = f"{shard.record.what} in {shard.where}"

    def read(start: int, into: memoryview) -> None:
        shard.read(start, into)
        advance(len(into))

    try:
        bad = list(find_bad(read, shard.record.nbytes, shard.record.blocks))
    except (CheckpointError, FileNotFoundError) as error:
        found.problems.append(f"{where}: {error}")
        return
    except OSError as error:
        found.unread.append(f"{where}: could not be read: {one_line(error)}")
        return
    if bad:
        what = f"{len(bad)} of {len(shard.record.blocks)} blocks do not match"
        found.problems.append(f"{where}: {what}, first block {bad[0]}")


def _found_wrong(row: dict[str, Any]) -> str:
    words = [word for texts, word in ((row["problems"], "DAMAGED"), (row["unread"], "UNREAD")) if texts]
    return "; ".join([*words, *map(_shown, row["problems"]), *map(_shown, row["unread"])])


def _shown(text: str) -> str:
    return escape(printable(text))


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


app.command("rebuild")(rebuild_lost)
register(app)  # the other verbs that change or make something
