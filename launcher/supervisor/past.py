"""What a job's events tell the supervisor that goes on with it: after a requeue, or after a take-over."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.history.events import Event


class Past:
    """The job up to the moment at which this supervisor came. Pure.

    Args:
        events: all of the job, in order.
        take_over: whether another supervisor is followed, rather than the job started (again) by the scheduler.
    """

    def __init__(self, events: Sequence[Event], *, take_over: bool) -> None:
        self.events = events
        self._take_over = take_over

    @property
    def out(self) -> dict[str, str]:
        """Nodes that were put out of use, with the reason; for the job's own Python until the job starts again: it may
        have been mended."""
        return {node: event.get("reason") or "no reason given" for node, event in self._nodes_out().items()}

    @property
    def lost(self) -> set[str]:
        """Nodes of those that were only not reached, and may come back."""
        return {node for node, event in self._nodes_out().items() if event.get("lost")}

    @property
    def next_attempt(self) -> int:
        """The number of the next attempt."""
        return max((e["attempt"] + 1 for e in self.events if e["event"] == "attempt_start"), default=0)

    @property
    def step(self) -> int | None:
        """The newest step that was committed."""
        return max((e["step"] for e in self.events if e["event"] == "commit"), default=None)

    @property
    def runners(self) -> set[str]:
        """Nodes whose runners have come since the scheduler last started the job."""
        return {event["node"] for event in self._last_run() if event["event"] == "node_ready"}

    def running_attempt(self) -> Event | None:
        """The start of the attempt whose workers run while we take over."""
        run = self._last_run() if self._take_over else []
        starts = [event for event in run if event["event"] == "attempt_start"]
        since = [event["event"] for event in run if starts and event.get("attempt") == starts[-1]["attempt"]]
        runs = "workers_started" in since and "attempt_end" not in since
        return starts[-1] if runs and not set(starts[-1]["nodes"]) & set(self.out) else None

    def _nodes_out(self) -> dict[str, Event]:
        begun = len(self.events) - len(self._last_run()) if self._take_over else len(self.events)
        out: dict[str, Event] = {}
        for index, event in enumerate(self.events):
            if event["event"] == "node_out" and not (event.get("environment") and index < begun):
                out.setdefault(event["node"], event)
            elif event["event"] == "node_back":
                out.pop(event["node"], None)
        return out

    def _last_run(self) -> Sequence[Event]:
        starts = [index for index, event in enumerate(self.events) if event["event"] == "job_start"]
        return self.events[starts[-1] :] if starts else []
