"""The events of events.jsonl: what each one means, its fields and their types.

Readers decide about take-over and requeue from these events, so a line that was torn, edited or written by another
version must not stop them: a field of another type reads as null, and an event that lacks a required field is skipped.
The reference of events (docs/reference/events.md) is generated from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Event = dict[str, Any]

_LARGEST_NUMBER = 1e15  # in seconds; the C library cannot format later dates
_LARGEST_COUNT = 1 << 63


@dataclass(frozen=True)
class FieldType:
    """A field's type, in words and as a check of a JSON value."""

    words: str
    accepts: Callable[[Any], bool]


@dataclass(frozen=True)
class EventKind:
    """A kind of event: its meaning, its own fields, and those of all its fields that a line must have."""

    meaning: str
    fields: Mapping[str, FieldType]
    required: tuple[str, ...]


def _kind(meaning: str, required: str = "", **fields: FieldType) -> EventKind:
    return EventKind(meaning, fields, tuple(required.split()))


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST_NUMBER


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST_COUNT


def _is_step(value: Any) -> bool:
    return isinstance(value, dict) and is_count(value.get("step")) and isinstance(value.get("reason"), str)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


NUMBER = FieldType("number", is_number)
COUNT = FieldType("whole number", is_count)
TEXT = FieldType("text", lambda value: isinstance(value, str))
FLAG = FieldType("true or false", lambda value: isinstance(value, bool))
NAMES = FieldType("list of names", _are_names)
STEPS = FieldType("list of steps with reasons", lambda value: isinstance(value, list) and all(map(_is_step, value)))
SOME_NAMES = FieldType("list of names, not empty", lambda value: _are_names(value) and bool(value))

