"""Chooses the steps to remove: those that newer committed steps of the same descent have made superfluous."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ckpt.format.line import Line, newest_line
from ckpt.format.shard_record import SaveId
from ckpt.tiers.catalog import CatalogEntry, newest_first


def superfluous(
    entries: Sequence[CatalogEntry],
    keep: int,
    complete: Collection[SaveId] | None = None,
    *,
    lines: Iterable[Line] = (),
    left: bool = False,
) -> list[CatalogEntry]:
    """The entries to remove.

    Of each line the `keep` newest committed steps stay, with those that it continues. So a script that goes back or
    begins anew removes nothing of the line that it leaves. A directory that was never committed, or whose manifest is
    damaged, is removed if its own run has committed a newer step of its line, or if it is older than all steps that
    stay. Steps of another format, and those that could not be read, are never removed.

    Args:
        entries: the entries from `entries_of`, newest first.
        complete: the saves that count as committed; None: all that have a manifest.
        lines: those that begin after some step and have no save yet.
        left: whether the steps of all lines but the newest one's descent are superfluous too.
    """
    committed = [entry for entry in entries if entry.save and (complete is None or entry.save in complete)]
    if not committed:
        return []
    saves, lines = [entry.save for entry in committed if entry.save], list(lines)
    line = newest_line(saves, lines)
    stays = _kept(saves, max(keep, 1), lines)
    oldest = min((save.step, save.attempt) for save in stays)
    newest: dict[str, tuple[int, int]] = {}  # by run and line
    for entry in committed:
        newest[entry.tag] = max(newest.get(entry.tag, (0, 0)), (entry.step, entry.attempt))
    names, gone = {entry.name for entry in committed}, []
    for entry in entries:
        if entry.name in names:
            is_superfluous = entry.save not in stays
        else:
            is_superfluous = (entry.step, entry.attempt) < newest.get(entry.tag, oldest)
        is_superfluous |= left and not line.has(entry.line_id, entry.step)
        if is_superfluous and not entry.unread and not entry.foreign:
            gone.append(entry)
    return gone


def _kept(saves: Sequence[SaveId], keep: int, begun: Sequence[Line]) -> set[SaveId]:
    """The `keep` newest saves of the newest line's descent, and of each line that was left with steps of its own.

    Of the lines that the newest save's own run has left, only the last one stays: a script that never loads leaves one
    in each attempt.
    """
    in_order = newest_first(saves, newest_line(saves, begun))
    newest, kept, runs = in_order[0], set(in_order[:keep]), set[str]()
    lines = sorted({*begun, *(save.line for save in saves)}, reverse=True)
    for line in lines[1:]:
        descent = newest_first((save for save in saves if line.has(save.line.id, save.step)), line)
        if not descent:
            continue
        tip = descent[0]
        is_left = not any(later.has(tip.line.id, tip.step) for later in lines if later > line)
        if is_left and not (tip.run_id == newest.run_id and tip.run_id in runs):
            kept.update(descent[:keep])
            runs.add(tip.run_id)
    return kept
