"""A job's report as one HTML file without any reference to the network, and the pages of the dashboard.

Names, reasons and settings may come from anybody, so the templates escape every value.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from holdfast.base.plain_file import read_json
from launcher.history.status import JobStatus
from launcher.history.view import duration
from launcher.history.wording import state_style
from launcher.job.registry import KnownJob
from launcher.report import charts
from launcher.report.facts import RunFacts
from launcher.report.tables import clock, share, tables_of

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_ROWS = 500  # of a table; the CSV files have all

_TEMPLATES = Path(__file__).with_name("templates")
_MOODS = {"red": "bad", "green": "good", "yellow": "busy"}


@dataclass(frozen=True, kw_only=True)
class ListedJob:
    """A row of the list of jobs; `key` is the job's part of its page's address."""

    key: str
    job: KnownJob
    status: JobStatus

    @property
    def mood(self) -> str:
        return _mood(self.status.state)

    @property
    def ettr(self) -> str:
        return share(self.status.ettr)


def report_page(job: KnownJob, facts: RunFacts, *, nonce: str = "") -> str:
    """The report of a job.

    Args:
        job: the job.
        facts: its facts.
        nonce: for the dashboard: the number of this answer, which its style and its script have. The page is then live.
    """
    status = facts.status
    return _environment().get_template("report.html.j2").render(
        nonce=nonce, style=_style(), title=f"{job.name} · {job.job_id}", status=status, mood=_mood(status.state),
        reason=(status.reason or "").strip().partition("\n")[0], place=_place(job, status), tiles=_tiles(facts),
        charts={"timeline": charts.timeline(facts), "steps": charts.steps(facts), "rates": charts.rates(facts),
                "share": charts.share_bar(facts)},
        kinds=list(dict.fromkeys(phase.kind for phase in facts.phases)),
        tables=[table.newest(MOST_ROWS) for table in tables_of(facts, settings_of(job.folder))],
        made=clock(facts.made_s), events=facts.events, has_ended=facts.has_ended,
    )  # fmt: skip


def jobs_page(jobs: Iterable[ListedJob], nonce: str) -> str:
    """The list of jobs of the dashboard."""
    return _environment().get_template("jobs.html.j2").render(nonce=nonce, style=_style(), rows=list(jobs))


def settings_of(folder: Path) -> Mapping[str, Any]:
    """The content of job.json; empty if it is missing or damaged."""
    try:
        return read_json(folder / "job.json")
    except (OSError, ValueError):
        return {}


def _tiles(facts: RunFacts) -> list[tuple[str, str]]:
    status = facts.status
    tiles = [
        ("ETTR", share(status.ettr)),
        ("step", str(status.step or "–")),
        ("time", "–" if status.seconds is None else duration(status.seconds)),
        ("attempts", str(len(facts.attempts))),
        ("faults", str(status.faults)),
        ("nodes + spares", f"{len(status.nodes)} + {len(status.spares)}"),
    ]
    if status.steps_per_s:
        tiles.insert(2, ("steps/s", f"{status.steps_per_s:.3g}"))
    tiles += [(f"newest step in {tier}", str(step)) for tier, step in status.committed.items()]
    if facts.counts["requeues"]:
        tiles.append(("requeues", str(facts.counts["requeues"])))
    if facts.counts["takeovers"]:
        tiles.append(("take-overs", str(facts.counts["takeovers"])))
    if status.failed_saves:
        tiles.append(("failed saves", str(status.failed_saves)))
    return tiles


def _place(job: KnownJob, status: JobStatus) -> str:
    run = f" · run {status.run_id}" if status.run_id else ""
    return f"{job.cluster} · {job.folder}{run}{f' · {status.size}' if status.size else ''}"


def _mood(state: str) -> str:
    style = state_style(state).removeprefix("bold").strip()
    return _MOODS.get(style, "")


@cache
def _style() -> Markup:
    return Markup((_TEMPLATES / "style.css").read_text())


@cache
def _environment() -> Environment:
    import jinja2  # here: it takes a tenth of a second

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["base64"] = lambda text: base64.b64encode(text.encode()).decode()
    return made
