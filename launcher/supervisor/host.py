"""What the parts of an attempt need of the supervisor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from launcher.supervisor.links import Notice
from launcher.supervisor.requests import Requests


class Host(Protocol):
    """The supervisor, as an attempt sees it."""

    requests: Requests

    async def next_notice(self, timeout_s: float | None) -> Notice | None:
        """The next notice, after the supervisor itself has taken note of it; None after `timeout_s`."""

    def post(self, notice: Notice) -> None:
        """Puts a notice into the inbox."""

    def record(self, event: str, **fields: Any) -> None:
        """Writes an event."""

    def see_step(self, step: int | None) -> int | None:
        """Takes note of a finished step; returns the newest of this attempt."""

    async def look_at_own_checkpoints(self) -> None:
        """Records whether the script has written a newer file of those that `progress` names."""

    def put_out(self, node: str, reason: str) -> None:
        """Excludes a node from the job for its life."""

    def take_back(self, node: str) -> None:
        """A node that was lost is the job's again."""

    def miss(self, absent: Mapping[str, str]) -> None:
        """Goes on without nodes whose runners have not come back after a take-over, with the reason."""
