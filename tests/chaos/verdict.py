"""What a round of a campaign shows: whether the job ended as it must, and what each fault cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OK, DEGRADED, WRONG = "ok", "degraded", "wrong"
MEMORY_DAMAGED, READ_ONLY = "memory damaged", "job folder read-only"  # names of faults in the catalogue

Event = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Injected:
    """One fault of a round.

    Attributes:
        name, kind, nodes, ends: of its entry in the catalogue.
        time, until: when its injection began and ended (epoch, s).
        undone: when it was undone; None where nothing undoes it.
        notes: where, and how.
    """

    name: str
    kind: str
    nodes: int
    ends: str | None
    time: float
    until: float = 0.0
    undone: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Round:
    """What is known of a round at its end.

    Attributes:
        injected: its faults, in order.
        events: the job's.
        tolerance: the number of nodes whose memory the redundancy scheme covers.
        wrong_digests: steps at which the weights differ from an undisturbed run's.
        leftovers: processes and memory directories of the job that are still on a node.
        stood_still: what was waited for in vain; None where the job ended in time.
        log_refused: whether Slurm failed the job because it could not open its log, before anything of the job ran.
    """

    injected: Sequence[Injected]
    events: Sequence[Event]
    tolerance: int
    wrong_digests: Sequence[int] = ()
    leftovers: Sequence[str] = ()
    stood_still: str | None = None
    log_refused: bool = False

    @property
    def outcome(self) -> str | None:
        """The job's named outcome."""
        return next((event["outcome"] for event in reversed(self.events) if event["event"] == "job_end"), None)

    @property
    def verdict(self) -> tuple[str, str]:
        """ok, degraded or wrong; with the reason."""
        must = next((fault.ends for fault in self.injected if fault.ends), "done")
        if self.wrong_digests:
            return WRONG, f"weights differ at steps {list(self.wrong_digests)[:5]}"
        if self.outcome is None and self.log_refused and any(fault.name == READ_ONLY for fault in self.injected):
            return DEGRADED, "Slurm could not open the job's log as it started it again, and failed it"
        if self.outcome is None:
            return WRONG, f"no outcome: {self.stood_still or 'no job_end event'}"
        if self.outcome != must:
            return WRONG, f"ended as {self.outcome}, not {must}"
        lost = lost_steps(self.events, self.injected)
        beyond = [loss for loss in lost if loss.nodes <= self.tolerance]
        if beyond:
            return WRONG, f"committed steps lost: {beyond[0]}"
        if self.leftovers:
            return WRONG, f"left over: {'; '.join(self.leftovers)[:300]}"
        if lost:
            return DEGRADED, f"more lost than the scheme covers: {lost[0]}"
        return OK, ""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A restore to an older step than the newest that had been committed in memory."""

    attempt: int
    committed: int
    restored: int
    nodes: int

    def __str__(self) -> str:
        return (
            f"attempt {self.attempt} restored {self.restored}, {self.committed} was committed, {self.nodes} nodes lost"
        )


def lost_steps(events: Sequence[Event], injected: Sequence[Injected]) -> list[Loss]:
    """Restores to an older step than the newest committed in memory, with the number of memories lost since.

    A save that was under way while memory was damaged does not count: its copies and parity may hold the damage.

    A memory counts as lost where its node does not train in the next attempt, or where a fault since the commit may
    have taken it. A fault counts for each node it may take.
    """
    found = []
    committed: Event | None = None
    members: dict[int, frozenset[str]] = {}
    for event in events:
        if event["event"] == "attempt_start":
            members[event["attempt"]] = frozenset(event["nodes"])
        elif event["event"] == "commit" and event.get("tier") == "memory":
            if (committed is None or event["step"] >= committed["step"]) and not _is_damaged(event, injected):
                committed = event
        elif event["event"] == "restore" and committed is not None and (event["step"] or 0) < committed["step"]:
            gone = members[committed["attempt"]] - members[event["attempt"]]
            taken = sum(f.nodes for f in injected if committed["time"] - 1 <= f.time <= event["time"])
            loss = Loss(
                attempt=event["attempt"],
                committed=committed["step"],
                restored=event["step"] or 0,
                nodes=max(len(gone), taken),
            )
            found.append(loss)
            committed = None  # training goes on from the older step: what is committed from here on counts
    return found


def away_at_cancel(events: Sequence[Event]) -> set[str]:
    """The nodes that were out of a job when Slurm cancelled it. No step can start there any more to free its memory.

    Without hooks it stays until the user's next job on the node.
    """
    away: set[str] = set()
    for event in events:
        if event["event"] == "node_out":
            away.add(event["node"])
        elif event["event"] == "node_ready":
            away.discard(event["node"])
        elif event["event"] == "job_end" and event["outcome"] == "cancelled":
            return away
    return set()


def _is_damaged(commit: Event, injected: Sequence[Injected]) -> bool:
    begun = commit["time"] - (commit.get("seconds") or 0.0)
    return any(f.name == MEMORY_DAMAGED and f.time <= commit["time"] and begun <= f.until for f in injected)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one fault cost: seconds until the next step, and steps trained again; None where nothing was interrupted."""

    fault: Injected
    seconds: float | None
    steps: int | None


def costs(events: Sequence[Event], injected: Sequence[Injected]) -> list[Cost]:
    """The cost of each fault, counted until the next one is injected: overlapping faults share the later one's cost."""
    found = []
    ends = [*(fault.time for fault in injected[1:]), float("inf")][: len(injected)]
    for fault, end in zip(injected, ends, strict=True):
        span = [event for event in events if fault.time <= event["time"]]
        start = next((e for e in span if e["event"] == "attempt_start" and e["time"] < end), None)
        if start is None:
            found.append(Cost(fault=fault, seconds=None, steps=None))
            continue
        after = span[span.index(start) :]
        first = next((e for e in after if e["event"] == "first_step"), None)
        restore = next((e for e in after if e["event"] == "restore"), None)
        before = [e["step"] for e in events if e["time"] <= start["time"] and e.get("step") is not None]
        steps = max(before, default=0) - (restore["step"] or 0) if restore else None
        seconds = None if first is None else first["time"] - fault.time
        found.append(Cost(fault=fault, seconds=seconds, steps=None if steps is None else max(0, steps)))
    return found
