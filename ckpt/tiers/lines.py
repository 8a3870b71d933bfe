"""The lines of descent in one tier, for commands that begin one or compare two."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ckpt.errors import ConfigError
from ckpt.format.line import Line, Owner, newest_line
from ckpt.format.shard_record import SaveId
from ckpt.tiers.catalog import newest_first
from ckpt.tiers.tier import Tier

_UNNAMED = "0.2.0"  # what a user calls the line of Holdfast 0.2.0, which has no id


@dataclass(frozen=True, kw_only=True)
class Lines:
    """The committed saves of a tier, and the lines that begin after some step and have no save yet."""

    where: str
    saves: Sequence[SaveId]
    begun: Sequence[Line]

    @property
    def newest(self) -> Line:
        """The line whose descent the next start restores."""
        return newest_line(self.saves, self.begun)

    @property
    def next_number(self) -> int:
        """The number of a line that begins now."""
        return 1 + max((line.number for line in self._all()), default=0)

    def begin(self, base: SaveId | None, seed: str, owner: Owner) -> Line:
        """The line that begins after a save; after no save if None. Nothing is written."""
        line = self.newest if base is None else base.line
        step = None if base is None else base.step
        return line.fork(step, number=self.next_number, began_s=time.time(), seed=seed, owner=owner)

    def committed(self, step: int, line_id: str | None) -> SaveId:
        """A step of the newest line's descent, or of another line's. Raises ConfigError if there is none."""
        line = self.newest if line_id is None else self._named(line_id)
        descent = [save for save in newest_first(self.saves, line) if line.has(save.line.id, save.step)]
        for save in descent:
            if save.step == step:
                return save
        there = ", ".join(map(str, dict.fromkeys(save.step for save in descent))) or "none"
        others = sorted({save.line for save in self.saves if save.step == step}, reverse=True)
        hint = f"; {' and '.join(map(str, others))} has it: give `--line ID`" if others else ""
        raise ConfigError(f"{self.where}: {line} has no committed step {step}; it has {there}{hint}")

    def aside(self, line: Line) -> list[str]:
        """The steps that a line does not continue, in words: one text for each line that has some."""
        left = [save for save in self.saves if not line.has(save.line.id, save.step)]
        texts = []
        for other in sorted({save.line for save in left}, reverse=True):
            steps = sorted({save.step for save in left if save.line == other})
            span = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]} ({len(steps)} steps)"
            texts.append(f"{span} of {other}{f' ({other.whose})' if other.whose else ''}")
        return texts

    def _named(self, line_id: str) -> Line:
        wanted = "" if line_id == _UNNAMED else line_id
        for line in sorted(self._all(), reverse=True):
            if line.id == wanted:
                return line
        known = ", ".join(line.id or _UNNAMED for line in sorted(self._all(), reverse=True))
        raise ConfigError(f"{self.where}: has no line {line_id!r:.40}; it has {known or 'none'}")

    def _all(self) -> set[Line]:
        return {*self.begun, *(save.line for save in self.saves)}


def lines_of(tier: Tier) -> Lines:
    """Reads the lines of a tier. Raises OSError if the newest step cannot be read."""
    return Lines(where=tier.where, saves=tier.steps(), begun=tier.lines())


def check_related(ours: Lines, theirs: Lines) -> None:
    """Raise ConfigError if two places have steps, and none of one place's lines is related to any of the other's.

    Lines are related if they are the same line, or continue a common one. Saves of Holdfast 0.2.0 have no line, so
    they are related if they are of the same run.
    """
    if theirs.saves and not _family(ours.saves) & _family(theirs.saves):
        raise ConfigError(
            f"{theirs.where}: has steps of {_described(theirs.newest)}, which is not related to "
            f"{_described(ours.newest)} in {ours.where}; copy to an empty place"
        )


def _family(saves: Collection[SaveId]) -> set[str]:
    """The ids of the lines of saves and of their ancestors; for saves of Holdfast 0.2.0, their runs."""
    ids = {line_id for save in saves for line_id in (save.line.id, *_ancestors(save)) if line_id}
    return ids | {f"run {save.run_id}" for save in saves if not save.line.id}


def _ancestors(save: SaveId) -> Iterable[str]:
    return (line_id for line_id, _ in save.line.ancestors)


def _described(line: Line) -> str:
    return f"{line} ({line.whose})" if line.whose else str(line)
