"""What steps a shared directory holds, and which of them can be restored."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ckpt.errors import CheckpointError
from ckpt.record.manifest import Manifest, read_manifest
from ckpt.record.shard import SaveId

_STEP = re.compile(r"step-([0-9]{10})\.a([0-9]{1,12})\.([0-9a-f]{8})")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One step's directory."""

    name: str
    step: int
    attempt: int
    run_tag: str
    manifest: Manifest | None  # None unless the step is committed and its manifest verifies
    reason: str | None  # why it cannot be restored; None when it can
    damaged: bool  # a manifest is there, and it cannot be trusted

    @property
    def save(self) -> SaveId | None:
        return self.manifest.save if self.manifest else None

    @property
    def order(self) -> tuple[int, float, int]:
        """Newer is greater: by step, then by when it was committed, then by attempt."""
        return (self.step, self.manifest.created_s if self.manifest else 0.0, self.attempt)


def list_steps(folder: Path, namespace: str) -> list[Entry]:
    """All step directories of a namespace's folder, newest first; none when the folder is missing."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    entries = [_entry(folder, match, namespace) for match in map(_STEP.fullmatch, names) if match]
    return sorted(entries, key=lambda entry: entry.order, reverse=True)


def _entry(folder: Path, match: re.Match[str], namespace: str) -> Entry:
    name, step, attempt, run_tag = match[0], int(match[1]), int(match[2]), match[3]
    manifest, reason, damaged = None, None, False
    try:
        if (folder / name).is_symlink():
            raise CheckpointError("is a symbolic link")
        found = read_manifest(folder / name)
        if (found.save.step, found.save.attempt, found.namespace) != (step, attempt, namespace):
            raise CheckpointError(f"manifest is of step {found.save.step}, namespace {found.namespace:.100}")
        manifest = found
    except FileNotFoundError:
        reason = "no manifest: the step was never committed"
    except (CheckpointError, OSError) as error:
        reason, damaged = str(error), True
    return Entry(
        name=name, step=step, attempt=attempt, run_tag=run_tag, manifest=manifest, reason=reason, damaged=damaged
    )
