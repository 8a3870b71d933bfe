"""Which steps may go: only what a newer committed step has made superfluous."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ckpt.format.shard_record import SaveId
from ckpt.tiers.catalog import CatalogEntry


def superfluous(
    entries: Sequence[CatalogEntry], keep: int, running: str | None, complete: Collection[SaveId] | None = None
) -> list[CatalogEntry]:
    """The entries to remove.

    Committed steps beyond the `keep` newest go. A directory that was never committed goes when the same run has
    committed a newer step, or when it is older than all that stay. The step being written now never goes, nor does one
    that could not be read.

    Args:
        entries: newest first, as `entries_of` gives them.
        keep: committed steps that stay, at least 1.
        running: name of the directory that is being written now.
        complete: the saves that count as committed, whatever the entries say; None: all that have a manifest.
    """
    committed = [entry for entry in entries if entry.save and (complete is None or entry.save in complete)]
    if not committed:
        return []
    keep = max(keep, 1)
    newest, oldest = committed[0], committed[:keep][-1]
    gone, names = committed[keep:], {entry.name for entry in committed}
    for entry in entries:
        limit = newest if entry.run_tag == newest.run_tag else oldest
        if entry.name not in names and not entry.unread and (entry.step, entry.attempt) < (limit.step, limit.attempt):
            gone.append(entry)
    return [entry for entry in gone if entry.name != running]
