"""Why a job has its number of nodes, and what it waits for, from its events alone."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from launcher.core.boosters import REFUSED
from launcher.core.outcomes import AttemptOutcome
from launcher.history.resize import TrainingStop

Event = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class BoosterNow:
    """A booster's state.

    Attributes:
        id: its Slurm job, or its number if Slurm has not answered yet.
        size: its number of nodes.
        state: "requested" (Slurm has not answered), "queued", "starting" (it has its nodes), "ready" (it joins at the
            next resize), "training", "lost" or "leaving".
        reason: why it waits or leaves, or which nodes it has lost; "" for none.
        nodes: the nodes whose runners have connected.
        since: time since which it has this state, in seconds since the epoch.
    """

    id: str
    size: int
    state: str = "queued"
    reason: str = ""
    nodes: tuple[str, ...] = ()
    since: float = 0.0

    def in_slurm(self, state: str, reason: str) -> BoosterNow:
        """The booster, if it is in the queue according to its events, with what Slurm says now."""
        if self.state != "queued":
            return self
        if state == "PENDING":
            return replace(self, reason=reason)
        if state in ("RUNNING", "CONFIGURING"):
            return replace(self, state="starting", reason="")
        return replace(self, reason=state.lower())

    def standing(self) -> str:
        """What the booster does or waits for."""
        return f"{_WORDS[self.state]}{f': {self.reason}' if self.reason else ''}"

    def text(self) -> str:
        return f"booster {self.id} ({_nodes(self.size)}) {self.standing()}"


@dataclass(frozen=True, kw_only=True)
class BoostersNow:
    """Why a job has its number of nodes, and what it waits for.

    Attributes:
        nodes: number of nodes of the newest attempt.
        requested: the number that a user has requested; None for that of the job file.
        boosters: the boosters in the queue or running, oldest first.
        ended: the booster that has ended last, if no other has been submitted for it, and why it ended.
        refused: why no booster could be submitted; "" if that was not so.
        again: when a booster is submitted again, in seconds since the epoch; None if that is not known.
    """

    nodes: int = 0
    requested: int | None = None
    boosters: tuple[BoosterNow, ...] = ()
    ended: tuple[str, str] | None = None
    refused: str = ""
    again: float | None = None

    def text(self) -> str:
        """The same in one line."""
        parts = [f"{_nodes(self.nodes)} train{'s' if self.nodes == 1 else ''}" if self.nodes else "no attempt yet"]
        parts += [] if self.requested is None else [f"{self.requested} requested by a user"]
        parts += [booster.text() for booster in self.boosters]
        if self.ended is not None:
            allocation, reason = self.ended
            parts.append(f"booster {allocation} has ended ({reason})")
        if self.refused:
            parts.append(f"a booster was refused: {self.refused}")
        if self.again is not None and (self.ended is not None or self.refused):
            parts.append(f"the next is requested at {time.strftime('%H:%M:%S', time.localtime(self.again))}")
        return "; ".join(parts)


_WORDS = {
    "requested": "is being submitted",
    "queued": "waits in the queue",
    "starting": "has its nodes, and starts on them",
    "ready": "is ready and joins at the next resize",
    "training": "trains",
    "lost": "has lost nodes",
    "leaving": "leaves",
}


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count != 1 else ''}"


@dataclass(frozen=True, kw_only=True)
class _Booster:
    """A booster, from its events.

    Attributes:
        now: its state at the last event about it.
        warm: those of its nodes that can start workers at once.
        out: those that are out of use.
        is_submitted: whether the scheduler has accepted it.
        is_replaced: whether another booster was requested since it began to leave.
    """

    now: BoosterNow
    warm: frozenset[str] = frozenset()
    out: frozenset[str] = frozenset()
    is_submitted: bool = False
    is_replaced: bool = False

    @property
    def is_refused(self) -> bool:
        """Whether it is given up and was never in the queue."""
        return self.now.state == "leaving" and not self.is_submitted


@dataclass(kw_only=True)
class Size:
    """Folds events into the state of the job's size. Other events are ignored.

    Attributes:
        boosters: the boosters that have not ended, by allocation.
        known: the state, without its nodes and boosters.
        nodes: the nodes that train.
    """

    boosters: dict[str, _Booster] = field(default_factory=dict)
    known: BoostersNow = field(default_factory=BoostersNow)
    nodes: tuple[str, ...] = ()

    def add(self, event: Event) -> None:
        handler = getattr(self, f"_on_{event.get('event')}", None)
        if handler is not None:
            handler(event)

    def now(self) -> BoostersNow | None:
        """The state; None for a job with a fixed size."""
        now = self.known
        if not self.boosters and now.ended is None and now.requested is None and not now.refused:
            return None
        boosters = tuple(self._in_attempt(booster) for booster in self.boosters.values() if not booster.is_refused)
        return replace(now, nodes=len(self.nodes), boosters=boosters)

    def _in_attempt(self, booster: _Booster) -> BoosterNow:
        now = booster.now
        if now.state in ("requested", "queued", "leaving"):
            return now
        if booster.out:
            return replace(now, state="lost", reason=", ".join(sorted(booster.out)))
        if any(node in self.nodes for node in now.nodes):
            return replace(now, state="training")
        return replace(now, state="ready" if len(booster.warm) >= now.size else "starting")

    def _change(self, event: Event, allocation: str, **changes: Any) -> None:
        booster = self.boosters.get(allocation)
        if booster is not None:
            since = booster.now.since if changes.get("state") in (None, booster.now.state) else event["time"]
            self.boosters[allocation] = replace(booster, now=replace(booster.now, since=since, **changes))

    def _on_job_start(self, event: Event) -> None:
        self.boosters.clear()
        self.known = BoostersNow(requested=self.known.requested)

    def _on_scale_requested(self, event: Event) -> None:
        self.known = replace(self.known, requested=event.get("nodes"))

    def _on_problem(self, event: Event) -> None:
        if event.get("what") == REFUSED:
            self.known = replace(self.known, refused=event.get("detail") or "no reason given", again=event.get("again"))

    def _on_booster_asked(self, event: Event) -> None:
        for allocation, booster in self.boosters.items():
            self.boosters[allocation] = replace(booster, is_replaced=booster.now.state == "leaving")
        allocation = event["allocation"]
        asked = BoosterNow(id=allocation, size=event.get("nodes") or 1, state="requested", since=event["time"])
        self.boosters[allocation] = _Booster(now=asked)
        self.known = replace(self.known, ended=None, again=None)

    def _on_booster_submitted(self, event: Event) -> None:
        booster = self.boosters.get(event["allocation"])
        if booster is not None:
            state = "queued" if booster.now.state == "requested" else booster.now.state
            self.boosters[event["allocation"]] = replace(booster, is_submitted=True)
            self._change(event, event["allocation"], id=event["job_id"], state=state)
        self.known = replace(self.known, refused="")

    def _on_booster_waits(self, event: Event) -> None:
        self._change(event, event["allocation"], reason=event.get("reason") or "")

    def _on_node_ready(self, event: Event) -> None:
        allocation, node = event.get("allocation") or "", event["node"]
        booster = self.boosters.get(allocation)
        if booster is not None:
            state = booster.now.state if booster.now.state == "leaving" else "starting"
            nodes = tuple(dict.fromkeys((*booster.now.nodes, node)))
            self._change(event, allocation, state=state, nodes=nodes, reason="")
            warm = booster.warm | {node} if event.get("warm") else booster.warm
            self.boosters[allocation] = replace(self.boosters[allocation], warm=warm)

    def _on_node_out(self, event: Event) -> None:
        for allocation, booster in self.boosters.items():
            if event["node"] in booster.now.nodes:
                self.boosters[allocation] = replace(booster, out=booster.out | {event["node"]})

    def _on_node_back(self, event: Event) -> None:
        for allocation, booster in self.boosters.items():
            self.boosters[allocation] = replace(booster, out=booster.out - {event["node"]})

    def _on_node_leaving(self, event: Event) -> None:
        if event.get("allocation") is not None:  # else a spare replaces it
            self._on_booster_leaving(event)

    def _on_booster_leaving(self, event: Event) -> None:
        self._change(event, event["allocation"], state="leaving", reason=event.get("reason") or "preempted")

    def _on_booster_end(self, event: Event) -> None:
        booster = self.boosters.pop(event["allocation"], None)
        is_leaving = booster is not None and booster.now.state == "leaving"
        why = booster.now.reason if booster is not None and is_leaving else event.get("reason") or "it has ended"
        if why == "scaled down" or (booster is not None and booster.is_replaced):
            return
        if booster is not None and booster.is_refused:
            self.known = replace(self.known, again=event.get("again"))
        else:
            name = event.get("job_id") or event["allocation"]
            self.known = replace(self.known, ended=(name, why), again=event.get("again"))

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
        elif name == "fault" and event.get("attempt") is not None:  # else nobody stops for it
            self._stop(str(event.get("kind")), time_s - (event.get("detect") or 0.0))
        elif name == "attempt_end" and event.get("outcome") != AttemptOutcome.FAULT:
            kind = "resize" if event.get("outcome") == AttemptOutcome.RESIZED else str(event.get("outcome"))
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
