"""The steps in a tier, and which of them can be restored."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

import xxhash

from ckpt.errors import CheckpointError, FormatError, one_line
from ckpt.format.line import Line, newest_line
from ckpt.format.manifest import Manifest
from ckpt.format.shard_record import SaveId
from ckpt.tiers.parallel import in_parallel

log = logging.getLogger(__name__)

_STEP = re.compile(r"step-([0-9]{10}|[1-9][0-9]{10,18})\.a([0-9]{1,12})\.([0-9a-f]{8}(?:-[0-9a-f]{8})?)")


@dataclass(frozen=True, kw_only=True)
class CatalogEntry:
    """One step's directory."""

    name: str
    step: int
    attempt: int
    tag: str  # of its run and line
    manifest: Manifest | None  # None unless the step is committed and its manifest verifies
    reason: str | None  # why the step cannot be restored; None if it can
    damaged: bool  # the manifest exists and does not verify
    foreign: bool = False  # the manifest is of a format that this release does not know
    unread: OSError | None = None  # the error of the storage, if the manifest could not be read

    @property
    def save(self) -> SaveId | None:
        return self.manifest.save if self.manifest else None

    @property
    def metrics(self) -> Mapping[str, float]:
        return self.manifest.metrics if self.manifest else {}

    @property
    def line_id(self) -> str:
        """The id of its line, as its name has it."""
        return self.tag[9:]

    @property
    def is_lost(self) -> bool:
        """Whether it was committed, perhaps, and cannot be restored now."""
        return self.damaged or self.foreign or self.unread is not None

    @property
    def created_s(self) -> float:
        return self.manifest.created_s if self.manifest else 0.0


def entries_of(
    names: Iterable[str], namespace: str, read: Callable[[str], Manifest], *, at_once: int = 1
) -> Iterator[CatalogEntry]:
    """Yield the entries of all steps, newest first. Each manifest is read only when its entry is needed.

    Args:
        names: names of directories. Those that are not of steps are ignored.
        read: reads the manifest in a directory. It raises FileNotFoundError if the step was never committed,
            CheckpointError if the manifest is damaged, and another OSError if it could not be read.
    """
    matches = sorted(filter(None, map(_STEP.fullmatch, names)), key=lambda match: int(match[1]), reverse=True)
    batches = (matches[first : first + at_once] for first in range(0, len(matches), at_once))
    found = (
        entry
        for batch in batches
        for entry in in_parallel(lambda match: _entry(match, namespace, read), batch, at_once)
    )
    for _, same in groupby(found, lambda entry: entry.step):
        yield from _newest_first(list(same))


def committed(entries: Iterable[CatalogEntry], where: str) -> list[SaveId]:
    """The saves that can be restored, the newest line's first. Others are logged and left out.

    Args:
        entries: the entries of a tier, newest first.

    Raises:
        OSError: the newest entries could not be read. To use an older save would lose steps.
    """
    saves: list[SaveId] = []
    for entry in entries:
        if entry.save:
            saves.append(entry.save)
        elif entry.unread and not saves:
            raise entry.unread
        elif entry.is_lost:
            log.warning("%s/%s: step %d cannot be restored: %s", where, entry.name, entry.step, entry.reason)
    return newest_first(saves)


def newest_first(saves: Iterable[SaveId], line: Line | None = None) -> list[SaveId]:
    """Sorts saves: the descent of a line (None: of their newest one) by step, then those of other lines.

    Saves of the same step stay in their order.
    """
    saves = list(saves)
    line = newest_line(saves) if line is None else line

    def key(save: SaveId) -> tuple[bool, int, int]:
        return line.has(save.line.id, save.step), save.line.number, save.step

    return sorted(saves, key=key, reverse=True)


def last_commit_s(entries: Iterable[CatalogEntry]) -> float:
    """The time of the newest commit (s since the epoch, by the committing host's clock); 0 if there is none."""
    return max((entry.created_s for entry in entries), default=0.0)


def directory_name(save: SaveId) -> str:
    """The name of a save's directory.

    It has the run's tag, because each run counts its attempts from 0, and its line: an attempt may have several.
    """
    line = f"-{save.line.id}" if save.line.id else ""
    return f"step-{save.step:010d}.a{save.attempt}.{run_tag(save.run_id)}{line}"


def line_ids(names: Iterable[str]) -> set[str]:
    """The ids of the lines of the steps' directories among some names."""
    return {match[3][9:] for match in map(_STEP.fullmatch, names) if match}


def is_of_run(name: str, run_id: str) -> bool:
    """Whether a step's directory was written by a run."""
    match = _STEP.fullmatch(name)
    return match is not None and match[3][:8] == run_tag(run_id)


def run_tag(run_id: str) -> str:
    """Eight hexadecimal digits that identify a run in directory names."""
    return xxhash.xxh32_hexdigest(run_id.encode())


def _newest_first(entries: list[CatalogEntry]) -> list[CatalogEntry]:
    """Sorts the entries of one step: runs by their last commit, and entries of one run by attempt, not by time,
    because the nodes' clocks may differ."""
    last_s: dict[str, float] = {}
    for entry in entries:
        last_s[entry.tag] = max(last_s.get(entry.tag, 0.0), entry.created_s)
    return sorted(entries, key=lambda entry: (last_s[entry.tag], entry.tag, entry.attempt), reverse=True)


def _entry(match: re.Match[str], namespace: str, read: Callable[[str], Manifest]) -> CatalogEntry:
    name, step, attempt = match[0], int(match[1]), int(match[2])
    manifest, reason, damaged, foreign, unread = None, None, False, False, None
    try:
        found = read(name)
        if (found.save.step, found.save.attempt, found.namespace) != (step, attempt, namespace):
            raise CheckpointError(f"manifest is of step {found.save.step}, namespace {found.namespace:.100}")
        manifest = found
    except FileNotFoundError:
        reason = "no manifest: the step was never committed"
    except FormatError as error:
        reason, foreign = str(error), True
    except CheckpointError as error:
        reason, damaged = str(error), True
    except OSError as error:
        reason, unread = f"could not be read: {one_line(error)}", error
    return CatalogEntry(
        name=name, step=step, attempt=attempt, tag=match[3], manifest=manifest, reason=reason, damaged=damaged,
        foreign=foreign, unread=unread,
    )  # fmt: skip
