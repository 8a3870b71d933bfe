"""The nodes that the job is to leave before they fail, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from rpds import HashTrieMap, HashTrieSet

from launcher.core.frozen import replace
from launcher.core.members import Members


class DepartureCause(Enum):
    """Why a node is to be left."""

    __hash__ = object.__hash__  # Enum hashes the name, in Python; marks are read in every decision

    DRAINED = "drained"  # the scheduler gives it no new job, because somebody wants it
    INCIDENT = "incident"  # its last health check found something critical
    SLOW = "slow"  # it holds the other nodes up


@dataclass(frozen=True, kw_only=True)
class Marks:
    """The nodes to leave. A node may have one mark of each cause.

    Attributes:
        table: the reason in words of each node's mark.
        told: nodes of which the events say that the job stays on them.
        settled: the members with which nothing was left to do for these marks; None: that was not looked at.
    """

    table: HashTrieMap[tuple[str, DepartureCause], str] = field(default_factory=HashTrieMap)
    told: HashTrieSet[str] = field(default_factory=HashTrieSet)
    settled: Members | None = field(default=None, compare=False)

    def __contains__(self, node: str) -> bool:
        return any((node, cause) in self.table for cause in DepartureCause)

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset(node for node, _ in self.table)

    def of(self, node: str) -> tuple[DepartureCause, str] | None:
        """The first cause to leave a node, and the reason; None if there is none."""
        return next(((each, self.table[node, each]) for each in DepartureCause if (node, each) in self.table), None)

    def put(self, node: str, cause: DepartureCause, reason: str) -> Marks:
        if self.table.get((node, cause)) == reason:
            return self
        return replace(self, table=self.table.insert((node, cause), reason), settled=None)

    def remove(self, node: str, cause: DepartureCause) -> Marks:
        if (node, cause) not in self.table:
            return self
        marks = replace(self, table=self.table.discard((node, cause)), settled=None)
        return marks if node in marks else replace(marks, told=marks.told.discard(node))

    def only(self, cause: DepartureCause, reasons: Mapping[str, str]) -> Marks:
        """The marks, where exactly these nodes have one of this cause."""
        marks = self
        for node, each in self.table:
            if each is cause and node not in reasons:
                marks = marks.remove(node, cause)
        for node, reason in reasons.items():
            marks = marks.put(node, cause, reason)
        return marks

    def tell(self, nodes: Iterable[str]) -> Marks:
        """The marks, with nodes on which the job stays."""
        told = self.told
        for node in nodes:
            told = told.insert(node)
        return replace(self, told=told)
