"""The line of descent that this process's saves continue. All ranks compute the same line without a message.

A save continues the newest step that the script has loaded, or saved since. If that is the newest step there is, the
save belongs to its line. Otherwise it begins a new line: the script has loaded an older step, or none.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ckpt.format.line import FIRST, Line, Owner
from ckpt.format.shard_record import SaveId

log = logging.getLogger("ckpt")


@dataclass(frozen=True, kw_only=True)
class Known:
    """What the agents know of the namespace when a worker connects.

    Attributes:
        save: the newest save that can be restored; None if there is none.
        is_head: False if newer steps of its line exist: they cannot be restored now, or the user went back before them.
        skipped: whether steps were passed over.
        next_number, began_s: of a line that begins in this attempt.
    """

    save: SaveId | None
    is_head: bool
    skipped: bool
    next_number: int
    began_s: float


class Descent:
    """The lines of one session of saves."""

    def __init__(self, newest: Known, seed: str, owner: Owner, *, speaks: bool) -> None:
        """
        Args:
            seed: text that is the same on all ranks, and of no other attempt.
            speaks: whether this rank logs that a line begins.
        """
        self._newest = newest
        self._head = newest.save
        self._seed = seed
        self._owner = owner
        self._speaks = speaks
        self._loaded: list[SaveId] = []  # since the last save
        self._read: list[SaveId] = []
        self._line: Line | None = None
        self.last_step = -1  # saved in this line

    def took(self, save: SaveId, *, is_load: bool) -> None:
        """The script has loaded a save, or read it. What it reads counts only if it never loads."""
        (self._loaded if is_load else self._read).append(save)

    def committed(self, save: SaveId) -> None:
        """A save of this session has committed. Its line is an older one if another rank has loaded a newer step."""
        self._head = save
        if self._line is not None and save.line.number < self._line.number:
            self._line = save.line

    def advance(self, step: int) -> Line | None:
        """The line of the next save; None if its step is not larger than that of the save before it.

        A script that goes back must load the step that it goes back to.
        """
        if self._line is None:
            self._line = self._begin(step, _newest_up_to(step, self._loaded or self._read))
        elif step <= self.last_step:
            base = _newest_up_to(step, self._loaded)
            if base is None:
                return None
            self._line = self._begin(step, base)
        self._loaded.clear()
        self.last_step = step
        return self._line

    def _begin(self, step: int, base: SaveId | None) -> Line:
        """The line of a save that continues `base`."""
        newest, head = self._newest, self._head
        if self._line is None and base is not None and base == head and newest.is_head:
            return base.line
        before = self._line or (head.line if head else FIRST)
        line = (base.line if base else before).fork(
            base.step if base else None, number=max(newest.next_number, 1 + before.number), began_s=newest.began_s,
            seed=self._seed, owner=self._owner,
        )  # fmt: skip
        if self._speaks and (head is not None or newest.skipped):
            after = f"continues step {base.step}" if base else "continues no step"
            there = f"the newest step is {head.step}" if head else "no step could be restored"
            text = "the save of step %d begins %s: it %s, and %s. `holdfast ckpt ls` shows what stays of other lines"
            log.warning(text, step, line, after, there)
        return line


def _newest_up_to(step: int, saves: list[SaveId]) -> SaveId | None:
    return max((save for save in saves if save.step <= step), key=lambda save: save.step, default=None)
