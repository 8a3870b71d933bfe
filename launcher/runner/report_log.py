"""The messages of a runner about its attempt, for a supervisor that takes over."""

from __future__ import annotations

from typing import Any

_KEPT = frozenset(("started", "first_step", "agent_lost", "agent_ended", "ended"))


class ReportLog:
    """Keeps the messages of one attempt that are still relevant.

    Of the agent's, those of the restore and the last commits.
    """

    def __init__(self) -> None:
        self._messages: dict[tuple[str, ...], dict[str, Any]] = {}

    def clear(self) -> None:
        """Forgets all messages, at the start of a new attempt."""
        self._messages.clear()

    def note(self, message: dict[str, Any]) -> None:
        """Keeps a message, whether or not it could be sent."""
        op = message["op"]
        if op in _KEPT:
            self._messages[(op,)] = message
        elif op in ("fault", "problem"):
            self._messages[(op, message.get("reason") or message["what"])] = message
        elif op == "monitor" and (event := message["event"]).get("event") in ("restore_plan", "rejoined", "commit"):
            self._messages[(op, event["event"], str(event.get("tier")))] = message

    def messages(self) -> list[dict[str, Any]]:
        """The messages in the order in which they were first sent, with "ended" last."""
        return sorted(self._messages.values(), key=lambda message: message["op"] == "ended")
