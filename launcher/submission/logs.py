"""`holdfast logs`: finds the log files of ranks, nodes and the supervisor, prints them and follows them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.plain_file import open_plain, read_json
from launcher.core.outcomes import FINAL
from launcher.errors import UsageError
from launcher.history.events import EventReader
from launcher.history.status import JobStatus
from launcher.history.tail import Tail
from launcher.job.registry import KnownJob

_POLL_S = 0.3
_ASK_S = 2.0  # between two requests for the job's status, which may ask Slurm
_NAMED = 8
_MOST_WORKERS = 10_000  # of a node
_LAST_BYTES = 64 << 10


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which logs to print.

    Attributes:
        rank: the worker with this rank. Without rank, node and all_ranks: rank 0.
        all_ranks: whether to print all workers.
        node: all workers of this node, and its runner.
        supervisor: whether to print the supervisor's log instead.
        attempt: number of the attempt; None for all attempts.
        newest: whether to print only the newest attempt.
    """

    rank: int | None = None
    all_ranks: bool = False
    node: str | None = None
    supervisor: bool = False
    attempt: int | None = None
    newest: bool = False


@dataclass(frozen=True, kw_only=True)
class LogFile:
    """A log.

    Attributes:
        source: rank, runner or supervisor.
        attempt: the attempt's number; None for a log that all attempts share.
        rank: the worker's rank.
        node: the runner's node.
    """

    path: Path
    source: str
    attempt: int | None = None
    rank: int | None = None
    node: str | None = None

    @property
    def label(self) -> str:
        """What is put before its lines where several logs are printed."""
        return {"rank": f"rank {self.rank}", "runner": f"{self.node} runner"}.get(self.source, self.source)


Write = Callable[[LogFile, str], None]


class JobLogs:
    """The logs of a job that a selection names.

    Args:
        folder: the job's folder.
        selection: which logs.
    """

    def __init__(self, folder: Path, selection: Selection) -> None:
        self._folder = folder
        self._selection = selection
        self._events = EventReader(folder / "events.jsonl")
        self._nodes: dict[int, tuple[str, ...]] = {}  # the nodes of each attempt

    def files(self, first: int = 0) -> list[LogFile]:
        """The selected files, by attempt and rank.

        Args:
            first: leaves out earlier attempts.

        Raises:
            UsageError: the job has no such attempt, node or rank, or no log yet.
        """
        if self._selection.supervisor:
            path = self._folder / "log" / "supervisor.log"
            if not path.is_file():
                why = f"`holdfast status {self._folder}` says why"
                raise UsageError(f"{path}: not there yet, no supervisor has started; {why}")
            return [LogFile(path=path, source="supervisor")]
        attempts = {number: path for number, path in self._attempts().items() if number >= first}
        found = [file for number, path in sorted(attempts.items()) for file in self._of_attempt(number, path)]
        if not found and attempts:
            raise UsageError(self._missing(attempts))
        runner = self._folder / "log" / f"runner-{self._selection.node}.log"
        if self._selection.node is not None and self._selection.rank is None and runner.is_file():
            found.append(LogFile(path=runner, source="runner", node=self._selection.node))
        return found

    def attempts(self) -> list[int]:
        """The numbers of all attempts that have logs."""
        found = (re.fullmatch(r"attempt-([0-9]{1,9})", path.name) for path in (self._folder / "log").glob("attempt-*"))
        return sorted(int(match[1]) for match in found if match)

    def _attempts(self) -> dict[int, Path]:
        numbers, wanted = self.attempts(), self._selection.attempt
        if not numbers:
            raise UsageError(f"{self._folder}/log: no attempt has begun; `holdfast status {self._folder}` says why")
        if wanted is not None and wanted not in numbers:
            raise UsageError(f"attempt: got {wanted}, expected one of {', '.join(map(str, numbers))}")
        chosen = [wanted] if wanted is not None else numbers[-1:] if self._selection.newest else numbers
        return {number: self._folder / "log" / f"attempt-{number}" for number in chosen}

    def _of_attempt(self, number: int, directory: Path) -> list[LogFile]:
        selection = self._selection
        written = _ranks(directory)
        if selection.node is not None:
            of_node = self._ranks_of_node(number)
            wanted = [rank for rank in of_node if selection.rank in (None, rank)]
        else:
            wanted = written if selection.all_ranks else [selection.rank or 0]
        return [
            LogFile(path=directory / f"rank-{rank}.log", source="rank", attempt=number, rank=rank)
            for rank in sorted({*wanted} & {*written})
        ]

    def _ranks_of_node(self, attempt: int) -> range:
        """The ranks of the node in an attempt. The first is the node rank times the number of workers per node."""
        for event in self._events.new(only=("attempt_start", "takeover")):
            if event["event"] == "attempt_start":
                self._nodes[event["attempt"]] = tuple(event["nodes"])
        nodes = self._nodes.get(attempt, ())
        if self._selection.node not in nodes:
            return range(0)
        workers = _workers_per_node(self._folder)
        first = nodes.index(self._selection.node) * workers
        return range(first, first + workers)

    def _missing(self, attempts: dict[int, Path]) -> str:
        """Says what there is instead of the selected logs."""
        selection, newest = self._selection, max(attempts)
        if selection.node is not None:
            ranks = {rank for number in attempts for rank in self._ranks_of_node(number)}
            if ranks and selection.rank is not None and selection.rank not in ranks:
                return (
                    f"rank: got {selection.rank}, expected one of node {selection.node}: {min(ranks)} to {max(ranks)}"
                )
            if not ranks:
                nodes = ", ".join(self._nodes.get(newest, ())) or "none yet"
                return f"node: got {selection.node}, expected one of attempt {newest}: {nodes}"
        written = _ranks(attempts[newest])
        if not written or selection.node is not None:
            why = f"`holdfast status {self._folder}` says why, -f waits for them"
            return f"{attempts[newest]}: no worker has written anything; {why}"
        there = ", ".join(map(str, written[:_NAMED])) + (f", ... {written[-1]}" if len(written) > _NAMED else "")
        return f"rank: got {selection.rank or 0}, expected one with a log in {attempts[newest]}: {there}"


