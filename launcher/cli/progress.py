"""`holdfast run`: a job on the local cluster, followed in the terminal until it ends."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from holdfast.blocks import Escaped, printable
from launcher.cli.folder_watch import FolderWatch
from launcher.core.outcomes import JobOutcome
from launcher.errors import LauncherError
from launcher.history.outcome import Outcome
from launcher.history.status import Event, JobStatus, StatusFold
from launcher.history.tail import Tail
from launcher.history.view import duration, event_line, standing
from launcher.history.wording import plural, state_style
from launcher.job.registry import KnownJob
from launcher.job.supervisor_process import Process
from launcher.submission.logs import last_words

_POLL_S = 0.1
_REPORT_EVERY_S = 10.0  # between two lines with the step, if the output is not a terminal
_NOT_SHOWN = ("commit", "node_ready", "attempt_end", "job_end")
_SAVED = re.compile(r"\b(saved step \d+ to memory|committed step \d+ in (the memory|tier)\b)")
_RANK_0 = "[rank 0] "
EXIT_LEFT_RUNNING = 130


def follow(job: KnownJob, console: Console, *, shows_output: bool = True, as_json: bool = False) -> int:
    """Show a local job's events as they come, and the lines of its rank 0.

    Ctrl-C cancels the job; a second Ctrl-C returns before the job's end.

    Args:
        job: the job.
        console: where to show it.
        shows_output: whether to show the lines of rank 0.
        as_json: whether to print each event as a JSON object on one line, and nothing else.

    An error cancels the job too, for example a closed pipe or a full disk behind stdout. It is raised after the job's
    end.

    Returns:
        The exit code of the job's outcome.

    Raises:
        LauncherError: the supervisor died before it wrote an outcome.
        OSError, SystemExit: the events cannot be written. rich raises SystemExit for a closed pipe.
    """
    process = Process.read(job.folder)
    try:
        with _ended_by_signals():
            return _follow(job, process, _view_of(job, console, shows_output, as_json))
    except BaseException:
        if process is not None and process.interrupt():
            with contextlib.suppress(OSError):
                print(f"holdfast run: cancelling job {job.job_id}: its events cannot be printed", file=sys.stderr)
            while process.alive():
                time.sleep(_POLL_S)
        raise


def _view_of(job: KnownJob, console: Console, shows_output: bool, as_json: bool) -> _View:
    if as_json:
        return _JsonView(job, console)
    output = _Output(job.folder) if shows_output else None
    return (_TerminalView if console.is_terminal else _PlainView)(job, console, output)


def _follow(job: KnownJob, process: Process | None, view: _View) -> int:
    interrupts, folder = 0, FolderWatch(job.folder)
    with view:
        while True:
            try:
                _watch(process, view, folder)
                break
            except KeyboardInterrupt:
                interrupts += 1
                if interrupts > 1 or process is None:
                    view.say(f"not waited for: it ends by itself; `holdfast status {job.job_id}` shows it")
                    return EXIT_LEFT_RUNNING
                process.interrupt()
                view.say("cancelling (press Ctrl-C again not to wait for the job's end)")
    if interrupts and Outcome.read(job.folder) is None:
        return _cancelled(job, view)
    return view.conclude()


def _cancelled(job: KnownJob, view: _View) -> int:
    """The end of a job whose supervisor has written no outcome."""
    words = "cancelled before it began"
    if view.status().state != "pending":
        view.say(f"cancelled; {job.folder} has no outcome of it: is there space, and may you write there?")
        return JobOutcome.CANCELLED.exit_code
    with contextlib.suppress(OSError):  # the folder may be gone; then no status can be shown either
        outcome = Outcome(name=JobOutcome.CANCELLED, step=None, reason=words, seconds=0.0)
        outcome.write(job.folder, job.job_id)
    view.say(words)
    return JobOutcome.CANCELLED.exit_code


def _watch(process: Process | None, view: _View, folder: FolderWatch) -> None:
    while process is not None and process.alive():
        view.update()
        if (news := folder.news()) is not None:
            view.say(news)
        time.sleep(_POLL_S)
    view.update()


def _conclude(job: KnownJob, status: JobStatus, console: Console) -> int:
    result = Outcome.read(job.folder)
    if result is None:
        if status.state == "requeued":
            console.print(f"stopped at step {status.step}; nothing requeues a job on the local cluster", soft_wrap=True)
            return 1
        if not job.folder.exists():
            raise LauncherError(
                f"job {job.job_id}: ended, because {job.folder} was removed while it ran; start it again"
            )
        raise LauncherError(f"job {job.job_id}: its supervisor ended without an outcome; {last_words(job)}")
    outcome = result.name
    summary = Text.assemble((outcome, state_style(outcome)))
    if result.step is not None:
        summary.append(f" at step {result.step}")
    if status.seconds is not None:
        summary.append(f" after {duration(status.seconds)}")
    if status.faults and outcome is JobOutcome.DONE:
        summary.append(f", {plural(status.faults, 'fault')} survived")
    if status.failed_saves:
        summary.append(f", {plural(status.failed_saves, 'save')} failed")
    if status.ettr is not None:
        summary.append(f", ETTR {status.ettr:.1%}")
    console.print(summary, soft_wrap=True)
    if outcome in (JobOutcome.DONE, JobOutcome.HALTED) and result.reason:
        style = "yellow" if status.unsaved or status.went_back or status.idle_at is not None else ""
        console.print(Escaped(Text(result.reason, style=style)), soft_wrap=True)
    if outcome.is_failure:
        rank = next((event["rank"] for event in reversed(status.events) if event.get("rank") is not None), None)
        where = "--supervisor" if rank is None else f"--rank {rank}"
        reason = "\n".join(map(printable, str(result.reason).split("\n")))
        print(f"{reason}\nmore: holdfast why {job.job_id}; holdfast logs {job.job_id} {where}", file=sys.stderr)
    return result.exit_code


class _View:
    """Reads a job's events and prints a line for most of them."""

    def __init__(self, job: KnownJob, console: Console, output: _Output | None = None) -> None:
        self._job = job
        self._tail = Tail(job.folder / "events.jsonl")
        self._output = output
        self._console = console
        self._history = StatusFold()

    def __enter__(self) -> _View:
        self._greet()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self) -> None:
        """Read and show what is new: first what rank 0 has written, so that its last words come before its fault."""
        if self._output is not None and (lines := self._output.lines(self.status().attempt)):
            self._show_output(lines)
        for event in self._tail.events():
            self._history.add(event)
            self._show(event)

    def status(self) -> JobStatus:
        return self._history.status()

    def say(self, line: str) -> None:
        """Print a line that is not an event."""
        self._console.print(line, soft_wrap=True, highlight=False)

    def conclude(self) -> int:
        """Show the job's end. Returns the exit code of its outcome."""
        if self._output is not None and (rest := self._output.lines(None)):
            self._show_output(rest)
        return _conclude(self._job, self.status(), self._console)

    def _greet(self) -> None:
        size = f"{plural(self._job.nodes, 'node')} + {plural(self._job.spares, 'spare')}"
        self.say(f"job {self._job.job_id}: {size}, folder {self._job.folder}")

    def _show(self, event: Event) -> None:
        is_usual = event.get("event") == "restore" and event.get("step") and not event.get("skipped")
        if event.get("event") not in _NOT_SHOWN and not is_usual:  # the load follows, or a line begins
            self._console.print(Escaped(event_line(event)), soft_wrap=True)

    def _show_output(self, lines: list[str]) -> None:
        text = Text("\n").join(Text.assemble((_RANK_0, "dim"), printable(line)) for line in lines)
        self._console.print(text, soft_wrap=True)


