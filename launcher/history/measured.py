"""What a job's record says of its checkpoints and its failures, for `holdfast ckpt plan --measured`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from launcher.history.fields import Event
from launcher.history.recovery import RecoveryFold


@dataclass(frozen=True, kw_only=True)
class MeasuredJob:
    """Medians of what a job has done. None: the record does not say.

    Attributes:
        step_s: of one step, without the time for which saves held it up.
        stall_s: for how long a save held training up.
        commit_s: from a save to its commit, by tier.
        state_bytes: of one save, over all ranks.
        restart_s: from a failure to the next step.
        faults: failures of nodes and processes; `node_hours`: in this time of all nodes together.
    """

    step_s: float | None = None
    stall_s: float | None = None
    commit_s: dict[str, float] = field(default_factory=dict)
    state_bytes: int | None = None
    restart_s: float | None = None
    faults: int = 0
    node_hours: float = 0.0


def measured(events: Iterable[Event]) -> MeasuredJob:
    """The measurements in a job's events, which are in order."""
    fold, commits = RecoveryFold(failed_at={}), defaultdict[str, list[Event]](list)
    steps, faults, node_s = list[float](), 0, 0.0
    nodes, last = 0, None  # of the attempt, and its newest commit in memory
    since_s = 0.0
    for event in events:
        fold.add(event)
        node_s += nodes * max(0.0, event["time"] - since_s)
        since_s = event["time"]
        if event["event"] == "attempt_start":
            nodes, last = len(event["nodes"]), None
        elif event["event"] in ("attempt_end", "job_end"):
            nodes = 0
        elif event["event"] == "fault" and event.get("attempt") is not None:
            faults += 1
        elif event["event"] == "commit":
            commits[event["tier"]].append(event)
            if event["tier"] == "memory":
                if last is not None and event["step"] > last["step"]:
                    passed_s = event["time"] - last["time"] - (event.get("stall_s") or 0.0)
                    steps.append(max(passed_s, 0.0) / (event["step"] - last["step"]))
                last = event
    stalls = [event["stall_s"] for event in commits["memory"] if event.get("stall_s") is not None]
    restarts = [found.next_step_s for found in fold.found if found.next_step_s is not None]
    sizes = [event["bytes"] for event in commits["memory"] if event.get("bytes")]
    seconds = {name: [one["seconds"] for one in of if one.get("seconds") is not None] for name, of in commits.items()}
    return MeasuredJob(
        step_s=_median(steps), stall_s=_median(stalls), restart_s=_median(restarts), faults=faults,
        commit_s={name: median(each) for name, each in seconds.items() if each},
        state_bytes=int(median(sizes)) if sizes else None, node_hours=node_s / 3600,
    )  # fmt: skip


def _median(values: list[float]) -> float | None:
    return median(values) if values else None
