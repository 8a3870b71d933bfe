"""The faults of a job, each with what it was, what Holdfast did, what it cost, and what the user should do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from launcher.diagnosis import Diagnosis, Domain, FaultClass

Event = Mapping[str, Any]

_MOST_FURTHER = 8
_NO_WORD = Diagnosis(
    fault_class=FaultClass.UNKNOWN,
    domain=Domain.UNKNOWN,
    advice="read the ends of the batch job's log and of log/supervisor.log; submitted again, the job goes on from its "
    "newest step",
)
_RUNGS = {
    "workers": "started the workers again on the same nodes",
    "spare": "started the workers again, {joined} among the nodes",
    "requeue": "requeued the job",
    "shrink": "went on with fewer nodes",
    "grow": "went on with more nodes",
}


@dataclass(frozen=True, kw_only=True)
class FaultStory:
    """One fault that ended an attempt, or kept one from beginning. Times are in seconds since the epoch.

    Attributes:
        time_s, detect_s: when it was noticed, and how long after it had happened.
        attempt: the attempt that it ended; None if none could begin.
        kind, fault_class, domain: what it is, and whose; see launcher.core.faults and launcher.diagnosis.rules.
        reason: the cause in words.
        proof: the line that shows it; "" without one.
        advice: the next step.
        node, rank: those at fault, if there are single ones.
        alike, consequences: number of other ranks that failed in the same way, and of those whose failure follows.
        further: other faults of the same attempt, in words.
        step: the newest step that was finished before it.
        rung: how the next attempt started; "" before it has.
        joined: nodes of that attempt that did not train before.
        left: nodes that are out of use since.
        step_resumed, restored_from: the step from which training continued, and its tier.
        cost_s: from the fault to the next step, the next fault or the job's end; None while it goes on.
        outcome: the job's outcome, if it ended with this fault.
    """

    time_s: float
    detect_s: float = 0.0
    attempt: int | None
    kind: str
    fault_class: str = "unknown"
    domain: str = "unknown"
    reason: str = ""
    proof: str = ""
    advice: str = ""
    node: str | None = None
    rank: int | None = None
    alike: int = 0
    consequences: int = 0
    further: tuple[str, ...] = ()
    step: int = 0
    rung: str = ""
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    step_resumed: int | None = None
    restored_from: str | None = None
    cost_s: float | None = None
    outcome: str = ""

    @property
    def steps_again(self) -> int | None:
        """Number of finished steps that were lost; None before training continued."""
        return None if self.step_resumed is None else max(0, self.step - self.step_resumed)

    @property
    def name(self) -> str:
        """The class; the kind if no rule knows the fault, or an older release recorded it."""
        return self.kind if self.fault_class == "unknown" else self.fault_class

    @property
    def done(self) -> str:
        """What Holdfast did, in words."""
        left = f"{', '.join(self.left)} left the job; " if self.left else ""
        ended = f"the job ended as {self.outcome}" if self.outcome else ""
        if not self.rung:
            return f"{left}{ended or 'no attempt has begun since'}"
        words = _RUNGS.get(self.rung, f"went on ({self.rung})").format(joined=", ".join(self.joined) or "a spare")
        from_ = f" from {self.restored_from}" if self.step_resumed and self.restored_from else ""
        resumed = "" if self.step_resumed is None else f", at step {self.step_resumed}{from_}"
        return f"{left}{words}{resumed}{f'; {ended}' if ended else ''}"

    def to_mapping(self) -> dict[str, Any]:
        """The story as JSON data, with the names of the event's fields."""
        data = asdict(self) | {"steps_again": self.steps_again, "done": self.done}
        return {{"fault_class": "class"}.get(name, name): value for name, value in data.items()}


