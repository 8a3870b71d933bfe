"""A job's status and events as coloured text."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from launcher.core.outcomes import JobOutcome
from launcher.diagnosis.slow_rank import slow_words
from launcher.history.descent import in_words, passed_over
from launcher.history.status import Event, JobStatus

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_FAILED = (*(outcome for outcome in JobOutcome if outcome.is_failure), "lost")
_ENDED_WELL = (JobOutcome.DONE, JobOutcome.HALTED)
_SHORT = {"memory": "mem"}  # names of tiers on the line of a narrow terminal


def render(status: JobStatus, title: str) -> RenderableType:
    """The status as a table. An error of the script that ended the job is its first row."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    reason, _, trace = (status.reason or "").strip().partition("\n")
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", justify="right")
    facts.add_column(overflow="fold")
    state = Text(status.state, style=state_style(status.state))
    if reason:
        shown = trace.rstrip().rpartition("\n")[2] if status.state == JobOutcome.USER_ERROR and trace else reason
        state.append(f"  {shown}", style="default")
    facts.add_row("job", title)
    facts.add_row("state", state)
    if status.stop:
        facts.add_row("stops", status.stop)
    if status.attempt is not None:
        faults = f"  ({plural(status.faults, 'fault')} so far)" if status.faults else ""
        facts.add_row("attempt", f"{status.attempt}{faults}")
        facts.add_row("nodes", f"{len(status.nodes)}  {' '.join(status.nodes)}")
        facts.add_row("spares", f"{len(status.spares)}  {' '.join(status.spares)}".rstrip())
    if status.size is not None:
        facts.add_row("size", status.size)
    for node, reason in status.out.items():
        facts.add_row("out", Text.assemble((node, "red"), f"  {reason}"))
    for node, slow in status.slow.items():
        facts.add_row("slow", Text.assemble((node, "yellow"), f"  {slow.text()}, since {clock_of(slow.since_s)}"))
    speed = f"  ({status.steps_per_s:.3g} steps/s)" if status.steps_per_s else ""
    facts.add_row("step", f"{status.step or 'none reported'}{speed}")  # a script without a Checkpointer reports none
    committed = "  ".join(f"{tier} {step}" for tier, step in status.committed.items())
    failed = f"  ({plural(status.failed_saves, 'save')} failed)" if status.failed_saves else ""
    nothing = "nothing" if status.state in (*_FAILED, *_ENDED_WELL, JobOutcome.CANCELLED) else "nothing yet"
    facts.add_row("committed", f"{committed or nothing}{failed}")
    for words in status.went_back:
        facts.add_row("went back", Text(words, style="yellow"))
    if status.seconds is not None:
        facts.add_row("time", duration(status.seconds))
    if status.ettr is not None:
        facts.add_row("ETTR", f"{status.ettr:.1%}  of the time went into steps that counted")
    if status.lost_s:
        lost = "  ".join(f"{kind} {seconds:.1f} s" for kind, seconds in status.lost_s.items())
        facts.add_row("not training", lost)
    if status.stall_s:
        facts.add_row("save stall", f"{status.stall_s:.1f} s  for which saves held training up")
    lines = [event_line(event) for event in status.events]
    first = [Text(trace.rstrip(), style="red"), Text("")] if trace.strip() else []
    return Group(*first, facts, *([Text(""), *lines] if lines else []))


def standing(status: JobStatus) -> Text:
    """The job's state on one line of a terminal with 80 columns."""
    from rich.text import Text

    speed = f" ({status.steps_per_s:.3g}/s)" if status.steps_per_s else ""
    parts = [f"step {status.step}{speed}"] if status.step else []
    parts += [" ".join(f"{_SHORT.get(tier, tier)} {step}" for tier, step in status.committed.items())]
    if status.attempt is not None:
        parts.append(f"attempt {status.attempt}")
        parts.append(f"{len(status.nodes)}+{len(status.spares)} nodes")
    if status.slow:
        parts.append(f"slow: {status.slow_nodes}")
    if status.seconds is not None:
        parts.append(duration(status.seconds))
    return Text.assemble((status.state, state_style(status.state)), "  ", " · ".join(filter(None, parts)))


