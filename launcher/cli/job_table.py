"""The table of all jobs. A narrow terminal cuts the folder first, then the name, never the id."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from launcher.history.status import JobStatus
from launcher.history.view import state_style
from launcher.registry import KnownJob
from lifecycle.blocks import printable

_GAP = 2  # blanks between two columns
_SHORT_NAME = 8


def job_table(jobs: Sequence[tuple[KnownJob, JobStatus]], width: int) -> Table:
    """A row for each job.

    Args:
        jobs: each with its state.
        width: of the terminal, in characters.
    """
    heading = ["job", "name", "cluster", "state", "step", "folder"]
    rows = [
        list(map(printable, (job.job_id, job.name, job.cluster, status.state, str(status.step or "-"), _place(job))))
        for job, status in jobs
    ]
    widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
    if sum(widths) + _GAP * (len(widths) - 1) > width:
        heading, rows, widths = heading[:-1], [row[:-1] for row in rows], widths[:-1]
    too_wide = max(0, sum(widths) + _GAP * (len(widths) - 1) - width)
    widths[1] = max(min(widths[1], _SHORT_NAME), widths[1] - too_wide)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for name, size in zip(heading, widths, strict=True):
        table.add_column(name, no_wrap=True, overflow="ellipsis", width=size)
    for row, (_, status) in zip(rows, jobs, strict=True):
        cells = [Text(cell) for cell in row]
        cells[3].stylize(state_style(status.state))
        table.add_row(*cells)
    return table


def _place(job: KnownJob) -> str:
    """The folder, relative to the working directory where it lies below it."""
    return os.path.relpath(job.folder) if job.folder.is_relative_to(Path.cwd()) else str(job.folder)
