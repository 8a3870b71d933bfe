"""One decision, as the rules of inputs look at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from launcher.core import commands as do
from launcher.core.state import AttemptPhase, BoosterPhase, State

AT_WORK = (AttemptPhase.STARTING, AttemptPhase.TRAINING, AttemptPhase.JUDGING)


class Decided:
    """One decision.

    Attributes:
        before, after: the states.
        todo: its commands.
        now_s: its time.
    """

    __slots__ = ("after", "before", "now_s", "todo")

    def __init__(self, before: State, after: State, todo: tuple[do.Command, ...], now_s: float) -> None:
        self.before, self.after, self.todo, self.now_s = before, after, todo, now_s

    def records(self, event: str, **fields: Any) -> bool:
        """Whether it records such an event."""
        return any(
            type(command) is do.Record
            and command.event == event
            and all(command.fields.get(name) == value for name, value in fields.items())
            for command in self.todo
        )

    def orders(self, order: do.Order, node: str, attempt: int) -> bool:
        """Whether it sends such an order to a node."""
        return any(
            type(command) is do.Send and command.order is order and command.attempt == attempt and node in command.nodes
            for command in self.todo
        )

    def dismisses(self, node: str) -> bool:
        return any(type(command) is do.Dismiss and command.node == node for command in self.todo)

    def asks_for(self, kind: type) -> bool:
        return any(type(command) is kind for command in self.todo)

    @property
    def is_same_attempt(self) -> bool:
        of, now = self.before.attempt, self.after.attempt
        return of is not None and now is not None and of.number == now.number

    def is_leaving(self, node: str) -> bool:
        """Whether the node's booster was leaving before."""
        member = self.before.members.table.get(node)
        return member is not None and any(
            each.allocation == member.allocation and each.phase is BoosterPhase.LEAVING for each in self.before.boosters
        )


Rule = Callable[[Decided, Any], Iterator[str]]