def ending(status: JobStatus) -> str:
    """How a job ended, on one line."""
    at_step = f" at step {status.step}" if status.step else ""
    reason = " ".join(str(status.reason or "").strip().rpartition("\n")[2].split())
    return f"{status.state}{at_step}{f': {reason}' if reason else ''}"


def event_line(event: Event) -> Text:
    """One event as a coloured line with its time of day."""
    from rich.text import Text

    return Text.assemble((clock(event), "dim"), "  ", (describe(event), event_style(event)))


def describe(event: Event) -> str:
    """One event in words, on one line."""
    step, node = event.get("step"), event.get("node")
    at_step = f" at step {step}" if isinstance(step, int) else ""
    taking = f" in {event['seconds']:.2f} s" if isinstance(event.get("seconds"), int | float) else ""
    reason = " ".join(str(event.get("reason") or "").strip().partition("\n")[0].split())
    because = f": {reason}" if reason else ""
    match event.get("event"):
        case "job_start":
            return f"start: {plural(event.get('nodes_requested'), 'node')} + {plural(event.get('spares'), 'spare')}"
        case "node_ready":
            return f"{node} ready"
        case "takeover":
            lost = f" from {event['predecessor']}" if event.get("predecessor") else ""
            return f"supervisor taken over by {node}{lost} (term {event.get('term')})"
        case "attempt_start":
            return f"attempt {event.get('attempt')} ({event.get('rung')}) on {' '.join(event.get('nodes') or ())}"
        case "restore":
            if not step:
                return in_words(event) or "nothing to restore, starting at step 0"
            return f"newest step to restore: {step}{_of(event)}, from {event.get('tier')}{taking}{passed_over(event)}"
        case "loaded":
            newest = event.get("newest")
            older = (
                f"; newer steps up to {newest} are not loaded"
                if isinstance(newest, int) and newest > (step or 0)
                else ""
            )
            whose = f", saved by {event['whose']}," if event.get("whose") else ""
            return f"restored step {step}{_of(event)}{whose} from {event.get('tier')}{taking}{older}"
        case "line":
            return f"{in_words(event)}; `holdfast ckpt ls` shows what stays aside"
        case "finishing":
            return f"writing step {step} to {', '.join(event.get('tiers') or ())} before the end"
        case "rebuilt":
            return f"rank {event.get('rank')}'s state on {node} rebuilt from {event.get('from_node')}{taking}"
        case "workers_started":
            return f"workers started{taking}"
        case "first_step":
            return f"training: step {step} finished{taking} from the attempt's start"
        case "cadence":
            steps, every_s = event.get("every_steps"), event.get("every_s")
            seconds = f"{every_s:,.0f} s" if isinstance(every_s, int | float) else "?"
            every = f"{plural(steps, 'step')} ({seconds})" if steps else seconds
            return f"from now on a save goes to {event.get('tier')} every {every}"
        case "straggler":
            words = slow_words(event["rank"], event.get("ranks") or 1, event["factor"], event["part"])
            return f"{node} is slow{at_step}: {words}"
        case "straggler_over":
            return f"{node} is as fast as the others again{at_step}"
        case "commit":
            return f"step {step} committed to {event.get('tier')}{taking}"
        case "fault":
            detect = event.get("detect")
            noticed = f" (noticed within {detect:.1f} s)" if isinstance(detect, int | float) else ""
            because = because.replace(f": {node}: ", ": ", 1)  # a runner's reason begins with its node
            known = event.get("class") not in (None, "unknown", event.get("kind"))
            of_class = f" ({event['class']})" if known else ""
            return f"{event.get('kind')}{of_class}{f' on {node}' if node else ''}{at_step}{because}{noticed}"
        case "backoff":
            return f"{event.get('seconds')} s until the next attempt, because no new step was finished{because}"
        case "node_out":
            if event.get("cause") is not None:
                return f"{node} has left the job{because}"
            return f"{node} is {'lost' if event.get('lost') else 'out for the rest of the job'}{because}"
        case "node_back":
            if event.get("allocation"):
                return f"{node} may be used again: it was lost as booster {event['allocation']} ended"
            return f"{node} is back"
        case "resize":
            return f"resize from {event.get('size')} to {plural(event.get('to'), 'node')}{because}"
        case "scale_requested":
            return f"a user has requested {plural(event.get('nodes'), 'node')}"
        case "booster_asked":
            return f"booster {event.get('allocation')} of {plural(event.get('nodes'), 'node')} submitted"
        case "booster_waits":
            return f"booster {event.get('allocation')} waits in the queue{because}"
        case "booster_leaving":
            return f"booster {event.get('allocation')} is given up{because}"
        case "booster_end":
            return f"booster {event.get('allocation')} has ended{because}"
        case "node_leaving":
            if event.get("allocation") is None:
                return f"{node} is being left, a spare takes its place{because}"
            return f"{node} leaves with booster {event.get('allocation')}{because}"
        case "holders_released":
            return f"released: {' '.join(event.get('nodes') or ())}; the job no longer needs their memory"
        case "stop_requested":
            return f"stop requested{because}"
        case "stop_agreed":
            return "all ranks agreed to stop at one step boundary"
        case "agents_lost":
            return (
                f"checkpoint agents lost{f' on {node}' if node else ''}, nothing is saved until they are back{because}"
            )
        case "agents_back":
            return f"checkpoint agents are back{taking} (generation {event.get('generation')})"
        case "own_checkpoint":
            return f"the script's newest checkpoint: {event.get('file') or 'none yet'}"
        case "problem":
            detail = " ".join(str(event.get("detail") or "").split())
            return f"problem: {event.get('what')}{at_step}{f': {detail}' if detail else ''}"
        case "attempt_end":
            return f"attempt {event.get('attempt')} ended: {event.get('outcome')}{at_step}"
        case "job_end":
            return f"end: {event.get('outcome')}{at_step}{because}"
        case other:
            return f"{other}{f' on {node}' if node else ''}{at_step}{because}"


