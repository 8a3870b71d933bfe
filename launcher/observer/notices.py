"""Decides which events are told to people, and in which words. Pure: events and times come in, notices go out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from launcher.core.faults import FaultKind
from launcher.core.outcomes import AttemptOutcome
from launcher.history.fields import describe
from launcher.history.view import duration
from launcher.job.notify import Notify

Event = Mapping[str, Any]

_STEPS = ("first_step", "commit", "own_checkpoint")


@dataclass(frozen=True, kw_only=True)
class Notice:
    """What is told.

    Attributes:
        kind: the value of `notify.on`.
        text: what has happened, on one line.
        time_s: when, in seconds since the epoch.
    """

    kind: str
    job_id: str
    name: str
    text: str
    time_s: float
    attempt: int | None = None
    step: int | None = None
    node: str | None = None

    def to_mapping(self) -> dict[str, Any]:
        """The notice as JSON data."""
        return asdict(self)

    @property
    def line(self) -> str:
        """The notice on one line, with the job."""
        return f"{self.name} ({self.job_id}): {self.text}"


class Notices:
    """Makes notices. Call of_event() for each event, and of_time() now and then.

    Args:
        notify: what is told.
        name, job_id: the job.
        has_spares: whether the job was submitted with spares.
        sees_steps: whether the job reports steps. If not, it is never stalled.
    """

    def __init__(self, notify: Notify, name: str, job_id: str, *, has_spares: bool, sees_steps: bool = True) -> None:
        self._notify = notify
        self._name = name
        self._job_id = job_id
        self._spares = frozenset(("?",)) if has_spares else frozenset()  # their names come with the first attempt
        self._sees_steps = sees_steps
        self._progress_s: float | None = None  # the last start or new step
        self._step = -1
        self._is_stalled = False

    def of_event(self, event: Event) -> list[Notice]:
        """The notices of an event: none or a few."""
        found = [self._notice(kind, text, event) for kind, text in self._told(event)]
        self._follow_progress(event)
        return [notice for notice in found if notice.kind in self._notify.on]

    def of_time(self, now_s: float) -> list[Notice]:
        """A notice if the job has become stalled. It is given once, until there is a new step."""
        if (
            self._progress_s is None
            or not self._sees_steps
            or self._is_stalled
            or now_s - self._progress_s < self._notify.stalled_s
        ):
            return []
        self._is_stalled = True
        if "stalled" not in self._notify.on:
            return []
        text = f"no new step for {duration(now_s - self._progress_s)}"
        step = max(self._step, 0)
        return [Notice(kind="stalled", job_id=self._job_id, name=self._name, text=text, time_s=now_s, step=step)]

    def _told(self, event: Event) -> list[tuple[str, str]]:
        match event["event"]:
            case "fault" if event.get("kind") != FaultKind.PREEMPTED:
                return [("fault", describe(event))]
            case "job_end":
                return [("end", describe(event))]
            case "attempt_end" if event.get("outcome") == AttemptOutcome.STOPPED:
                return [("requeue", f"{describe(event)}; it continues after a requeue")]
            case "job_start" if event.get("restart_count"):
                return [("requeue", f"started again after requeue {event['restart_count']}")]
            case "attempt_start":
                return self._spares_are(frozenset(event.get("spares") or ()))
            case "node_out":
                return self._spares_are(self._spares - {event["node"]})
        return []

    def _spares_are(self, spares: frozenset[str]) -> list[tuple[str, str]]:
        before, self._spares = self._spares, spares
        if spares or not before:
            return []
        return [("no_spare", "no spare is left: the next lost node shrinks or requeues the job")]

    def _follow_progress(self, event: Event) -> None:
        name, step = event["event"], event.get("step")
        if name == "job_start":
            self._progress_s, self._is_stalled = event["time"], False
        elif name in ("job_end", "attempt_end") and event.get("outcome") != AttemptOutcome.FAULT:
            self._progress_s = None if name == "job_end" else event["time"]
        elif name in _STEPS and (step is None or step > self._step):
            self._progress_s, self._is_stalled = event["time"], False
            self._step = self._step if step is None else step

    def _notice(self, kind: str, text: str, event: Event) -> Notice:
        return Notice(
            kind=kind, job_id=self._job_id, name=self._name, text=text, time_s=event["time"],
            attempt=event.get("attempt"), step=event.get("step"), node=event.get("node"),
        )  # fmt: skip