COMMON: Mapping[str, FieldType] = {
    "time": NUMBER,
    "attempt": COUNT,
    "node": TEXT,
    "step": COUNT,
    "seconds": NUMBER,
    "term": COUNT,
}
EVENTS: Mapping[str, EventKind] = {
    "job_start": _kind(
        "The scheduler has started the job, for the first time or after a requeue. `versions`: of the supervisor's "
        "environment.",
        run_id=TEXT, cluster=TEXT, nodes_requested=COUNT, spares=COUNT, restart_count=COUNT, versions=NAMES,
    ),
    "takeover": _kind("Another supervisor continues the job.", predecessor=TEXT),
    "node_ready": _kind(
        "A node's runner has connected; once more when torch is loaded.", "node", warm=FLAG, allocation=TEXT
    ),
    "node_out": _kind(
        "A node no longer trains. `cause`: why the job has left it before it failed, as in `node_leaving`.", "node",
        reason=TEXT, environment=FLAG, lost=FLAG, cause=TEXT,
    ),
    "node_back": _kind("A node that was temporarily out of reach is a spare again.", "node", allocation=TEXT),
    "node_leaving": _kind(
        "A node is about to leave the job: Slurm takes a booster's node back (`allocation`), or a spare takes the "
        "node's position before it fails. `cause`: drained, incident or slow.", "node",
        allocation=TEXT, cause=TEXT, reason=TEXT,
    ),
    "booster_asked": _kind("A booster was submitted.", "allocation nodes", allocation=TEXT, nodes=COUNT),
    "booster_waits": _kind("A booster waits in the queue.", "allocation", allocation=TEXT, reason=TEXT),
    "booster_leaving": _kind("A booster that has no node yet is given up.", "allocation", allocation=TEXT, reason=TEXT),
    "booster_end": _kind(
        "A booster has ended. `again`: when another is requested.", "allocation",
        allocation=TEXT, reason=TEXT, again=NUMBER,
    ),
    "scale_requested": _kind(
        "A user has requested another number of nodes; no number: that of the job file.", nodes=COUNT
    ),
    "resize": _kind(
        "The attempt ends so that one of another size can begin.", "attempt to", size=COUNT, to=COUNT, reason=TEXT
    ),
    "holders_released": _kind(
        "Nodes that left the job have handed over their shards.",
        "attempt generation",
        generation=COUNT, nodes=NAMES,
    ),
    "attempt_start": _kind(
        "An attempt begins, on this rung of the recovery ladder.",
        "attempt nodes rung",
        nodes=SOME_NAMES, spares=NAMES, rung=TEXT, holders=NAMES,
    ),
    "workers_started": _kind("The workers run on all nodes.", "seconds"),
    "own_checkpoint": _kind("A new checkpoint file of the script itself.", "file modified", file=TEXT, modified=NUMBER),
    "restore": _kind(
        "The newest step that the attempt can continue from, ready in memory. `skipped`: newer steps that were passed "
        "over. `left`: what else the namespace holds.",
        "step tier",
        tier=TEXT, namespace=TEXT, skipped=STEPS, left=NAMES,
    ),
    "loaded": _kind(
        "The script has loaded a step. `newest`: the newest one of the namespace. `whose`: the script that saved it.",
        "step",
        tier=TEXT, namespace=TEXT, newest=COUNT, whose=TEXT,
    ),
    "line": _kind(
        "The first save of a line that does not continue the newest step. `origin`: the step that it continues.",
        "step",
        origin=COUNT, newest=COUNT, line=TEXT,
    ),
    "finishing": _kind("Training has ended, and its newest step is written to these tiers.", "step", tiers=NAMES),
    "rebuilt": _kind(
        "A rank's state was rebuilt on a node that lacked it.", rank=COUNT, from_node=TEXT, tier=TEXT, bytes=COUNT
    ),
    "first_step": _kind("The attempt's first step after the restored one.", "seconds"),
    "cadence": _kind(
        "With `every_steps: auto`: all ranks save every `every_steps` steps from now on (memory), or a tier takes a "
        "save every `every_s`. It was computed from the other fields: the time of a step, for how long a save holds "
        "it up, and the time between failures.",
        "tier every_s",
        tier=TEXT, every_steps=COUNT, every_s=NUMBER, step_s=NUMBER, stall_s=NUMBER, mtbf_s=NUMBER,
    ),
    "straggler": _kind(
        "All ranks wait for one of this node, since the time `since`. It works `factor` times as long in a step as the "
        "others, or as itself at first, waits left out; `part` takes longer: data or compute. `excess_s`: by how much "
        "each step is longer. `ranks`: the number of slow ranks of the node. `switch`: if most of its nodes are slow.",
        "node rank factor part",
        rank=COUNT, ranks=COUNT, factor=NUMBER, part=TEXT, excess_s=NUMBER, since=NUMBER, switch=TEXT,
    ),
    "straggler_over": _kind("The node is as fast as the others.", "node"),
    "commit": _kind(
        "A step is complete in a tier. `seconds`: from its first byte to the commit, beside training. `stall_s`: for "
        "how long saves have held training up since the commit before it, on the slowest rank; only of memory.",
        "step tier",
        tier=TEXT, bytes=COUNT, stall_s=NUMBER,
    ),
    "agents_lost": _kind("The agents are lost; training continues.", "generation", generation=COUNT, reason=TEXT),
    "agents_back": _kind("New agents have the state.", "generation", generation=COUNT),
    "problem": _kind(
        "A problem that users should know about; the job continues. `again`: when what failed is tried again.",
        what=TEXT, detail=TEXT, failed=TEXT, again=NUMBER,
    ),
    "fault": _kind(
        "The cause of an attempt's end. Only the first fault of an attempt counts. `class`: what kind of failure; "
        "`domain`: whose it is (user, node, cluster or unknown); `proof`: the line that shows it; `advice`: the next "
        "step; `alike`: number of other ranks that failed in the same way; `others`: further causes, of other "
        "classes; `consequences`: number of ranks whose failure follows.",
        "kind",
        kind=TEXT, rank=COUNT, reason=TEXT, detect=NUMBER, traceback=TEXT, domain=TEXT, proof=TEXT, advice=TEXT,
        alike=COUNT, others=NAMES, consequences=COUNT, **{"class": TEXT},
    ),
    "backoff": _kind("A wait before the next attempt.", reason=TEXT),
    "stop_requested": _kind("A request that all ranks stop at the same step.", reason=TEXT, detail=TEXT),
    "stop_agreed": _kind("The ranks have agreed on the step.", boundary=COUNT),
    "attempt_end": _kind("An attempt has ended.", outcome=TEXT),
    "job_end": _kind("The job has ended for good.", outcome=TEXT, reason=TEXT),
}  # fmt: skip


def misfits(event: Mapping[str, Any]) -> list[str]:
    """The fields of an event whose values have the wrong type."""
    kind = EVENTS.get(event["event"])
    types = {**COMMON, **(kind.fields if kind else {})}
    return [key for key, value in event.items() if value is not None and key in types and not types[key].accepts(value)]


def as_event(value: Any) -> Event | None:
    """A decoded line as an event; None if it is not a valid one."""
    if not isinstance(value, dict) or not isinstance(value.get("event"), str):
        return None
    event = {**value, **dict.fromkeys(misfits(value))}
    kind = EVENTS.get(event["event"])
    needed = ("time", *(kind.required if kind else ()))
    return event if all(event.get(key) is not None for key in needed) else None
