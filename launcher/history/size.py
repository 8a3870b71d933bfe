"""Why a job has its number of nodes, and what it waits for, from its events alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from launcher.history.resize import TrainingStop

Event = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Booster:
    """The state of a booster, from its events.

    Attributes:
        waits: why it waits in the queue.
        leaves: why it leaves.
        nodes: the nodes whose runners have connected.
        warm: those of them that can start workers at once.
        out: those of them that are out of use.
    """

    size: int
    waits: str = ""
    leaves: str = ""
    nodes: frozenset[str] = frozenset()
    warm: frozenset[str] = frozenset()
    out: frozenset[str] = frozenset()


class Size:
    """Folds events into the state of the job's size. Other events are ignored."""

    def __init__(self) -> None:
        self._boosters: dict[str, _Booster] = {}
        self._ended: tuple[str, str] | None = None  # the booster that has ended last, and the reason
        self._wanted: int | None = None
        self._nodes: tuple[str, ...] = ()

    def add(self, event: Event) -> None:
        handler = getattr(self, f"_on_{event.get('event')}", None)
        if handler is not None:
            handler(event)

    def why(self) -> str | None:
        """The reason in one line; None for a job with a fixed size."""
        if not self._boosters and self._ended is None and self._wanted is None:
            return None
        parts = [] if self._wanted is None else [f"{self._wanted} requested by a user"]
        parts += [self._state(allocation, booster) for allocation, booster in self._boosters.items()]
        if self._ended is not None:
            allocation, reason = self._ended
            parts.append(f"booster {allocation} has ended ({reason}), another is requested later")
        count = len(self._nodes)
        return f"{count} node{'s train' if count != 1 else ' trains'}; " + "; ".join(parts)

    def _state(self, allocation: str, booster: _Booster) -> str:
        name = f"booster {allocation} ({booster.size} node{'s' if booster.size != 1 else ''})"
        if booster.leaves:
            return f"{name} leaves: {booster.leaves}"
        if not booster.nodes:
            return f"{name} waits in the queue{f': {booster.waits}' if booster.waits else ''}"
        if booster.out:
            return f"{name} has lost {', '.join(sorted(booster.out))}"
        if any(node in self._nodes for node in booster.nodes):
            return f"{name} trains"
        if len(booster.warm) < booster.size:
            return f"{name} has its nodes, and starts on them"
        return f"{name} is ready and joins at the next resize"

    def _change(self, event: Event, **changes: Any) -> None:
        allocation = event.get("allocation")
        if allocation in self._boosters:
            self._boosters[allocation] = replace(self._boosters[allocation], **changes)

    def _on_job_start(self, event: Event) -> None:
        self._boosters.clear()
        self._ended = None

    def _on_scale_requested(self, event: Event) -> None:
        self._wanted = event.get("nodes")

    def _on_booster_asked(self, event: Event) -> None:
        self._boosters[event["allocation"]] = _Booster(size=event.get("nodes") or 1)
        self._ended = None

    def _on_booster_waits(self, event: Event) -> None:
        self._change(event, waits=event.get("reason") or "")

    def _on_node_ready(self, event: Event) -> None:
        booster = self._boosters.get(event.get("allocation") or "")
        if booster is not None:
            node = {event["node"]}
            self._change(
                event, nodes=booster.nodes | node, warm=booster.warm | node if event.get("warm") else booster.warm
            )

    def _on_node_out(self, event: Event) -> None:
        for allocation, booster in self._boosters.items():
            if event["node"] in booster.nodes:
                self._boosters[allocation] = replace(booster, out=booster.out | {event["node"]})

    def _on_node_back(self, event: Event) -> None:
        for allocation, booster in self._boosters.items():
            self._boosters[allocation] = replace(booster, out=booster.out - {event["node"]})

    def _on_node_leaving(self, event: Event) -> None:
        self._change(event, leaves=event.get("reason") or "preempted")

    _on_booster_leaving = _on_node_leaving

    def _on_booster_end(self, event: Event) -> None:
        booster = self._boosters.pop(event["allocation"], None)
        why = booster.leaves if booster is not None and booster.leaves else event.get("reason") or "it has ended"
        self._ended = None if why == "scaled down" else (event["allocation"], why)

    def _on_attempt_start(self, event: Event) -> None:
        self._nodes = tuple(event.get("nodes") or ())


class LostTime:
    """Seconds without training, by cause: the start, resizes, requeues, and each kind of fault."""

    def __init__(self) -> None:
        self._kind = "start"
        self._since_s: float | None = None
        self._is_training = False
        self._lost: dict[str, float] = {}
        self._stop_of_attempt = TrainingStop()

    def add(self, event: Event) -> None:
        name, time_s = event.get("event"), event["time"]
        if name == "job_start":
            if self._since_s is None:
                self._since_s = time_s
            else:
                self._stop("requeue", time_s)
        elif name == "fault":
            self._stop(str(event.get("kind")), time_s - (event.get("detect") or 0.0))
        elif name == "attempt_end" and event.get("outcome") != "fault":
            kind = "resize" if event.get("outcome") == "resized" else str(event.get("outcome"))
            self._stop(kind, self._stop_of_attempt.at_s(event))
        elif name == "first_step" and self._since_s is not None:
            self._lost[self._kind] = round(self._lost.get(self._kind, 0.0) + max(0.0, time_s - self._since_s), 3)
            self._is_training = True
        self._stop_of_attempt.add(event)

    def _stop(self, kind: str, time_s: float) -> None:
        """Training stops. All time until it continues counts for this cause."""
        if self._is_training:
            self._is_training, self._kind, self._since_s = False, kind, time_s

    def seconds(self) -> Mapping[str, float]:
        return dict(self._lost)
