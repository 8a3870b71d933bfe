"""Chooses the steps to remove: those that newer committed steps of the same descent have made superfluous.

Milestones and the best steps stay in the descent of each line that stays. Pinned steps stay always.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ckpt.format.lasting import NOTHING_ELSE, Lasting
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
    lasting: Lasting = NOTHING_ELSE,
    pinned: Collection[str] = (),
) -> list[CatalogEntry]:
    """The entries to remove.

    Of each line the `keep` newest committed steps stay, with those that it continues. So a script that goes back or
    begins anew removes nothing of the line that it leaves. Of the same lines, milestones and the best steps stay. A
    directory that was never committed, or whose manifest is damaged, is removed if its own run has committed a newer
    step of its line, or if it is older than the newest steps that stay. Steps of another format, and those that could
    not be read, are never removed.

    Args:
        entries: the entries from `entries_of`, newest first.
        complete: the saves that count as committed; None: all that have a manifest.
        lines: those that begin after some step and have no save yet.
        left: whether the steps of all lines but the newest one's descent are superfluous too.
        lasting: what stays besides the newest steps.
        pinned: the names of entries that are never removed.
    """
    committed = [entry for entry in entries if entry.save and (complete is None or entry.save in complete)]
    if not committed:
        return []
    saves, lines = [entry.save for entry in committed if entry.save], list(lines)
    line = newest_line(saves, lines)
    recent, lasts = _kept(_scored(committed), max(keep, 1), lines, lasting)
    stays = {one.save for one in recent | lasts}
    oldest = min((one.save.step, one.save.attempt) for one in recent)
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
        if is_superfluous and not entry.unread and not entry.foreign and entry.name not in pinned:
            gone.append(entry)
    return gone


def why_lasting(entries: Iterable[CatalogEntry], lasting: Lasting, lines: Iterable[Line] = ()) -> dict[str, str]:
    """The milestones and the best steps of the newest line's descent: the reason why each stays, by name of its entry.

    Args:
        entries: the entries from `entries_of`, newest first.
    """
    committed = [entry for entry in entries if entry.save]
    scored = _scored(committed)
    line = newest_line([one.save for one in scored], lines)
    descent = _in_order([one for one in scored if line.has(one.line.id, one.step)], line)
    why = lasting.of(descent)
    return {entry.name: why[one] for entry, one in zip(committed, scored, strict=True) if one in why}


@dataclass(frozen=True, kw_only=True)
class ScoredSave:
    """A save with its metrics; only its id tells it from others."""

    save: SaveId
    metrics: Mapping[str, float] = field(compare=False)

    @property
    def step(self) -> int:
        return self.save.step

    @property
    def line(self) -> Line:
        return self.save.line


def _scored(committed: Iterable[CatalogEntry]) -> list[ScoredSave]:
    return [ScoredSave(save=entry.save, metrics=entry.metrics) for entry in committed if entry.save]


def _in_order(scored: Sequence[ScoredSave], line: Line) -> list[ScoredSave]:
    by_save = {one.save: one for one in scored}
    return [by_save[save] for save in newest_first(by_save, line)]


def _kept(
    scored: Sequence[ScoredSave], keep: int, begun: Sequence[Line], lasting: Lasting
) -> tuple[set[ScoredSave], set[ScoredSave]]:
    """The `keep` newest saves of the newest line's descent, and of each line that was left with steps of its own; and
    the milestones and best steps of the same descents.

    Of the lines that the newest save's own run has left, only the last one stays: a script that never loads leaves one
    in each attempt.
    """
    current = newest_line([one.save for one in scored], begun)
    in_order = _in_order(scored, current)
    newest, kept, runs = in_order[0], set(in_order[:keep]), set[str]()
    lasts = set(lasting.of(one for one in in_order if current.has(one.line.id, one.step)))
    lines = sorted({*begun, *(one.line for one in scored)}, reverse=True)
    for line in lines[1:]:
        descent = _in_order([one for one in scored if line.has(one.line.id, one.step)], line)
        if not descent:
            continue
        tip = descent[0]
        is_left = not any(later.has(tip.line.id, tip.step) for later in lines if later > line)
        if is_left and not (tip.save.run_id == newest.save.run_id and tip.save.run_id in runs):
            kept.update(descent[:keep])
            lasts.update(lasting.of(descent))
            runs.add(tip.save.run_id)
    return kept, lasts
