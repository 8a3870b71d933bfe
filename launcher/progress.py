"""`holdfast run`: a job on the local cluster, followed in the terminal until it ends."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from launcher.errors import LauncherError
from launcher.history.status import Event, JobStatus, StatusFold
from launcher.history.view import duration, event_line, plural, state_style
from launcher.outcome import Outcome
from launcher.registry import KnownJob
from launcher.submission.job_control import last_words
from launcher.supervisor_process import Process
from launcher.tail import Tail
from lifecycle.blocks import Escaped, printable

_POLL_S = 0.1
_REPORT_EVERY_S = 10.0  # between two lines with the step, if the output is not a terminal
_UNSAID = ("commit", "node_ready", "attempt_end", "job_end")
EXIT_CANCELLED = 13
EXIT_LEFT_RUNNING = 130


def follow(job: KnownJob, console: Console) -> int:
    """Show a local job's events as they come. Ctrl-C cancels the job; a second Ctrl-C returns before the job's end.

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
            return _follow(job, process, console)
    except BaseException:
        if process is not None and process.interrupt():
            with contextlib.suppress(OSError):
                print(f"holdfast run: cancelling job {job.job_id}: its events cannot be printed", file=sys.stderr)
            while process.alive():
                time.sleep(_POLL_S)
        raise


def _follow(job: KnownJob, process: Process | None, console: Console) -> int:
    size = f"{plural(job.nodes, 'node')} + {plural(job.spares, 'spare')}"
    console.print(f"job {job.job_id}: {size}, folder {job.folder}", soft_wrap=True)
    tail = Tail(job.folder / "events.jsonl")
    view = _TerminalView(console, tail) if console.is_terminal else _PlainView(console, tail)
    interrupts = 0
    with view:
        while True:
            try:
                _watch(process, view)
                break
            except KeyboardInterrupt:
                interrupts += 1
                if interrupts > 1 or process is None:
                    view.say(f"not waited for: it ends by itself; `holdfast status {job.job_id}` shows it")
                    return EXIT_LEFT_RUNNING
                process.interrupt()
                view.say("cancelling (press Ctrl-C again not to wait for the job's end)")
    if interrupts and Outcome.read(job.folder) is None:
        console.print("cancelled before it began")
        return EXIT_CANCELLED
    return _conclude(job, view.status(), console)


def _watch(process: Process | None, view: _View) -> None:
    while process is not None and process.alive():
        view.update()
        time.sleep(_POLL_S)
    view.update()


def _conclude(job: KnownJob, status: JobStatus, console: Console) -> int:
    result = Outcome.read(job.folder)
    if result is None:
        if status.state == "requeued":
            console.print(f"stopped at step {status.step}; nothing requeues a job on the local cluster", soft_wrap=True)
            return 1
        raise LauncherError(f"job {job.job_id}: its supervisor ended without an outcome; {last_words(job)}")
    outcome = result.name
    summary = Text.assemble((outcome, state_style(outcome)))
    if result.step is not None:
        summary.append(f" at step {result.step}")
    if status.seconds is not None:
        summary.append(f" after {duration(status.seconds)}")
    if status.faults and outcome == "done":
        summary.append(f", {plural(status.faults, 'fault')} survived")
    if status.failed_saves:
        summary.append(f", {plural(status.failed_saves, 'save')} failed")
    if status.ettr is not None:
        summary.append(f", ETTR {status.ettr:.1%}")
    console.print(summary, soft_wrap=True)
    if outcome in ("done", "halted") and result.reason:
        console.print(Escaped(Text(result.reason, style="yellow")), soft_wrap=True)
    if outcome not in ("done", "halted", "cancelled"):
        rank = next((event["rank"] for event in reversed(status.events) if event.get("rank") is not None), None)
        where = "--supervisor" if rank is None else f"--rank {rank}"
        reason = "\n".join(map(printable, str(result.reason).split("\n")))
        print(f"{reason}\nmore: holdfast logs {job.job_id} {where}", file=sys.stderr)
    return result.exit_code


class _View:
    """Reads a job's events and prints a line for most of them."""

    def __init__(self, console: Console, tail: Tail) -> None:
        self._tail = tail
        self._console = console
        self._history = StatusFold()

    def __enter__(self) -> _View:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self) -> None:
        """Read and show new events."""
        for event in self._tail.events():
            self._history.add(event)
            self._show(event)

    def status(self) -> JobStatus:
        return self._history.status()

    def say(self, line: str) -> None:
        """Print a line that is not an event."""
        self._console.print(line, soft_wrap=True, highlight=False)

    def _show(self, event: Event) -> None:
        if event.get("event") not in _UNSAID:
            self._console.print(Escaped(event_line(event)), soft_wrap=True)


class _PlainView(_View):
    """The view for a log file or a pipe: prints lines only."""

    def __init__(self, console: Console, tail: Tail) -> None:
        super().__init__(console, tail)
        self._next_report_s = 0.0

    def _show(self, event: Event) -> None:
        super()._show(event)
        if event.get("event") == "commit" and time.monotonic() >= self._next_report_s:
            self._next_report_s = time.monotonic() + _REPORT_EVERY_S
            self.say(f"{event_line(event).plain.split('  ')[0]}  {_standing(self.status()).plain}")


class _TerminalView(_View):
    """The view for a terminal: prints lines, and below them redraws one line with the job's state."""

    def __init__(self, console: Console, tail: Tail) -> None:
        super().__init__(console, tail)
        # Refreshed by update(): an error in a thread that refreshes would go unnoticed. stderr stays as it is: where
        # stdout is closed, Live would keep it, and follow() could not print its error.
        self._live = Live(Text("starting"), console=console, auto_refresh=False, transient=True, redirect_stderr=False)

    def __enter__(self) -> _View:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(None, None, None)

    def update(self) -> None:
        super().update()
        self._live.update(_standing(self.status()), refresh=True)


def _standing(status: JobStatus) -> Text:
    """The job's state on one line."""
    speed = f" ({status.steps_per_s:.3g} steps/s)" if status.steps_per_s else ""
    parts = [f"step {status.step}{speed}"] if status.step else []
    parts += [f"committed in {tier}: {step}" for tier, step in status.committed.items()]
    if status.attempt is not None:
        parts.append(f"attempt {status.attempt}")
        parts.append(f"{plural(len(status.nodes), 'node')} + {plural(len(status.spares), 'spare')}")
    if status.seconds is not None:
        parts.append(duration(status.seconds))
    return Text.assemble((status.state, state_style(status.state)), "  ", " · ".join(parts))


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
