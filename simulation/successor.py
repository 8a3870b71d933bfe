"""A successor knows what it must by the events: their replay is what the supervisor that rules goes by.

The only rule that is given the core's state. It compares the state with others, and looks at nothing in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from launcher.core.commands import Command, Record
from launcher.core.replay import History, apply, replay
from launcher.core.state import State
from simulation.schedule import Setup
from simulation.violation import Violation


class Replayed:
    """The events of one supervisor, folded.

    Args:
        events: the file as it begins.
        setup: the job's.
    """

    def __init__(self, events: Iterable[dict[str, Any]], setup: Setup) -> None:
        self._history = replay(events, History(has_checkpoint=setup.has_checkpoint))

    def check(self, state: State, todo: Iterable[Command]) -> None:
        """Takes the state after a decision, and the decision's events.

        Raises:
            Violation: a replay of the events gives something else.
        """
        history = self._history
        for command in todo:
            if type(command) is Record:
                history = apply(history, {"time": command.time_s, "event": command.event, **command.fields})
        if history is not state.history and history != state.history:
            raise Violation("replay gives the state", f"{history} differs from {state.history}")
        self._history = state.history  # equal: what does not change is the same object next time