def _of(event: Event) -> str:
    return f" of namespace {event['namespace']}" if event.get("namespace") else ""


def state_style(state: str) -> str:
    """The colour of a state."""
    if state in _FAILED:
        return "bold red"
    if state in _ENDED_WELL:
        return "bold green"
    return {"training": "green", "recovering": "yellow", "resizing": "yellow", "stopping": "yellow"}.get(state, "bold")


def event_style(event: Event) -> str:
    """The colour of an event's line."""
    kind = event.get("event")
    if kind == "job_end":
        return state_style(str(event.get("outcome")))
    return {
        "fault": "red",
        "node_out": "red",
        "problem": "yellow",
        "straggler": "yellow",
        "agents_lost": "yellow",
        "agents_back": "cyan",
        "restore": "yellow" if event.get("skipped") or (not event.get("step") and event.get("left")) else "cyan",
        "loaded": "cyan",
        "line": "yellow",
        "rebuilt": "cyan",
        "first_step": "green",
    }.get(str(kind), "default")


def clock(event: Event) -> str:
    """The event's local time of day."""
    return clock_of(event.get("time", 0))


def clock_of(time_s: float) -> str:
    """The local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(time_s))


def duration(seconds: float) -> str:
    """For example "1 d 02:03:04" or "02:03:04"."""
    days, rest = divmod(int(seconds), 86400)
    text = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days} d {text}" if days else text


def age(since_s: float, now_s: float | None = None) -> str:
    """The time since then in one unit, for example "42 s", "7 min", "3 h" or "12 d"."""
    seconds = max(0.0, (time.time() if now_s is None else now_s) - since_s)
    for length_s, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * length_s or (unit == "min" and seconds >= length_s):
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def plural(count: Any, noun: str) -> str:
    """For example "1 node" or "2 nodes"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
