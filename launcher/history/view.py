"""A job's status and events as coloured text."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from launcher.core.outcomes import JobOutcome
from launcher.history.fields import describe, event_style
from launcher.history.status import Event, JobStatus
from launcher.history.wording import ENDED_WELL, FAILED, plural, state_style

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

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
    nothing = "nothing" if status.state in (*FAILED, *ENDED_WELL, JobOutcome.CANCELLED) else "nothing yet"
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
