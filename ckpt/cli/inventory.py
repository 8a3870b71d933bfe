"""The checkpoints under a path or URL: the steps of tiers and of a node's memory, and their shards."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import typer

from ckpt.cli.output import FAILED, end, reported
from ckpt.errors import CheckpointError, CorruptError, one_line
from ckpt.format.lasting import NOTHING_ELSE, Lasting
from ckpt.format.line import Line, newest_line
from ckpt.format.manifest import Manifest
from ckpt.format.memory_names import PARITY, StoredName, data_file, names_of
from ckpt.format.shard_record import ShardRecord, read_record
from ckpt.redundancy.parity_record import ParityRecord, read_parity
from ckpt.tiers.catalog import CatalogEntry, directory_name
from ckpt.tiers.lookup import is_url, tiers_at
from ckpt.tiers.mark import MARK
from ckpt.tiers.posix import read_file
from ckpt.tiers.quarantine import noted_reason
from ckpt.tiers.reads import ReadAt, reader
from ckpt.tiers.retention import why_lasting
from ckpt.tiers.tier import Tier


@dataclass(frozen=True, kw_only=True)
class StoredShard:
    """A shard or parity, and the location of its bytes."""

    record: ShardRecord | ParityRecord
    where: str
    read: ReadAt


@dataclass(kw_only=True)
class StoredStep:
    """A step found in a tier or in a node's memory."""

    namespace: str
    tier: str
    step: int | None
    attempt: int | None
    world_size: int | None = None
    nbytes: int = 0  # of all its shards
    parity_bytes: int = 0
    shards: int = 0
    committed: bool | None = None  # None on one node, because only all nodes together can tell
    created_s: float | None = None
    source: Tier | None = None  # of a step in a tier
    name: str | None = None  # of its directory in the tier
    manifest: Manifest | None = None  # in the tier
    in_memory: list[StoredShard] = field(default_factory=list)
    line: Line | None = None  # None if it is not known
    is_current: bool | None = None  # whether the newest line continues it; None if it is not known
    mark: str = ""  # where a namespace has more than one line: what becomes of the step
    pinned: bool = False
    lasts: str = ""  # why it stays besides the newest steps: a milestone, or one of the best
    other_format: str | None = None  # which release has written it, if this one does not know its format
    problems: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)  # parts that storage failed to read, which may be intact

    @property
    def age_s(self) -> float | None:
        return None if self.created_s is None else round(max(0.0, time.time() - self.created_s), 1)

    @property
    def metrics(self) -> dict[str, float]:
        """What the script has given for the save."""
        if self.manifest:
            return dict(self.manifest.metrics)
        records = (shard.record for shard in self.in_memory)
        return next((dict(record.metrics) for record in records if isinstance(record, ShardRecord)), {})

    def stored(self) -> Iterator[StoredShard]:
        """Its shards and parity.

        Each record is parsed when it is iterated over. Raises CorruptError for a malformed one.
        """
        yield from self.in_memory
        if self.manifest and self.source:
            for place in self.manifest.shards:
                where = f"{self.source.where}/{self.name}/{place.file}"
                read = reader(self.source, self.manifest.save, place)
                yield StoredShard(record=place.record, where=where, read=read)

    def to_json(self) -> dict[str, Any]:
        return {
            "namespace": self.namespace, "tier": self.tier, "step": self.step, "attempt": self.attempt,
            "world_size": self.world_size, "bytes": self.nbytes, "parity_bytes": self.parity_bytes,
            "shards": self.shards, "age_s": self.age_s, "committed": self.committed, "problems": self.problems,
            "unread": self.unread, "line": self.line.id if self.line else None, "is_current": self.is_current,
            "other_format": self.other_format, "pinned": self.pinned, "lasts": self.lasts, "metrics": self.metrics,
        }  # fmt: skip


def find_steps(where: str, unread: int = FAILED, newest: int | None = None) -> Iterator[StoredStep]:
    """The steps under a path or URL, newest first, then the quarantined ones. Each is read when it is iterated over.

    Ends the program if no checkpoint is there.

    Args:
        unread: exit code if storage fails.
        newest: at most this number of each namespace; None: all.
    """
    with reported(unread):
        names = [] if is_url(where) else os.listdir(where)
        if (stored := names_of(names)) or "board" in names:
            yield from _memory_steps(Path(where), stored)[:newest]
            return
        if tiers := tiers_at(where):
            for tier in tiers:
                yield from _tier_steps(tier, newest)
            return
    end(f"{where}: neither a checkpoint directory ({MARK} in it or below) nor a node's memory directory")


