"""`holdfast logs`: finds the log files of ranks, nodes and the supervisor, prints them and follows them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import UsageError
from launcher.history.events import read_events
from launcher.history.status import JobStatus, status_of
from launcher.plain_file import read_json
from launcher.submission.job_control import OUTCOMES
from launcher.tail import Tail

_POLL_S = 0.3
_ASK_S = 2.0  # between two requests for the job's status, which may ask Slurm
_MOST_WORKERS = 10_000  # of a node


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which logs to print.

    Attributes:
        rank: the worker with this rank. Without rank and node: rank 0.
        node: all workers of this node, and its runner.
        supervisor: whether to print the supervisor's log instead.
        attempt: number of the attempt; None for the newest.
    """

    rank: int | None = None
    node: str | None = None
    supervisor: bool = False
    attempt: int | None = None


def log_files(folder: Path, selection: Selection) -> dict[str, Path]:
    """The selected files, from the label of their lines to the path.

    Raises:
        UsageError: the job has no such attempt, node or rank, or no log yet.
    """
    if selection.supervisor:
        path = folder / "log" / "supervisor.log"
        if not path.is_file():
            raise UsageError(f"{path}: not there yet, no supervisor has started; `holdfast status {folder}` says why")
        return {"supervisor": path}
    attempt_dir = _attempt_dir(folder, selection.attempt)
    if selection.node is None:
        rank = selection.rank or 0
        path = attempt_dir / f"rank-{rank}.log"
        if not path.is_file():
            there = ", ".join(str(number) for number in _ranks(attempt_dir))
            if not there:
                why = f"`holdfast status {folder}` says why, -f waits for them"
                raise UsageError(f"{attempt_dir}: no worker has written anything; {why}")
            raise UsageError(f"rank: got {rank}, expected one with a log in {attempt_dir}: {there}")
        return {f"rank {rank}": path}
    files = {f"rank {rank}": attempt_dir / f"rank-{rank}.log" for rank in _ranks_of(folder, attempt_dir, selection)}
    runner = folder / "log" / f"runner-{selection.node}.log"
    return files | ({f"{selection.node} runner": runner} if runner.is_file() and selection.rank is None else {})


def print_logs(folder: Path, selection: Selection, lines: int | None, write: Callable[[str], None]) -> None:
    """Print the selected logs.

    Args:
        folder: the job's folder.
        selection: which logs.
        lines: number of last lines of each file; None for all lines.
        write: prints one line.
    """
    files = log_files(folder, selection)
    for label, tail in _open(files, lines).items():
        _drain(label, tail, len(files) > 1, write, ended=True)


def follow_logs(
    folder: Path,
    selection: Selection,
    lines: int | None,
    write: Callable[[str], None],
    now: Callable[[], JobStatus],
    note: Callable[[str], None],
) -> None:
    """Print the selected logs and new lines as they are written, until the job has ended.

    If the selection names no attempt, the files of each new attempt follow.

    Args:
        folder: the job's folder.
        selection: which logs.
        lines: number of last lines of each file to begin with; None for all lines.
        write: prints one line of a log.
        now: returns the job's status.
        note: prints a line about the job's state while there is no log to print.
    """
    tails: dict[str, Tail] = {}
    status, asked_s, noted, written = now(), time.monotonic(), "", False
    while True:
        if time.monotonic() - asked_s >= _ASK_S:
            status, asked_s = now(), time.monotonic()
            standing = f"{status.state}, {status.reason}" if status.reason else status.state
            if not written and standing != noted:
                noted = standing
                note(f"nothing is written yet: the job is {standing}")
        at_end = status.state in (*OUTCOMES, "lost")
        try:
            files = log_files(folder, selection)
        except UsageError:
            if at_end:
                raise
            files = {}  # the attempt has not made them yet
        if files and [tail.path for tail in tails.values()] != list(files.values()):
            for label, tail in tails.items():
                _drain(label, tail, len(tails) > 1, write, ended=True)
            tails = _open(files, None if tails else lines)
        for label, tail in tails.items():
            written |= _drain(label, tail, len(tails) > 1, write, ended=at_end)
        if at_end:
            return
        time.sleep(_POLL_S)


def _open(files: dict[str, Path], lines: int | None) -> dict[str, Tail]:
    tails = {label: Tail(path) for label, path in files.items()}
    for tail in tails.values():
        if lines is not None:
            tail.skip_to_last(lines)
    return tails


def _drain(label: str, tail: Tail, labelled: bool, write: Callable[[str], None], ended: bool) -> bool:
    """Writes the new lines of one file. Returns whether there were any."""
    prefix = f"[{label}] " if labelled else ""
    written = False
    for line in tail.lines():
        write(prefix + line)
        written = True
    if ended and (rest := tail.rest()):
        write(prefix + rest)
        written = True
    return written


def _attempt_dir(folder: Path, attempt: int | None) -> Path:
    matches = (re.fullmatch(r"attempt-([0-9]{1,9})", path.name) for path in (folder / "log").glob("attempt-*"))
    found = {int(match[1]): folder / "log" / match[0] for match in matches if match}
    if not found:
        raise UsageError(f"{folder}/log: no attempt has begun; `holdfast status {folder}` says why")
    if attempt is not None and attempt not in found:
        raise UsageError(f"attempt: got {attempt}, expected one of {', '.join(map(str, sorted(found)))}")
    return found[max(found) if attempt is None else attempt]


def _ranks(attempt_dir: Path) -> list[int]:
    found = (re.fullmatch(r"rank-([0-9]{1,9})\.log", path.name) for path in attempt_dir.iterdir())
    return sorted(int(match[1]) for match in found if match)


def _ranks_of(folder: Path, attempt_dir: Path, selection: Selection) -> list[int]:
    """The ranks of a node in an attempt. The first is the node rank times the number of workers per node."""
    number = int(attempt_dir.name[8:])
    nodes = _status_in_attempt(folder, number).nodes
    if selection.node not in nodes:
        raise UsageError(
            f"node: got {selection.node}, expected one of attempt {number}: {', '.join(nodes) or 'none yet'}"
        )
    workers = _workers_per_node(folder)
    first = nodes.index(selection.node) * workers
    ranks = [rank for rank in range(first, first + workers) if selection.rank in (None, rank)]
    if not ranks:
        raise UsageError(
            f"rank: got {selection.rank}, expected one of node {selection.node}: {first} to {first + workers - 1}"
        )
    return ranks


def _workers_per_node(folder: Path) -> int:
    path = folder / "job.json"
    try:
        workers = read_json(path).get("workers_per_node")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    if type(workers) is not int or not 0 < workers <= _MOST_WORKERS:
        raise UsageError(f"{path}: workers_per_node: got {workers!r:.40}, expected 1 to {_MOST_WORKERS}")
    return workers


def _status_in_attempt(folder: Path, attempt: int) -> JobStatus:
    events = read_events(folder / "events.jsonl")
    return status_of(event for event in events if event["event"] == "job_start" or event.get("attempt") == attempt)
