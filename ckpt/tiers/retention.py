"""Chooses the steps to remove: only those that a newer committed step has made superfluous."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ckpt.format.shard_record import SaveId
from ckpt.tiers.catalog import CatalogEntry


def superfluous(
    entries: Sequence[CatalogEntry], keep: int, complete: Collection[SaveId] | None = None
) -> list[CatalogEntry]:
    """The entries to remove.

    Committed steps beyond the `keep` newest are removed. A directory that was never committed is removed if the same
    run has committed a newer step, or if it is older than all kept steps. Steps that could not be read are never
    removed.

    Args:
        entries: the entries from `entries_of`, newest first.
        complete: the saves that count as committed; None: all that have a manifest.
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
    return gone