class _Output:
    """The lines of rank 0, over all attempts, without those in which Holdfast tells of a save: the status has it."""

    def __init__(self, job_dir: Path) -> None:
        self._dir = job_dir
        self._attempt: int | None = None
        self._tail: Tail | None = None

    def lines(self, attempt: int | None) -> list[str]:
        """The new lines, those of an earlier attempt first. Of a line that a progress bar rewrites, only its end."""
        found = list(self._tail.lines()) if self._tail is not None else []
        if attempt != self._attempt:
            found += [self._tail.rest()] if self._tail is not None else []
            self._attempt = attempt
            self._tail = Tail(self._dir / "log" / f"attempt-{attempt}" / "rank-0.log")
            found += self._tail.lines()
        shown = (line.rstrip().rpartition("\r")[2] for line in found)
        return [line for line in shown if line and not _SAVED.search(line)]


class _PlainView(_View):
    """The view for a log file or a pipe: prints lines only."""

    _next_report_s = 0.0

    def _show(self, event: Event) -> None:
        super()._show(event)
        if event.get("event") == "commit" and time.monotonic() >= self._next_report_s:
            self._next_report_s = time.monotonic() + _REPORT_EVERY_S
            self.say(f"{event_line(event).plain.split('  ')[0]}  {standing(self.status()).plain}")


class _JsonView(_View):
    """The view for programs: each event as a JSON object on one line."""

    def _greet(self) -> None:
        self._print({"event": "submitted", **self._job.to_mapping()})

    def _show(self, event: Event) -> None:
        self._print(event)

    def say(self, line: str) -> None:
        print(f"holdfast run: {line}", file=sys.stderr)

    def conclude(self) -> int:
        result = Outcome.read(self._job.folder)
        return super().conclude() if result is None else result.exit_code

    def _print(self, facts: Mapping[str, object]) -> None:
        print(json.dumps(facts), file=self._console.file, flush=True)


class _TerminalView(_View):
    """The view for a terminal: prints lines, and below them redraws one line with the job's state."""

    def __init__(self, job: KnownJob, console: Console, output: _Output | None = None) -> None:
        super().__init__(job, console, output)
        # Refreshed by update(): an error in a thread that refreshes would go unnoticed. stderr stays as it is: where
        # stdout is closed, Live would keep it, and follow() could not print its error.
        self._live = Live(Text("starting"), console=console, auto_refresh=False, transient=True, redirect_stderr=False)

    def __enter__(self) -> _View:
        super().__enter__()
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(None, None, None)

    def update(self) -> None:
        super().update()
        line = standing(self.status())
        line.truncate(self._console.width, overflow="ellipsis")
        self._live.update(line, refresh=True)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Treats SIGTERM and SIGHUP (a closed terminal) like Ctrl-C, because the job runs in the foreground."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    former = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