def print_logs(folder: Path, selection: Selection, lines: int | None, write: Write) -> None:
    """Print the selected logs, one attempt after the other.

    Args:
        folder: the job's folder.
        selection: which logs.
        lines: number of last lines of each rank, over all attempts; None for all lines.
        write: prints one line.
    """
    for file, tail in _open(JobLogs(folder, selection).files(), lines):
        _drain(file, tail, write, ended=True)


def follow_logs(
    folder: Path,
    selection: Selection,
    lines: int | None,
    write: Write,
    now: Callable[[], JobStatus],
    note: Callable[[str], None],
) -> None:
    """Print the selected logs and new lines as they are written, until the job has ended.

    If the selection names no attempt, the files of each new attempt follow.

    Args:
        folder: the job's folder.
        selection: which logs.
        lines: number of last lines of each rank to begin with; None for all lines.
        write: prints one line of a log.
        now: returns the job's status.
        note: prints a line about the job's state while there is no log to print.
    """
    logs = JobLogs(folder, selection)
    tails: dict[Path, tuple[LogFile, Tail]] = {}
    status, asked_s, noted, written, newest = now(), time.monotonic(), "", False, 0
    while True:
        if time.monotonic() - asked_s >= _ASK_S:
            status, asked_s = now(), time.monotonic()
            standing = f"{status.state}, {status.reason}" if status.reason else status.state
            if not written and standing != noted:
                noted = standing
                note(f"nothing is written yet: the job is {standing}")
        at_end = status.state in (*FINAL, "lost")
        try:
            files = logs.files(first=newest)
        except UsageError:
            if at_end and not tails:
                raise
            files = []  # the attempt has not made them yet
        fresh = [file for file in files if file.path not in tails]
        if fresh and (latest := max(file.attempt or 0 for file in fresh)) > newest:
            for file, tail in tails.values():
                written |= _drain(file, tail, write, ended=file.attempt is not None)
            tails = {path: (file, tail) for path, (file, tail) in tails.items() if file.attempt in (None, latest)}
            newest = latest
        tails |= {file.path: (file, tail) for file, tail in _open(fresh, None if written else lines)}
        for path, (file, tail) in list(tails.items()):
            is_over = at_end or (file.attempt is not None and file.attempt < newest)
            written |= _drain(file, tail, write, ended=is_over)
            if is_over:
                tails.pop(path)
        if at_end:
            return
        time.sleep(_POLL_S)


def text_of(folder: Path, selection: Selection, lines: int | None = None) -> str:
    """The selected logs as one text. Lines of several ranks have their rank in front."""
    found: list[tuple[LogFile, str]] = []
    print_logs(folder, selection, lines, lambda file, line: found.append((file, line)))
    several = len({file.label for file, _ in found}) > 1
    return "".join(f"[{file.label}] {line}\n" if several else f"{line}\n" for file, line in found)


def _open(files: list[LogFile], lines: int | None) -> list[tuple[LogFile, Tail]]:
    """The files at their beginning, or such that the last lines of each label are left."""
    opened = [(file, Tail(file.path)) for file in files]
    if lines is None:
        return opened
    left: dict[str, int] = {}
    for file, tail in reversed(opened):
        left[file.label] = left.get(file.label, lines) - tail.skip_to_last(left.get(file.label, lines))
    return opened


def _drain(file: LogFile, tail: Tail, write: Write, ended: bool) -> bool:
    """Writes the new lines of one file. Returns whether there were any."""
    written = False
    for line in tail.lines():
        write(file, line)
        written = True
    if ended and (rest := tail.rest()):
        write(file, rest)
        written = True
    return written


def _ranks(attempt_dir: Path) -> list[int]:
    found = (re.fullmatch(r"rank-([0-9]{1,9})\.log", path.name) for path in attempt_dir.iterdir())
    return sorted(int(match[1]) for match in found if match)


def _workers_per_node(folder: Path) -> int:
    path = folder / "job.json"
    try:
        workers = read_json(path).get("workers_per_node")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    if type(workers) is not int or not 0 < workers <= _MOST_WORKERS:
        raise UsageError(f"{path}: workers_per_node: got {workers!r:.40}, expected 1 to {_MOST_WORKERS}")
    return workers


def last_words(job: KnownJob) -> str:
    """The log that may show why a supervisor died, and its last line."""
    for path, lines in log_ends(job):
        return f"{path} ends with: {lines[-1]}"
    return f"{job.folder} holds no log"


def log_ends(job: KnownJob) -> Iterator[tuple[Path, list[str]]]:
    """The logs that may show why a supervisor died, each with its last lines that are not empty."""
    for name in (f"{job.job_id}_0_log.err", "log/supervisor.log"):
        path = job.folder / name
        try:
            with open_plain(path) as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
                lines = file.read().decode(errors="replace").split("\n")
        except OSError:
            continue
        if spoken := [line.strip() for line in lines if line.strip()]:
            yield path, spoken
