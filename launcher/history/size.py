"""Why a job has its number of nodes, and what it waits for, from its events alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from launcher.history.resize import TrainingStop

Event = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Booster:
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


@dataclass(kw_only=True)
class Size:
    """Folds events into the state of the job's size. Other events are ignored.

    Attributes:
        boosters: the boosters that have not ended, by allocation.
        ended: the booster that has ended last, and the reason.
        wanted: the number of nodes that a user has requested.
        nodes: the nodes that train.
    """

    boosters: dict[str, Booster] = field(default_factory=dict)
    ended: tuple[str, str] | None = None
    wanted: int | None = None
    nodes: tuple[str, ...] = ()

    def add(self, event: Event) -> None:
        handler = getattr(self, f"_on_{event.get('event')}", None)
        if handler is not None:
            handler(event)

    def why(self) -> str | None:
        """The reason in one line; None for a job with a fixed size."""
        if not self.boosters and self.ended is None and self.wanted is None:
            return None
        parts = [] if self.wanted is None else [f"{self.wanted} requested by a user"]
        parts += [f"{self._name(allocation)} {standing}" for allocation, standing in self.standing().items()]
        if self.ended is not None:
            allocation, reason = self.ended
            parts.append(f"booster {allocation} has ended ({reason}), another is requested later")
        count = len(self.nodes)
        return f"{count} node{'s train' if count != 1 else ' trains'}; " + "; ".join(parts)

    def standing(self) -> dict[str, str]:
        """What each booster does or waits for, by allocation."""
        return {allocation: self._standing(booster) for allocation, booster in self.boosters.items()}

    def _name(self, allocation: str) -> str:
        size = self.boosters[allocation].size
        return f"booster {allocation} ({size} node{'s' if size != 1 else ''})"

    def _standing(self, booster: Booster) -> str:
        if booster.leaves:
            return f"leaves: {booster.leaves}"
        if not booster.nodes:
            return f"waits in the queue{f': {booster.waits}' if booster.waits else ''}"
        if booster.out:
            return f"has lost {', '.join(sorted(booster.out))}"
        if any(node in self.nodes for node in booster.nodes):
            return "trains"
        if len(booster.warm) < booster.size:
            return "has its nodes, and starts on them"
        return "is ready and joins at the next resize"

    def _change(self, event: Event, **changes: Any) -> None:
        allocation = event.get("allocation")
        if allocation in self.boosters:
            self.boosters[allocation] = replace(self.boosters[allocation], **changes)

    def _on_job_start(self, event: Event) -> None:
        self.boosters.clear()
        self.ended = None

    def _on_scale_requested(self, event: Event) -> None:
        self.wanted = event.get("nodes")

    def _on_booster_asked(self, event: Event) -> None:
        self.boosters[event["allocation"]] = Booster(size=event.get("nodes") or 1)
        self.ended = None

    def _on_booster_waits(self, event: Event) -> None:
        self._change(event, waits=event.get("reason") or "")

    def _on_node_ready(self, event: Event) -> None:
        booster = self.boosters.get(event.get("allocation") or "")
        if booster is not None:
            node = {event["node"]}
            self._change(
                event, nodes=booster.nodes | node, warm=booster.warm | node if event.get("warm") else booster.warm
            )

    def _on_node_out(self, event: Event) -> None:
        for allocation, booster in self.boosters.items():
            if event["node"] in booster.nodes:
                self.boosters[allocation] = replace(booster, out=booster.out | {event["node"]})

    def _on_node_back(self, event: Event) -> None:
        for allocation, booster in self.boosters.items():
            self.boosters[allocation] = replace(booster, out=booster.out - {event["node"]})

    def _on_node_leaving(self, event: Event) -> None:
        self._change(event, leaves=event.get("reason") or "preempted")

    _on_booster_leaving = _on_node_leaving

    def _on_booster_end(self, event: Event) -> None:
        booster = self.boosters.pop(event["allocation"], None)
        why = booster.leaves if booster is not None and booster.leaves else event.get("reason") or "it has ended"
        self.ended = None if why == "scaled down" else (event["allocation"], why)

    def _on_attempt_start(self, event: Event) -> None:
        self.nodes = tuple(event.get("nodes") or ())


@dataclass(kw_only=True)
class LostTime:
    """Seconds without training, by cause: the start, resizes, requeues, and each kind of fault.

    Attributes:
        kind: the cause of the present time without training.
        since_s: the time at which it began.
        is_training: whether the job trains.
        lost: the seconds by cause.
        stop_of_attempt: finds the time at which the attempt stopped training.
    """

    kind: str = "start"
    since_s: float | None = None
    is_training: bool = False
    lost: dict[str, float] = field(default_factory=dict)
    stop_of_attempt: TrainingStop = field(default_factory=TrainingStop)

    def add(self, event: Event) -> None:
        name, time_s = event.get("event"), event["time"]
        if name == "job_start":
            if self.since_s is None:
                self.since_s = time_s
            else:
                self._stop("requeue", time_s)
        elif name == "fault":
            self._stop(str(event.get("kind")), time_s - (event.get("detect") or 0.0))
        elif name == "attempt_end" and event.get("outcome") != "fault":
            kind = "resize" if event.get("outcome") == "resized" else str(event.get("outcome"))
            self._stop(kind, self.stop_of_attempt.at_s(event))
        elif name == "first_step" and self.since_s is not None:
            self.lost[self.kind] = round(self.lost.get(self.kind, 0.0) + max(0.0, time_s - self.since_s), 3)
            self.is_training = True
        self.stop_of_attempt.add(event)

    def _stop(self, kind: str, time_s: float) -> None:
        """Training stops. All time until it continues counts for this cause."""
        if self.is_training:
            self.is_training, self.kind, self.since_s = False, kind, time_s

    def seconds(self) -> Mapping[str, float]:
        return dict(self.lost)
