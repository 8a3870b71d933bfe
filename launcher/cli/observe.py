"""`holdfast report`, `metrics` and `dashboard`: the facts of jobs for browsers and for Prometheus."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.blocks import WaitLine, print_json
from launcher.cli.options import JobName, Json, refuse_url

if TYPE_CHECKING:
    from launcher.job.registry import KnownJob
    from launcher.report.facts import RunFacts

_STDOUT = "-"


def report(
    job: JobName,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="The HTML file; - is stdout. Default: report-JOB.html.", metavar="FILE"),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write each table as a CSV file into DIR instead.", metavar="DIR")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a job's report: one HTML file that needs no network, for a job that runs, has ended or was killed.

    It shows the attempts, faults and recoveries, where the time went, the checkpoints of each tier, the nodes, the
    resizes and the settings without secrets.
    """
    from launcher.job.registry import find_job

    found = find_job(job)
    facts = _facts(found)
    if as_json:
        from launcher.report.page import settings_of
        from launcher.report.settings import shown_settings

        shown = dict(shown_settings(settings_of(found.folder)))
        return print_json({"job": found.to_mapping(), "settings": shown, **facts.to_mapping()})
    if csv is not None:
        refuse_url("--csv", csv)
        return _write_tables(found, facts, csv)
    from launcher.report.page import report_page

    with WaitLine("making the page"):
        page = report_page(found, facts)
    if output == _STDOUT:
        return typer.echo(page, nl=False)
    path = Path(output or f"report-{found.job_id}.html")
    refuse_url("--output", path)
    _write(path, page)
    return typer.echo(f"{path}: {facts.events} events, {len(page.encode()) / 1e6:.1f} MB; open it in a browser")


def metrics(
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="The job's id, name or folder.", show_default=False)
    ] = None,
    grafana: Annotated[bool, typer.Option("--grafana", help="Print a Grafana dashboard for these metrics.")] = False,
    alerts: Annotated[bool, typer.Option("--alerts", help="Print alert rules for Prometheus.")] = False,
) -> None:
    """Print a job's metrics in OpenMetrics.

    While a job runs, `metrics` in its job file has them written for node_exporter or served for Prometheus.
    """
    from launcher.errors import UsageError

    if sum((job is not None, grafana, alerts)) != 1:
        raise UsageError("metrics: expected one of JOB, --grafana and --alerts")
    from launcher.report.metrics import ALERTS, GRAFANA, openmetrics

    if job is None:
        return typer.echo((GRAFANA if grafana else ALERTS).read_text(), nl=False)
    from launcher.job.registry import find_job

    found = find_job(job)
    return typer.echo(openmetrics(found.name, found.job_id, _facts(found)), nl=False)


def dashboard(
    port: Annotated[
        int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.", metavar="N", min=0, max=65535)
    ] = 0,
    socket: Annotated[
        Path | None, typer.Option(help="Listen on a Unix socket instead, which only you can open.", metavar="SOCKET")
    ] = None,
) -> None:
    """Show your jobs live in a browser, until Ctrl-C. The address has a secret: who has it sees your jobs.

    It listens on this machine only. From a laptop: `ssh -L 8080:127.0.0.1:PORT HOST`, then open the address with port
    8080.
    """
    from launcher.screen.dashboard import Dashboard

    with Dashboard(port=port, socket_path=socket) as server:
        typer.echo(server.address)
        sys.stdout.flush()
        server.serve()


def _facts(job: KnownJob) -> RunFacts:
    """A job's facts, with the state that its process or Slurm gives."""
    from dataclasses import replace

    from launcher.history.events import read_events
    from launcher.report.facts import facts_of
    from launcher.submission.job_control import corrected

    with WaitLine(f"reading the events of job {job.job_id}"):
        facts = facts_of(read_events(job.folder / "events.jsonl"))
        return replace(facts, status=corrected(job, facts.status))


def _write_tables(job: KnownJob, facts: RunFacts, folder: Path) -> None:
    from launcher.report.page import settings_of
    from launcher.report.tables import tables_of

    folder.mkdir(parents=True, exist_ok=True)
    for table in tables_of(facts, settings_of(job.folder)):
        _write(folder / f"{table.name}.csv", table.csv())
        typer.echo(f"{folder / table.name}.csv: {len(table.rows)} rows")


def _write(path: Path, text: str) -> None:
    """Writes a file that only its owner can read, because reasons and log lines may be confidential."""
    from holdfast.base.files import durable_write

    durable_write(path, text.encode(errors="backslashreplace"))