def _tier_steps(tier: Tier, newest: int | None) -> Iterator[StoredStep]:
    entries, lines = tier.catalog(), tier.lines()
    has_lines, lasting, pinned = tier.has_lines(), _lasting_of(tier), tier.pins()
    why: dict[str, str] = {}
    if lasting != NOTHING_ELSE:
        entries = iter(found := list(entries))
        why = why_lasting(found, lasting, lines)
    if has_lines:
        found = list(entries)
        line = newest_line((entry.save for entry in found if entry.save), lines)
        found.sort(key=lambda entry: line.has(entry.line_id, entry.step), reverse=True)
        entries = iter(found)
    is_first = has_lines
    for entry in islice(entries, newest):
        step = _tier_step(tier, entry)
        step.pinned, step.lasts = entry.name in pinned, why.get(entry.name, "")
        step.is_current = not has_lines or line.has(entry.line_id, entry.step)
        if not step.is_current:
            step.mark = _left(step.line, entry.line_id)
        elif is_first and entry.save:
            step.mark, is_first = f"the next start restores it, in {entry.save.line}", False
        yield step
    for name, reason in tier.quarantined():
        problems = [f"{name}: {reason}"]
        yield StoredStep(namespace=tier.namespace, tier="quarantine", step=None, attempt=None, problems=problems)


def _lasting_of(tier: Tier) -> Lasting:
    try:
        return tier.read_lasting()
    except CorruptError as error:
        typer.echo(f"{tier.where}: milestones and best steps are not marked: {error}", err=True)
        return NOTHING_ELSE


def _left(line: Line | None, line_id: str) -> str:
    """What is said of a step that the newest line does not continue."""
    line = line or Line(id=line_id)
    return f"left: {line}{f' ({line.whose})' if line.whose else ''}"


def _tier_step(tier: Tier, entry: CatalogEntry) -> StoredStep:
    found = StoredStep(
        namespace=tier.namespace, tier=tier.kind, step=entry.step, attempt=entry.attempt, source=tier, name=entry.name,
        manifest=entry.manifest, committed=None if tier.node_local and entry.manifest else bool(entry.manifest),
    )  # fmt: skip
    if entry.foreign:
        found.committed, found.other_format = True, entry.reason
    elif entry.manifest:
        found.line = entry.manifest.save.line
        found.world_size = entry.manifest.world_size
        found.created_s = entry.manifest.created_s
        found.nbytes, found.shards = entry.manifest.nbytes, len(entry.manifest.shards)
    elif entry.damaged:
        found.problems.append(f"{entry.name}: {entry.reason}")
    elif entry.unread or entry.foreign:
        found.unread.append(f"{entry.name}: {entry.reason}")
    return found


def _memory_steps(folder: Path, names: list[StoredName]) -> list[StoredStep]:
    """The shards in one node's memory, by step."""
    steps: dict[tuple[Any, ...], StoredStep] = {}
    for name in names:
        try:
            record = (read_parity if name.kind == PARITY else read_record)(folder, str(name))
        except (CheckpointError, OSError) as error:
            steps[name] = bad = StoredStep(namespace="?", tier="memory", step=None, attempt=None)
            if isinstance(error, (CheckpointError, FileNotFoundError)):
                bad.problems.append(f"{name}.json: {error}")
            else:
                bad.unread.append(f"{name}.json: could not be read: {one_line(error)}")
            continue
        found = steps.setdefault(
            (record.save, record.namespace),
            StoredStep(
                namespace=record.namespace, tier="memory", step=record.save.step, attempt=record.save.attempt,
                world_size=record.world_size, line=record.save.line,
            ),
        )  # fmt: skip
        data = data_file(folder, name)
        found.in_memory.append(StoredShard(record=record, where=str(data), read=partial(read_file, data)))
        if isinstance(record, ShardRecord):
            found.shards, found.nbytes = found.shards + 1, found.nbytes + record.nbytes
        else:
            found.parity_bytes += record.nbytes
        found.created_s = max(found.created_s or 0.0, (folder / f"{name}.json").stat().st_mtime)
        if not found.problems and (reason := noted_reason(folder, directory_name(record.save))) is not None:
            found.problems.append(f"quarantined by a restore: {reason}")
    return sorted(steps.values(), key=lambda step: (step.step or -1, step.attempt or -1), reverse=True)
