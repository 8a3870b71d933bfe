"""Ranks that have closed their Checkpointer: what others save without one of them can never become complete.

A rank may make one Checkpointer after the other, as all ranks do in the same order. So a rank that has closed its n-th
will bring no shard to what others save with theirs, and may yet bring one to what they save with the next: that waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


class Departed:
    """Who has left, and what each had handed in by then."""

    def __init__(self) -> None:
        self._session: dict[int, int] = {}  # by rank, the last of its Checkpointers that we have heard of
        self._left: dict[int, frozenset[int]] = {}  # by rank that has closed that one, its steps in flight

    def leave(self, rank: int, session: int, steps: Iterable[int] = ()) -> bool:
        """A rank has closed a Checkpointer, its `session`-th; `steps`, still in flight, have its shard.

        Returns:
            Whether it has left: not where it is known to have another one already.
        """
        if session < self._session.get(rank, 0):
            return False
        self._session[rank], self._left[rank] = session, frozenset(steps)
        return True

    def back(self, rank: int, session: int) -> bool:
        """A rank has opened a Checkpointer, its `session`-th; returns whether it had left."""
        self._session[rank] = max(session, self._session.get(rank, 0))
        return self._left.pop(rank, None) is not None

    def knows(self, rank: int, session: int) -> bool:
        """Whether it has been heard that a rank has closed its `session`-th, or has opened a later one."""
        newest = self._session.get(rank, 0)
        return newest > session or (newest == session and rank in self._left)

    @property
    def ranks(self) -> Collection[int]:
        """Those that have left and not come back."""
        return self._left.keys()

    def lacks(self, rank: int, step: int, session: int) -> bool:
        """Whether a rank that has left brings no shard to a step that others save with their `session`-th."""
        return self._session[rank] >= session and step not in self._left[rank]


def ended_without(rank: int) -> str:
    """Why a save is dropped."""
    return f"rank {rank} has ended without saving it, so it is not complete; the newest complete step stays"
