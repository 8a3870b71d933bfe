"""The events of events.jsonl: what each one means, its words and colour, its fields and their types.

Readers decide about take-over and requeue from these events, so a line that was torn, edited or written by another
version must not stop them: a field of another type reads as null, and an event that lacks a required field is skipped.
The reference of events (docs/reference/events.md) is generated from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.history import wording
from launcher.history.descent import in_words
from launcher.history.wording import Facts, Style, Words, state_style

Event = dict[str, Any]

_LARGEST_NUMBER = 1e15  # in seconds; the C library cannot format later dates
_LARGEST_COUNT = 1 << 63


@dataclass(frozen=True)
class FieldType:
    """A field's type, in words and as a check of a JSON value."""

    words: str
    accepts: Callable[[Any], bool]


@dataclass(frozen=True, kw_only=True)
class EventKind:
    """A kind of event.

    Attributes:
        meaning: what the event says, for the reference.
        words: the event on one line, for people: a template of its fields, or a function.
        fields: its own fields, beside the common ones.
        required: those of all its fields that a line must have.
        style: the colour of the line.
        is_frequent: whether it is too frequent for the list of last events.
    """

    meaning: str
    words: Words
    fields: Mapping[str, FieldType]
    required: tuple[str, ...] = ()
    style: Style = "default"
    is_frequent: bool = False


