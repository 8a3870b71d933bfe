"""The screen of all jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.text import Text

from holdfast.blocks import printable
from launcher.core.outcomes import FINAL
from launcher.history.status import JobStatus
from launcher.history.view import age
from launcher.history.wording import state_style
from launcher.job.registry import KnownJob
from launcher.screen.words import sparkline

_GAP = 2
_SHORT_ID, _SHORT_NAME, _BARS = 10, 12, 24
_HEADING = ("job", "user", "name", "state", "slow", "step", "steps/s", "nodes", "spares", "faults", "ETTR", "age")
_IF_ANY = ("slow",)  # the columns without which a row stands if none has a value there
_SPARE = ("age", "spares", "faults", "name")  # the columns that a narrow terminal leaves out, the first one first
_LONG = ("name", "slow")
_ENDS_TELL = ("job", "slow")  # the columns with cells whose ends differ: jobs of one day, nodes of one rack
_RIGHT = ("step", "steps/s", "nodes", "spares", "faults", "ETTR", "age")


def has_ended(status: JobStatus) -> bool:
    """Whether a job is listed among those that have ended."""
    return status.state in (*FINAL, "lost", "unreadable")


def jobs_lines(
    jobs: Sequence[tuple[KnownJob, JobStatus]],
    *,
    clock: str,
    width: int,
    height: int,
    is_unicode: bool = True,
    users: Mapping[str, str] | None = None,
    remark: str = "",
) -> list[Text]:
    """The screen, line by line: first the jobs that run or wait, then those that have ended, the newest first.

    Args:
        jobs: each with its status.
        clock: the time of day.
        width, height: of the screen, in characters.
        is_unicode: whether the terminal shows characters outside of ASCII.
        users: for the jobs of several users: each job's user, by its id.
        remark: what the list lacks; "" for nothing.
    """
    ordered = sorted(jobs, key=lambda each: (has_ended(each[1]), -each[0].submitted_s))
    states = Counter(status.state for _, status in ordered)
    counts = [Text.assemble(f"{count} ", (state, state_style(state))) for state, count in states.most_common()]
    head = Text("  ").join([Text(f"holdfast top  {clock}", style="bold"), *counts])
    whose = users or {}
    rows = [dict(zip(_HEADING, _cells(job, status, whose), strict=True)) for job, status in ordered]
    shown = [name for name in _HEADING if name != "user" or users is not None]
    shown = [name for name in shown if name not in _IF_ANY or any(row[name] for row in rows)]
    columns, widths = _fitting(rows, width, shown)
    left = width - sum(widths[name] for name in columns) - _GAP * len(columns)
    lines = [head, Text(_joined({name: name for name in columns}, columns, widths), style="dim")]
    room = height - 3 - bool(remark)
    for row, (_, status) in list(zip(rows, ordered, strict=True))[:room]:
        line = Text(_joined(row, columns, widths))
        at = line.plain.find(status.state, widths[columns[0]])
        line.stylize(state_style(status.state), at, at + len(status.state))
        if row["slow"]:
            line.stylize("yellow", at + len(status.state), at + widths["state"] + _GAP + widths["slow"])
        bars = sparkline(status.pace, min(left, _BARS), is_unicode=is_unicode) if left >= 8 else ""
        lines.append(line.append(" " * _GAP + bars, style="green") if bars else line)
    if len(rows) > room:
        more = "" if users is not None else ": holdfast status --limit 0"
        lines.append(Text(f"and {len(rows) - room} more{more}", style="dim"))
    if remark:
        lines.append(Text(remark, style="yellow"))
    for line in lines:
        line.truncate(width, overflow="ellipsis" if is_unicode else "crop")
    return lines


def job_words(job: KnownJob, status: JobStatus, user: str = "") -> str:
    """The job on one line, for a pipe."""
    speed = f"{status.steps_per_s:.3g} steps/s" if status.steps_per_s else "-"
    ettr = f"ETTR {status.ettr:.1%}" if status.ettr is not None else "ETTR -"
    nodes = f"{len(status.nodes) or job.nodes}+{len(status.spares)} nodes"
    step = f"step {status.step}" if status.step else "step -"
    whose = (job.job_id, *filter(None, [user]), job.name)
    slow = [f"slow: {status.slow_nodes}"] if status.slow else []
    return printable("  ".join((*whose, status.state, *slow, step, speed, nodes, f"{status.faults} faults", ettr)))


def _cells(job: KnownJob, status: JobStatus, users: Mapping[str, str]) -> tuple[str, ...]:
    return (
        printable(job.job_id),
        printable(users.get(job.job_id, "")),
        printable(job.name),
        printable(status.state),
        printable(status.slow_nodes),
        str(status.step or "-"),
        f"{status.steps_per_s:.3g}" if status.steps_per_s else "-",
        str(len(status.nodes) or job.nodes or "-"),
        str(len(status.spares) if status.attempt is not None else job.spares),
        str(status.faults),
        f"{status.ettr:.1%}" if status.ettr is not None else "-",
        age(job.submitted_s),
    )


def _fitting(rows: Sequence[dict[str, str]], width: int, columns: list[str]) -> tuple[list[str], dict[str, int]]:
    """The columns that the width allows, and their widths."""
    widths = {name: max([len(name), *(len(row[name]) for row in rows)]) for name in _HEADING}
    for name in _LONG:
        widths[name] = min(widths[name], max(_SHORT_NAME, width // 6))

    def too_wide() -> int:
        return sum(widths[name] for name in columns) + _GAP * (len(columns) - 1) - width

    for name in _SPARE:
        if too_wide() > 0:
            columns.remove(name)
    widths["job"] = max(_SHORT_ID, widths["job"] - max(0, too_wide()))
    return columns, widths


def _joined(row: dict[str, str], columns: Sequence[str], widths: dict[str, int]) -> str:
    """The row as text. A cell that is too long is cut."""
    cells = []
    for name in columns:
        cell, space = row[name], widths[name]
        if len(cell) > space:
            cell = f"..{cell[2 - space :]}" if name in _ENDS_TELL else cell[:space]
        cells.append(cell.rjust(space) if name in _RIGHT else cell.ljust(space))
    return (" " * _GAP).join(cells).rstrip()
