"""The screen of one job."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from holdfast.blocks import printable
from launcher.history.status import JobStatus
from launcher.history.view import duration, event_line
from launcher.history.wording import plural, state_style
from launcher.job.registry import KnownJob
from launcher.screen.grid import grid, legend, node_cells
from launcher.screen.words import fault_line, sparkline, tier_rows, what_next

_LABEL = 8  # width of the labels at the left
_LEAST_EVENTS = 4  # lines for events, as long as the nodes can do with fewer
_FAULTS = 4


def job_lines(
    known: KnownJob,
    status: JobStatus,
    job: Mapping[str, Any],
    *,
    now_s: float,
    width: int,
    height: int,
    is_unicode: bool = True,
) -> list[Text]:
    """The screen, line by line.

    Args:
        known: the job.
        status: its status.
        job: its job.json; empty before it has started.
        now_s: the current time in seconds since the epoch.
        width, height: of the screen, in characters.
        is_unicode: whether the terminal shows characters outside of ASCII.
    """
    soonest = _wrapped(what_next(status, job, now_s), width)
    head = [_title(known, status), *_reason(status), *_labelled("next", soonest), Text()]
    parts = [*_speed(status, width, is_unicode), *_tiers(status, now_s), *_faults(status, now_s)]
    slow = [f"{node} {slow.text()}" for node, slow in status.slow.items()]
    parts += _labelled("slow", _wrapped(slow, width), style="yellow")
    boosters = status.elastic.boosters if status.elastic is not None else ()
    parts += _labelled("booster", [f"{booster.id} {booster.standing()}" for booster in boosters])
    if status.size is not None and not boosters:
        parts += _labelled("size", [status.size])
    cells = node_cells(status)
    room = height - len(head) - len(parts) - 3
    rows = grid(cells, width - _LABEL, max(2, room - _LEAST_EVENTS), is_unicode=is_unicode)
    nodes = _beside("nodes", [legend(cells, is_unicode=is_unicode), *rows]) if cells else []
    events = [event_line(event) for event in status.events][-max(0, room - len(rows)) :]
    lines = [*head, *parts, *nodes, *([Text(), *events] if room > len(rows) else [])][:height]
    for line in lines:
        line.truncate(width, overflow="ellipsis" if is_unicode else "crop")
    return lines


def _title(known: KnownJob, status: JobStatus) -> Text:
    title = Text.assemble((printable(known.name), "bold"), "  ", (printable(status.state), state_style(status.state)))
    facts = [f"step {status.step}"] if status.step else []
    facts += [f"ETTR {status.ettr:.1%}"] if status.ettr is not None else []
    facts += [plural(status.faults, "fault")] if status.faults else []
    facts += [duration(status.seconds)] if status.seconds is not None else []
    facts += [f"attempt {status.attempt}"] if status.attempt is not None else []
    facts += [f"job {known.job_id}"]
    return title.append("  " + "  ".join(facts))


def _reason(status: JobStatus) -> list[Text]:
    reason = " ".join((status.reason or "").strip().partition("\n")[0].split())
    return [Text(printable(reason), style="yellow")] if reason else []


def _speed(status: JobStatus, width: int, is_unicode: bool) -> list[Text]:
    now = f"{status.steps_per_s:.3g} steps/s" if status.steps_per_s else "no steps" if status.pace else ""
    bars = sparkline(status.pace, max(10, width - _LABEL - len(now) - 2), is_unicode=is_unicode)
    return _beside("speed", [Text.assemble(now, "  ", (bars, "green"))]) if now or bars else []


def _tiers(status: JobStatus, now_s: float) -> list[Text]:
    rows = tier_rows(status.tiers, now_s)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    texts = ["  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip() for row in rows]
    if status.stall_s and status.seconds:
        texts.append(f"saves have held training up for {status.stall_s:.1f} s, {status.stall_s / status.seconds:.1%}")
    missing = [f"{name} lacks {why}" for name, why in status.unsaved.items()]
    return _labelled("tiers", texts) + _labelled("" if texts else "tiers", missing, style="yellow")


def _faults(status: JobStatus, now_s: float) -> list[Text]:
    told = [fault_line(recovery, now_s) for recovery in status.recoveries[-_FAULTS:]]
    lines = [Text(printable(line), style="" if is_over else "yellow") for line, is_over in reversed(told)]
    return _beside("faults", lines)


def _wrapped(lines: Sequence[str], width: int) -> list[str]:
    return [part for line in lines for part in textwrap.wrap(printable(line), width - _LABEL)]


def _labelled(label: str, lines: Sequence[str], style: str = "") -> list[Text]:
    return _beside(label, [Text(printable(line), style=style) for line in lines])


def _beside(label: str, lines: Sequence[Text]) -> list[Text]:
    """Lines with a label left of the first."""
    labels = [label, *[""] * (len(lines) - 1)]
    return [
        Text.assemble((each.ljust(_LABEL)[:_LABEL], "dim"), line) for each, line in zip(labels, lines, strict=False)
    ]
