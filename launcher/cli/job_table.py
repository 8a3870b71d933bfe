"""The table of all jobs. A narrow terminal loses the folder first, then the name's end, never the id."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from holdfast.blocks import printable
from launcher.history.status import JobStatus
from launcher.history.view import age
from launcher.history.wording import state_style
from launcher.job.registry import KnownJob

_GAP = 2  # blanks between two columns
_SHORT_NAME = 8
_COLUMNS = ("job", "name", "cluster", "state", "step", "nodes", "age", "folder")
_SPARE = ("cluster", "nodes")  # left out where the name cannot become shorter


def job_table(jobs: Sequence[tuple[KnownJob, JobStatus]], width: int) -> Table:
    """A row for each job.

    Args:
        jobs: each with its state.
        width: of the terminal, in characters.
    """
    columns = list(_COLUMNS)
    rows = [dict(zip(_COLUMNS, map(printable, _cells(job, status)), strict=True)) for job, status in jobs]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in columns}

    def too_wide() -> int:
        return sum(widths[name] for name in columns) + _GAP * (len(columns) - 1) - width

    if too_wide() > 0:
        columns.remove("folder")
    shortest = min(widths["name"], _SHORT_NAME)
    while too_wide() > widths["name"] - shortest and (left_out := [name for name in _SPARE if name in columns]):
        columns.remove(left_out[0])
    widths["name"] = max(shortest, widths["name"] - max(0, too_wide()))
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for name in columns:
        table.add_column(name, no_wrap=True, overflow="ellipsis", width=widths[name])
    for row, (_, status) in zip(rows, jobs, strict=True):
        style = {"state": state_style(status.state)}
        table.add_row(*(Text(row[name], style=style.get(name, "")) for name in columns))
    return table


def _cells(job: KnownJob, status: JobStatus) -> tuple[str, ...]:
    nodes = len(status.nodes) or job.nodes
    step = str(status.step or "-")
    return (
        job.job_id, job.name, job.cluster, status.state, step, str(nodes or "-"), age(job.submitted_s), _place(job)
    )  # fmt: skip


def _place(job: KnownJob) -> str:
    """The folder, relative to the working directory where it lies below it."""
    return os.path.relpath(job.folder) if job.folder.is_relative_to(Path.cwd()) else str(job.folder)