def lost_story(reason: str, found: Diagnosis | None, *, time_s: float, attempt: int | None, step: int) -> FaultStory:
    """The end of a job that has left no outcome: its supervisor was ended before it could write one.

    Args:
        reason: how that is known.
        found: the cause, by what Slurm says; None if it is not known.
        time_s: time of the last event, in seconds since the epoch.
        attempt, step: the newest ones.
    """
    found = found or _NO_WORD
    return FaultStory(
        time_s=time_s, attempt=attempt, kind="lost", fault_class=found.fault_class, domain=found.domain,
        reason=first_line(reason), proof=found.proof, advice=found.advice, step=step, outcome="lost",
    )  # fmt: skip


@dataclass(kw_only=True)
class StoryFold:
    """Folds events into stories, oldest first. A story goes on until training continues, or the next one begins.

    Attributes:
        told: the stories.
        nodes: the nodes of the newest attempt.
        is_open: whether the last story goes on.
        is_fresh: whether no attempt has begun since its fault, so that further ones belong to it.
    """

    told: list[FaultStory] = field(default_factory=list)
    nodes: tuple[str, ...] = ()
    is_open: bool = False
    is_fresh: bool = False

    def add(self, event: Event) -> None:
        handler = getattr(self, f"_on_{event.get('event')}", None)
        if handler is not None:
            handler(event)

    def _on_fault(self, event: Event) -> None:
        if event.get("attempt") is None and event.get("node") is not None:  # of a node that does not train yet
            return
        if self.is_fresh:
            on = f" on {event['node']}" if event.get("node") else ""
            further = (*self.told[-1].further, f"{event.get('kind')}{on}: {first_line(event.get('reason'))}")
            self._change(further=further[-_MOST_FURTHER:])
            return
        self._close(event["time"])
        self.told.append(
            FaultStory(
                time_s=event["time"], detect_s=event.get("detect") or 0.0, attempt=event.get("attempt"),
                kind=str(event.get("kind")),
                fault_class=event.get("class") or "unknown", domain=event.get("domain") or "unknown",
                reason=first_line(event.get("reason")), proof=event.get("proof") or "",
                advice=str(event.get("advice") or "").replace("attempt-N", f"attempt-{event.get('attempt')}"),
                node=event.get("node"), rank=event.get("rank"),
                alike=event.get("alike") or 0, further=tuple(event.get("others") or ()),
                consequences=event.get("consequences") or 0, step=event.get("step") or 0,
            )
        )  # fmt: skip
        self.is_open = self.is_fresh = True

    def _on_node_out(self, event: Event) -> None:
        if self.is_open:
            self._change(left=(*self.told[-1].left, str(event.get("node"))))

    def _on_attempt_end(self, event: Event) -> None:
        if self.is_open:  # only this event has the last step for certain
            self._change(step=max(self.told[-1].step, event.get("step") or 0))

    def _on_attempt_start(self, event: Event) -> None:
        before, self.nodes = self.nodes, tuple(event.get("nodes") or ())
        self.is_fresh = False
        if self.is_open:
            self._change(rung=str(event.get("rung")), joined=tuple(node for node in self.nodes if node not in before))

    def _on_restore(self, event: Event) -> None:
        if self.is_open:
            self._change(step_resumed=event.get("step") or 0, restored_from=event.get("tier"))

    def _on_first_step(self, event: Event) -> None:
        self._close(event["time"])

    def _on_job_end(self, event: Event) -> None:
        if self.is_open:
            self._change(outcome=str(event.get("outcome")))
        self._close(event["time"])

    def _close(self, now_s: float) -> None:
        if self.is_open:
            story = self.told[-1]
            self._change(cost_s=max(0.0, now_s - story.time_s + story.detect_s))
        self.is_open = self.is_fresh = False

    def _change(self, **changes: Any) -> None:
        self.told[-1] = replace(self.told[-1], **changes)


def stories(events: Iterable[Event]) -> list[FaultStory]:
    """The faults of a job, oldest first."""
    fold = StoryFold()
    for event in events:
        fold.add(event)
    return fold.told


def first_line(text: Any) -> str:
    return str(text or "").strip().partition("\n")[0]
