"""`holdfast logs`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.blocks import printable
from launcher.cli.completion import attempts_of_job, nodes_of_job, ranks_of_job
from launcher.cli.log_text import log_line
from launcher.cli.options import JobName, Json

if TYPE_CHECKING:
    from launcher.submission.logs import LogFile, Selection


def logs(
    job: JobName,
    rank: Annotated[
        str | None,
        typer.Option(help="One worker, or all. Default: rank 0.", metavar="R|all", autocompletion=ranks_of_job),
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="All workers of one node.", metavar="NODE", autocompletion=nodes_of_job)
    ] = None,
    supervisor: Annotated[bool, typer.Option("--supervisor", help="The supervisor's log instead.")] = False,
    attempt: Annotated[
        str | None,
        typer.Option(help="Default: all, one after the other.", metavar="K|newest", autocompletion=attempts_of_job),
    ] = None,
    lines: Annotated[int | None, typer.Option("--lines", "-n", help="Only the last N lines.", metavar="N")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the output until the job ends.")] = False,
    as_json: Json = False,
) -> None:
    """Print the output of a job's workers, by default that of rank 0 in all attempts.

    With --json each line is a JSON object with source (rank, runner or supervisor), attempt, rank, node and line.
    """
    from launcher.errors import UsageError
    from launcher.history.stored import StatusReader
    from launcher.job.registry import find_job
    from launcher.submission.job_control import status_now
    from launcher.submission.logs import Selection, follow_logs, print_logs

    if lines is not None and lines < 0:
        raise UsageError(f"--lines: got {lines}, expected 0 or more")
    found = find_job(job)
    selection = Selection(
        rank=_number("--rank", rank, "all"),
        all_ranks=rank == "all",
        node=node,
        supervisor=supervisor,
        attempt=_number("--attempt", attempt, "newest"),
        newest=attempt == "newest",
    )
    printer = _JsonPrinter() if as_json else _Printer(selection)
    if follow:
        reader = StatusReader(found.folder)

        def note(line: str) -> None:
            typer.echo(printable(f"holdfast logs: {line}"), err=True)

        follow_logs(found.folder, selection, lines, printer.write, lambda: status_now(found, reader), note)
    else:
        print_logs(found.folder, selection, lines, printer.write)


class _Printer:
    """Prints lines, with a label where several logs are selected, and a line where another attempt begins."""

    def __init__(self, selection: Selection) -> None:
        self._is_labelled = selection.all_ranks or (selection.node is not None and selection.rank is None)
        self._attempt: int | None = None

    def write(self, file: LogFile, line: str) -> None:
        if file.attempt is not None and file.attempt != self._attempt:
            if self._attempt is not None:
                typer.echo(f"--- attempt {file.attempt} ---")
            self._attempt = file.attempt
        typer.echo(log_line(f"[{file.label}] {line}" if self._is_labelled else line))


class _JsonPrinter:
    """Prints each line as a JSON object on one line."""

    def write(self, file: LogFile, line: str) -> None:
        facts = {"source": file.source, "attempt": file.attempt, "rank": file.rank, "node": file.node, "line": line}
        typer.echo(json.dumps(facts))


def _number(option: str, text: str | None, word: str) -> int | None:
    """The number that an option names; None for its word."""
    from launcher.errors import UsageError

    if text is None or text == word:
        return None
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"{option}: got {text!r}, expected a number or {word}")
    return int(text)