def _kind(
    meaning: str,
    words: Words,
    *,
    required: str = "",
    style: Style = "default",
    is_frequent: bool = False,
    **fields: FieldType,
) -> EventKind:
    return EventKind(
        meaning=meaning,
        words=words,
        fields={name.removesuffix("_"): each for name, each in fields.items()},  # class_: a word of Python
        required=tuple(required.split()),
        style=style,
        is_frequent=is_frequent,
    )


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
        lambda event: f"start: {event.plural('nodes_requested', 'node')} + {event.plural('spares', 'spare')}",
        run_id=TEXT, cluster=TEXT, nodes_requested=COUNT, spares=COUNT, restart_count=COUNT, versions=NAMES,
    ),
    "takeover": _kind("Another supervisor continues the job.", wording.takeover, predecessor=TEXT),
    "node_ready": _kind(
        "A node's runner has connected; once more when torch is loaded.", "{node} ready",
        required="node", is_frequent=True, warm=FLAG, allocation=TEXT,
    ),
    "node_out": _kind(
        "A node no longer trains. `cause`: why the job has left it before it failed, as in `node_leaving`.",
        wording.node_out, required="node", style="red",
        reason=TEXT, environment=FLAG, lost=FLAG, cause=TEXT,
    ),
    "node_back": _kind(
        "A node that was temporarily out of reach is a spare again.", wording.node_back,
        required="node", allocation=TEXT, job_id=TEXT,
    ),
    "node_leaving": _kind(
        "A node is about to leave the job: Slurm takes a booster's node back (`allocation`), or a spare takes the "
        "node's position before it fails. `cause`: drained, incident or slow.",
        wording.node_leaving, required="node",
        allocation=TEXT, job_id=TEXT, cause=TEXT, reason=TEXT,
    ),
    "booster_asked": _kind(
        "A booster is requested. `allocation`: its number, which no other booster in this folder has. It is submitted "
        "once this event is on disk.",
        lambda event: f"booster {event['allocation']} of {event.plural('nodes', 'node')} requested",
        required="allocation nodes", allocation=TEXT, nodes=COUNT,
    ),
    "booster_submitted": _kind(
        "The scheduler has accepted a booster. `job_id`: the scheduler's id of it, by which users know it.",
        "booster {allocation} submitted as {job_id}",
        required="allocation job_id", allocation=TEXT, job_id=TEXT,
    ),
    "booster_waits": _kind(
        "A booster waits in the queue.", "{booster} waits in the queue{because}",
        required="allocation", allocation=TEXT, job_id=TEXT, reason=TEXT,
    ),
    "booster_leaving": _kind(
        "A booster that has no node yet is given up.", "{booster} is given up{because}",
        required="allocation", allocation=TEXT, job_id=TEXT, reason=TEXT,
    ),
    "booster_end": _kind(
        "A booster has ended. `again`: when another is requested.", "{booster} has ended{because}",
        required="allocation", allocation=TEXT, job_id=TEXT, reason=TEXT, again=NUMBER,
    ),
    "scale_requested": _kind(
        "A user has requested another number of nodes; no number: that of the job file.",
        lambda event: f"a user has requested {event.plural('nodes', 'node')}",
        nodes=COUNT,
    ),
    "resize": _kind(
        "The attempt ends so that one of another size can begin.",
        lambda event: f"resize from {event['size']} to {event.plural('to', 'node')}{event['because']}",
        required="attempt to", size=COUNT, to=COUNT, reason=TEXT,
    ),
    "holders_released": _kind(
        "Nodes that left the job have handed over their shards.",
        lambda event: f"released: {event.names('nodes')}; the job no longer needs their memory",
        required="attempt generation", generation=COUNT, nodes=NAMES,
    ),
    "attempt_start": _kind(
        "An attempt begins, on this rung of the recovery ladder.",
        lambda event: f"attempt {event['attempt']} ({event['rung']}) on {event.names('nodes')}",
        required="attempt nodes rung", nodes=SOME_NAMES, spares=NAMES, rung=TEXT, holders=NAMES,
    ),
    "workers_started": _kind("The workers run on all nodes.", "workers started{taking}", required="seconds"),
    "own_checkpoint": _kind(
        "A new checkpoint file of the script itself.",
        lambda event: f"the script's newest checkpoint: {event['file'] or 'none yet'}",
        required="file modified", is_frequent=True, file=TEXT, modified=NUMBER,
    ),
    "restore": _kind(
        "The newest step that the attempt can continue from, ready in memory. `skipped`: newer steps that were passed "
        "over. `left`: what else the namespace holds.",
        wording.restore, required="step tier", style=wording.restore_style,
        tier=TEXT, namespace=TEXT, skipped=STEPS, left=NAMES,
    ),
    "loaded": _kind(
        "The script has loaded a step. `newest`: the newest one of the namespace. `whose`: the script that saved it.",
        wording.loaded, required="step", style="cyan",
        tier=TEXT, namespace=TEXT, newest=COUNT, whose=TEXT,
    ),
    "line": _kind(
        "The first save of a line that does not continue the newest step. `origin`: the step that it continues.",
        lambda event: f"{in_words(event)}; `holdfast ckpt ls` shows what stays aside",
        required="step", style="yellow", origin=COUNT, newest=COUNT, line=TEXT,
    ),
    "finishing": _kind(
        "Training has ended, and its newest step is written to these tiers.",
        lambda event: f"writing step {event['step']} to {event.names('tiers', ', ')} before the end",
        required="step", tiers=NAMES,
    ),
    "rebuilt": _kind(
        "A rank's state was rebuilt on a node that lacked it.",
        "rank {rank}'s state on {node} rebuilt from {from_node}{taking}",
        style="cyan", rank=COUNT, from_node=TEXT, tier=TEXT, bytes=COUNT,
    ),
    "first_step": _kind(
        "The attempt's first step after the restored one.",
        "training: step {step} finished{taking} from the attempt's start",
        required="seconds", style="green",
    ),
    "cadence": _kind(
        "With `every_steps: auto`: all ranks save every `every_steps` steps from now on (memory), or a tier takes a "
        "save every `every_s`. It was computed from the other fields: the time of a step, for how long a save holds "
        "it up, and the time between failures.",
        wording.cadence, required="tier every_s",
        tier=TEXT, every_steps=COUNT, every_s=NUMBER, step_s=NUMBER, stall_s=NUMBER, mtbf_s=NUMBER,
    ),
    "straggler": _kind(
        "All ranks wait for one of this node, since the time `since`. It works `factor` times as long in a step as the "
        "others, or as itself at first, waits left out; `part` takes longer: data or compute. `excess_s`: by how much "
        "each step is longer. `ranks`: the number of slow ranks of the node. `switch`: if most of its nodes are slow.",
        wording.straggler, required="node rank factor part", style="yellow",
        rank=COUNT, ranks=COUNT, factor=NUMBER, part=TEXT, excess_s=NUMBER, since=NUMBER, switch=TEXT,
    ),
    "straggler_over": _kind(
        "The node is as fast as the others.", "{node} is as fast as the others again{at_step}", required="node"
    ),
    "commit": _kind(
        "A step is complete in a tier. `seconds`: from its first byte to the commit, beside training. `stall_s`: for "
        "how long saves have held training up since the commit before it, on the slowest rank; only of memory.",
        "step {step} committed to {tier}{taking}", required="step tier", is_frequent=True,
        tier=TEXT, bytes=COUNT, stall_s=NUMBER,
    ),
    "agents_lost": _kind(
        "The agents are lost; training continues.",
        "checkpoint agents lost{on_node}, nothing is saved until they are back{because}",
        required="generation", style="yellow", generation=COUNT, reason=TEXT,
    ),
    "agents_back": _kind(
        "New agents have the state.", "checkpoint agents are back{taking} (generation {generation})",
        required="generation", style="cyan", generation=COUNT,
    ),
    "problem": _kind(
        "A problem that users should know about; the job continues. `again`: when what failed is tried again.",
        wording.problem, style="yellow", what=TEXT, detail=TEXT, failed=TEXT, again=NUMBER,
    ),
    "fault": _kind(
        "The cause of an attempt's end. Only the first fault of an attempt counts. `class`: what kind of failure; "
        "`domain`: whose it is (user, node, cluster or unknown); `proof`: the line that shows it; `advice`: the next "
        "step; `alike`: number of other ranks that failed in the same way; `others`: further causes, of other "
        "classes; `consequences`: number of ranks whose failure follows.",
        wording.fault, required="kind", style="red",
        kind=TEXT, rank=COUNT, reason=TEXT, detect=NUMBER, traceback=TEXT, domain=TEXT, proof=TEXT, advice=TEXT,
        alike=COUNT, others=NAMES, consequences=COUNT, class_=TEXT,
    ),
    "backoff": _kind(
        "A wait before the next attempt.",
        "{seconds} s until the next attempt, because no new step was finished{because}", reason=TEXT,
    ),
    "stop_requested": _kind(
        "A request that all ranks stop at the same step.", "stop requested{because}", reason=TEXT, detail=TEXT
    ),
    "stop_agreed": _kind(
        "The ranks have agreed on the step.", "all ranks agreed to stop at one step boundary", boundary=COUNT
    ),
    "attempt_end": _kind("An attempt has ended.", "attempt {attempt} ended: {outcome}{at_step}", outcome=TEXT),
    "job_end": _kind(
        "The job has ended for good.", "end: {outcome}{at_step}{because}",
        style=lambda event: state_style(str(event["outcome"])), outcome=TEXT, reason=TEXT,
    ),
}  # fmt: skip
_UNKNOWN = EventKind(meaning="An event of another version.", words="{event}{on_node}{at_step}{because}", fields={})


def kind_of(event: Mapping[str, Any]) -> EventKind:
    """The event's row of the table. Events of another version share one."""
    return EVENTS.get(str(event.get("event")), _UNKNOWN)


def describe(event: Mapping[str, Any]) -> str:
    """One event in words, on one line."""
    words, facts = kind_of(event).words, Facts(event)
    return words.format_map(facts) if isinstance(words, str) else words(facts)


def event_style(event: Mapping[str, Any]) -> str:
    """The colour of an event's line."""
    style = kind_of(event).style
    return style if isinstance(style, str) else style(Facts(event))


def misfits(event: Mapping[str, Any]) -> list[str]:
    """The fields of an event whose values have the wrong type."""
    types = {**COMMON, **kind_of(event).fields}
    return [key for key, value in event.items() if value is not None and key in types and not types[key].accepts(value)]


def as_event(value: Any) -> Event | None:
    """A decoded line as an event; None if it is not a valid one."""
    if not isinstance(value, dict) or not isinstance(value.get("event"), str):
        return None
    event = {**value, **dict.fromkeys(misfits(value))}
    needed = ("time", *kind_of(event).required)
    return event if all(event.get(key) is not None for key in needed) else None
