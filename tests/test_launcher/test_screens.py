"""What `status --watch` and `top` show: every fact on any terminal, a screen that follows its size, lines in a pipe."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import pwd
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from history_kit import job_folder
from rich.console import Console
from talkers import heartbeat
from test_status import DONE, GROWN, LOST, SWAPPED, TRAINED, event

from launcher.clusters.slurm.scheduler import SlurmScheduler
from launcher.connections.reports import Heartbeats
from launcher.history.pace import Pace
from launcher.history.status import JobStatus, status_of
from launcher.history.steps import NodeSteps
from launcher.history.view import standing
from launcher.job.registry import KnownJob, remember
from launcher.screen.cluster_jobs import ClusterJobs
from launcher.screen.grid import grid, legend, node_cells
from launcher.screen.job import job_lines
from launcher.screen.jobs import job_words, jobs_lines
from launcher.screen.watch import watch_job, watch_jobs
from launcher.screen.words import short, size, sparkline, what_next
from launcher.submission import job_control
from launcher.submission.job_control import JobFollower, status_now
from launcher.submission.request import write_request
from slurm import CommandError, Slurm
from slurm.command import Result

DEADLINE_S = 20.0
KNOWN = KnownJob(job_id="20261128-032012-9ab9", name="gpt", cluster="local", folder=Path("/nowhere"), nodes=2, spares=1)
MANY = [f"gpu-{number:04}" for number in range(1024)]
LARGE = [
    event(0, "job_start", run_id="slurm-c-8", nodes_requested=1024, spares=16, cluster="slurm"),
    event(1, "attempt_start", attempt=0, nodes=MANY, spares=[f"spare-{n}" for n in range(16)], rung="start"),
    event(5, "first_step", attempt=0, step=1, seconds=4.0),
    event(6, "node_out", node="gpu-0077", reason="no heartbeat"),
]


def screen(events: list[dict[str, Any]], width: int, height: int = 24, **changes: Any) -> list[str]:
    now_s = float(events[-1]["time"]) + 2
    status = JobStatus(**{**vars(status_of(events, now_s)), **changes})
    lines = job_lines(KNOWN, status, {}, now_s=now_s, width=width, height=height)
    assert len(lines) <= height and all(line.cell_len <= width for line in lines)
    return [line.plain for line in lines]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_screen_of_a_job_has_every_fact_at_any_width(width: int) -> None:
    text = "\n".join(screen([*SWAPPED, event(45, "commit", attempt=1, tier="memory", step=20, bytes=10**9)], width))
    for fact in ("gpt  training  step 20", "ETTR", "1 fault", "if a node fails: no spare is left", "■ n1", "✗ n2",
                 "memory  step 20  2 s ago", "node_lost n2: spare, 10.0 s, step 20 to 10"):  # fmt: skip
        assert fact in text, text
    assert "job 20261128" in text or width < 80


def test_the_screen_tells_what_boosters_wait_for_and_who_replaces_a_node() -> None:
    text = "\n".join(screen(GROWN[:-2], 100))
    assert "booster 41 is ready and joins at the next resize" in text
    assert "        42 waits in the queue: Priority" in text and "◆ x1" in text
    assert "if a node fails: spare n3 takes over (1 spare left)" in text


def test_a_recovery_that_is_under_way_is_told_with_its_time() -> None:
    assert "node_lost n2: no attempt since, for 3 s, at step 20" in "\n".join(screen(LOST, 80))
    assert "node_lost n2: spare, under way for 5 s, at step 20" in "\n".join(screen(SWAPPED[:-2], 80))


def test_nodes_that_are_behind_are_seen() -> None:
    steps = {"n1": 30, "n2": 24}
    line = next(line for line in screen(TRAINED, 80, node_steps=steps, step=30) if "n2" in line)
    assert line.split()[:6] == ["■", "n1", "30", "▤", "n2", "24"]


def test_steps_that_two_heartbeats_apart_explain_put_no_node_behind() -> None:
    for speed, behind in ((6.0, False), (0.5, True)):
        lines = screen(TRAINED, 80, node_steps={"n1": 604, "n2": 600}, step=604, steps_per_s=speed)
        assert any("▤ n2" in line for line in lines) == behind


@pytest.mark.parametrize(("width", "height"), [(60, 24), (80, 24), (200, 60), (60, 10)])
def test_a_thousand_nodes_fit_on_any_terminal(width: int, height: int) -> None:
    text = "\n".join(screen(LARGE, width, height))
    assert "■ 1023 training" in text and "✗ 1 out" in text and "spare" in text
    if height >= 24:
        assert text.count("■") - 1 + text.count("✗") - 1 == 1024 or "more nodes" in text


def test_a_terminal_without_unicode_gets_ascii() -> None:
    status = status_of([*SWAPPED, event(60, "commit", attempt=1, tier="memory", step=200)], 61)
    lines = job_lines(KNOWN, status, {}, now_s=61, width=60, height=24, is_unicode=False)
    assert all(line.plain.isascii() for line in lines)
    cells = node_cells(status)
    assert legend(cells, is_unicode=False).plain == "# 2 training  x 1 out"
    assert grid(cells, 8, 1, is_unicode=False)[0].plain.isascii()


@pytest.mark.parametrize(
    ("events", "changes", "job", "words"),
    [
        ([], {"reason": "waits in the queue: Priority"}, {}, "waits in the queue: Priority"),
        (TRAINED[:1], {}, {}, "the first attempt begins when enough nodes are ready"),
        (TRAINED[:4], {}, {}, "the workers of attempt 0 start"),
        (TRAINED[:5], {}, {}, "attempt 0 finishes its first step"),
        (LOST[:-1], {}, {}, "attempt 1 begins: spare n3 takes over"),
        ([*LOST, event(32, "backoff", seconds=30.0)], {}, {}, "the next attempt begins in 28 s"),
        (GROWN, {}, {}, "the job continues in another size: 2 to 4 nodes"),
        (TRAINED, {"stop": "after step 90"}, {}, "the job saves and ends after step 90"),
        (TRAINED, {"spares": ()}, {}, "if a node fails: no spare is left, the job is requeued"),
        (TRAINED, {"spares": (), "cluster": "local"}, {}, "the job ends with too_few_nodes"),
        (TRAINED, {"spares": ()}, {"elastic": {"min_nodes": 1}}, "continues on fewer nodes"),
        (DONE, {}, {}, "nothing: done at step 21"),
    ],
)
def test_what_happens_next_is_told(
    events: list[dict[str, Any]], changes: dict[str, Any], job: dict[str, Any], words: str
) -> None:
    now_s = float(events[-1]["time"]) + 2 if events else 0.0
    status = JobStatus(**{**vars(status_of(events, now_s)), **changes})
    assert words in "; ".join(what_next(status, job, now_s))


def test_the_next_save_of_each_tier_is_foretold() -> None:
    commits = [event(19 + step, "commit", attempt=0, tier="memory", step=10 + 5 * step) for step in range(1, 4)]
    status = status_of([*TRAINED, *commits], 23)
    assert what_next(status, {}, 23)[0] == "saves: memory step 30 in 2 s"


def test_steps_are_spread_over_the_time_in_a_bounded_number_of_parts() -> None:
    pace = Pace()
    pace.began(100.0, 0)
    for step in range(1, 2001):
        pace.reached(100.0 + 10 * step, 5 * step)
    rates = pace.rates(20_100.0)
    assert 60 <= len(rates) <= 120 and all(rate == pytest.approx(0.5) for rate in rates)
    pace.stopped()
    pace.began(21_400.0, 9_000)
    pace.reached(21_500.0, 9_050)
    assert sum(rate * pace.part_s for rate in pace.rates(21_500.0 + pace.part_s)) <= 10_050
    assert 0.0 in pace.rates(21_500.0), "the time without training"


def test_the_time_until_a_hang_was_noticed_has_no_steps() -> None:
    hang = event(60, "fault", attempt=0, kind="hang", node="n1", step=20, detect=30.0)
    rates = status_of([*TRAINED, hang], 60).pace
    assert rates[-25:] == (0.0,) * 25 and rates[-35] > 0


def test_a_sparkline_has_the_shape_of_its_rates() -> None:
    assert sparkline([0, 1, 2, 4, 8], 80, is_unicode=True) == " ▂▃▅█"
    assert sparkline([8.0] * 300 + [1.0] * 100, 8, is_unicode=False) == "######.."
    assert len(sparkline(list(range(1, 1000)), 40, is_unicode=True)) == 40
    assert sparkline([], 10, is_unicode=True) == sparkline([0.0], 10, is_unicode=True) == ""


@pytest.mark.parametrize(("value", "text"), [(8, "8 s"), (180, "3 min"), (9000, "2.5 h"), (300_000, "3.5 d")])
def test_times_have_one_unit(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(("value", "text"), [(12, "12 B"), (68_065_728, "68.1 MB"), (4.4e12, "4.4 TB")])
def test_bytes_have_a_decimal_unit(value: float, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize("width", [60, 80, 200])
def test_top_lists_running_jobs_first_and_fits(width: int) -> None:
    jobs = [
        (KnownJob(**{**vars(KNOWN), "job_id": f"20261128-03201{n}-aaa{n}", "submitted_s": float(n)}), status)
        for n, status in enumerate((status_of(SWAPPED, 45), status_of(DONE, 99), status_of(TRAINED, 20)))
    ]
    lines = jobs_lines(jobs, clock="12:00:00", width=width, height=24)
    assert all(line.cell_len <= width for line in lines)
    head, heading, *rows = [line.plain for line in lines]
    assert head == "holdfast top  12:00:00  2 training  1 done"
    assert ["aaa2" in rows[0], "aaa0" in rows[1], "aaa1" in rows[2]] == [True] * 3
    assert "state" in heading and "ETTR" in heading and "training" in rows[0] and "done" in rows[2]
    assert jobs_lines(jobs, clock="", width=width, height=4)[-1].plain.startswith("and 2 more")


SLOW = event(18, "straggler", attempt=0, node="n2", rank=3, ranks=1, factor=1.3, part="data", excess_s=0.02, since=9.0)


def test_a_slow_node_is_seen_on_every_screen_until_it_is_as_fast_again() -> None:
    slow, over = [*TRAINED, SLOW], [*TRAINED, SLOW, event(19, "straggler_over", attempt=0, node="n2")]
    words = "rank 3 works 1.30 times as long as the others, longer in data loading: 20 ms more for each step"
    for events, is_slow in ((slow, True), (over, False)):
        status = status_of(events, 20)
        heading, row = [line.plain for line in jobs_lines([(KNOWN, status)], clock="", width=80, height=9)][1:]
        assert ("slow" in heading.split(), " n2 " in row) == (is_slow, is_slow)
        assert ("slow: n2" in job_words(KNOWN, status), "slow: n2" in standing(status).plain) == (is_slow, is_slow)
        for width in (80, 200):
            text = " ".join("\n".join(screen(events, width)).split())
            assert (f"slow n2 {words}" in text, "▤ n2" in text) == (is_slow, is_slow), text


def test_top_shows_the_end_of_a_long_nodes_name_and_how_many_more_are_slow() -> None:
    more = [{**SLOW, "node": f"rack7-gpu-h100-{number:04}"} for number in (12, 13)]
    line = jobs_lines([(KNOWN, status_of([*TRAINED, *more], 20))], clock="", width=80, height=9)[2].plain
    assert "..100-0012 +1" in line


class Queue(Slurm):
    """A cluster with these rows of squeue; None: it does not answer."""

    def __init__(self, *rows: str) -> None:
        self.rows: tuple[str, ...] | None = rows
        super().__init__(run=self._answer)

    def _answer(self, argv: Sequence[str], **_: Any) -> Result:
        done = Result(argv=tuple(argv), returncode=0, stdout="", stderr="no controller", seconds=0.0)
        if self.rows is None:
            raise CommandError(done, "no controller")
        return replace(done, stdout="\n".join(self.rows))


def row(job_id: str, folder: Path | str, user: int, state: str = "RUNNING", reason: str = "None") -> str:
    return "\x1f".join((job_id, str(user), state, reason, "2", f"{folder}/{job_id}_0_log.out", "/nowhere", ""))


def of_slurm(runs: Path, job_id: str, events: list[dict[str, Any]]) -> Path:
    """A job's folder in `runs`."""
    own = [each | {"run_id": f"slurm-c-{job_id}"} if each["event"] == "job_start" else each for each in events]
    folder = job_folder(runs / job_id, own)
    write_request(folder, {}, "slurm")
    return folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a folder another user's")
def test_top_for_all_users_has_the_jobs_of_slurms_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me, other = os.getuid(), 4242
    trains, waits, theirs = (of_slurm(tmp_path, str(n), events) for n, events in ((7, TRAINED), (8, []), (9, TRAINED)))
    os.chown(theirs, other, -1)
    (tmp_path / "plain").mkdir()
    queue = Queue(
        row("7", trains, me), row("8", waits, me, "PENDING", "Priority"), row("9", theirs, other),
        row("10", theirs, me),  # another user's job in this one's name
        row("11", trains, me), row("12", tmp_path / "plain", me), row("13", "/" + "x" * 300, me),
        "14\x1f0\x1fRUNNING", "",
    )  # fmt: skip
    jobs = ClusterJobs(queue)
    now = {job.job_id: status for job, status in jobs.now()}
    assert {job_id: status.state for job_id, status in now.items()} == {
        "7": "training", "8": "pending", "9": "training",
    }  # fmt: skip
    assert now["8"].reason == "waits in the queue: Priority"
    assert jobs.users == {"7": pwd.getpwuid(me).pw_name, "8": pwd.getpwuid(me).pw_name, "9": "4242"}
    assert jobs.remark == "not shown: 1 job with folders that cannot be read"
    for width in (60, 80, 200):
        lines = jobs_lines(jobs.now(), clock="", width=width, height=24, users=jobs.users, remark=jobs.remark)
        assert all(line.cell_len <= width for line in lines)
        assert "user" in lines[1].plain and any("4242" in line.plain for line in lines)
    monkeypatch.setattr("launcher.screen.cluster_jobs._ASK_EVERY_S", 0.0)
    queue.rows = (row("7", trains, me, "FAILED"), row("8", waits, me, "CANCELLED"))
    assert sorted(status.state for _, status in jobs.now()) == ["cancelled", "lost"]
    queue.rows = None
    assert len(jobs.now()) == 2 and "Slurm does not answer" in jobs.remark


# The steps of the nodes between two commits.


def test_the_steps_of_the_heartbeats_are_those_of_the_status(tmp_path: Path) -> None:
    heartbeats = Heartbeats()
    assert heartbeats.steps() is None
    heartbeats.add("n1", heartbeat(attempt=0, activity=1, step=12, slowest=12))
    heartbeats.add("n2", heartbeat(attempt=0, activity=1, step=12, slowest=9))
    steps = heartbeats.steps()
    assert steps == NodeSteps(attempt=0, step=12, nodes={"n1": 12, "n2": 9})
    steps.write(tmp_path)
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in TRAINED))
    status = status_now(KnownJob(**{**vars(KNOWN), "folder": tmp_path}))
    assert (status.step, status.node_steps) == (12, {"n1": 12, "n2": 9})


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"attempt": 1, "step": 99, "nodes": {}}', '{"attempt": 0, "step": "x", "nodes": {}}',
     '{"attempt": 0, "step": 99, "nodes": {"n1": -1}}', '{"attempt": 0, "step": 99, "nodes": 3}'],
)  # fmt: skip
def test_steps_of_another_attempt_or_unreadable_ones_do_not_count(content: str, tmp_path: Path) -> None:
    (tmp_path / "steps.json").write_text(content)
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in TRAINED))
    status = status_now(KnownJob(**{**vars(KNOWN), "folder": tmp_path}))
    assert (status.step, status.node_steps) == (10, {})


def test_slurm_is_asked_every_few_seconds_and_at_each_new_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def corrected(job: KnownJob, status: JobStatus) -> JobStatus:
        asked.append(status.state)
        return JobStatus(**{**vars(status), "reason": "as Slurm says"})

    monkeypatch.setattr(job_control, "corrected", corrected)
    monkeypatch.setattr(SlurmScheduler, "poll_s", 1000.0)
    follower = JobFollower(KnownJob(**{**vars(KNOWN), "folder": tmp_path, "cluster": "slurm"}))
    with (tmp_path / "events.jsonl").open("a") as file:
        for each in TRAINED:
            file.write(json.dumps(each) + "\n")
            file.flush()
            assert follower.status().reason == "as Slurm says"
    assert asked == ["starting", "running", "training"]


# On a terminal and in a pipe.


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownJob:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    known = KnownJob(**{**vars(KNOWN), "folder": tmp_path})
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in SWAPPED))
    remember(known)
    return known


def test_in_a_pipe_the_watch_prints_the_state_new_events_and_the_end(
    job: KnownJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.screen.watch._POLL_S", 0.02)
    out = io.StringIO()
    watch = threading.Thread(target=watch_job, args=(job, Console(file=out, width=200)))
    watch.start()
    _until(lambda: "training  step 11" in out.getvalue())
    with (job.folder / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in [event(45, "problem", what="s3 is slow"), *DONE[-2:]])
    watch.join(DEADLINE_S)
    lines = [line.partition("  ")[2] for line in out.getvalue().splitlines()]
    assert [line.partition("  ")[0] for line in lines] == [
        "training", "problem: s3 is slow", "attempt 1 ended: done at step 21", "end: done at step 21",
        "done at step 21",
    ]  # fmt: skip
    assert "\x1b" not in out.getvalue()


def test_in_a_pipe_top_prints_each_new_state_and_what_trains_now_and_then(
    job: KnownJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, looks = io.StringIO(), 0

    def pause(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            with (job.folder / "events.jsonl").open("a") as file:
                file.writelines(json.dumps(each) + "\n" for each in DONE[-2:])
        if looks == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("launcher.screen.watch.time.sleep", pause)
    with pytest.raises(KeyboardInterrupt):
        watch_jobs(Console(file=out, width=200))
    lines = [line.split()[3:7] for line in out.getvalue().splitlines()]
    assert [line[0] for line in lines] == ["training", "done"], out.getvalue()


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, arguments: list[str], width: int) -> None:
        self._main, child = pty.openpty()
        self._size(child, width)
        program = [sys.executable, "-c", "import sys; from launcher.cli import main; sys.exit(main(sys.argv[1:]))"]
        ours = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        environment = {**ours, "TERM": "xterm-256color", "LANG": "C.UTF-8", "NO_COLOR": "1"}
        self._process = subprocess.Popen(
            [*program, *arguments], stdin=child, stdout=child, stderr=child, env=environment, start_new_session=True
        )
        os.close(child)
        self.text = ""

    def _size(self, descriptor: int, width: int) -> None:
        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))

    def resize(self, width: int) -> None:
        self._size(self._main, width)
        os.kill(self._process.pid, signal.SIGWINCH)

    def read_until(self, words: str) -> str:
        """What is written up to these words."""
        self.text = ""
        deadline_s = time.monotonic() + DEADLINE_S
        while words not in self.text:
            assert time.monotonic() < deadline_s, self.text
            self._read()
        return self.text

    def _read(self) -> None:
        if select.select([self._main], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):  # nobody has the other end any more
                self.text += os.read(self._main, 65536).decode(errors="replace")

    def press(self, key: bytes) -> None:
        os.write(self._main, key)

    def end(self) -> int:
        """The exit code; reads what is still written, or the program would wait for it."""
        deadline_s = time.monotonic() + DEADLINE_S
        while self._process.poll() is None:
            assert time.monotonic() < deadline_s
            self._read()
        return self._process.returncode

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._main)


@pytest.fixture
def watched(job: KnownJob) -> Iterator[Terminal]:
    terminal = Terminal(["status", str(job.folder), "--watch"], 60)
    yield terminal
    terminal.close()


def test_a_terminal_shows_the_screen_follows_its_size_and_gives_it_back(watched: Terminal) -> None:
    narrow = watched.read_until("step 11")
    assert "\x1b[?1049h" in narrow, "the alternate screen"
    assert "\x1b[2J" not in narrow and "\x1b[3" not in narrow, "nothing is erased, no colour"
    watched.read_until("node_lost")
    watched.resize(200)
    assert "(noticed within 1.0 s)" in watched.read_until("(noticed within 1.0 s)"), "the whole event"
    watched.press(b"q")
    assert watched.end() == 0 and "\x1b[?1049l" in watched.text


def test_the_screen_ends_with_the_job_and_leaves_its_end(watched: Terminal, job: KnownJob) -> None:
    watched.read_until("step 11")
    with (job.folder / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in DONE[-2:])
    watched.read_until("done at step 21")
    assert watched.end() == 0


def test_top_shows_the_job_until_q(job: KnownJob) -> None:
    terminal = Terminal(["top"], 80)
    try:
        terminal.read_until("20261128-032012-9ab9")
        terminal.press(b"q")
        assert terminal.end() == 0
    finally:
        terminal.close()


def _until(condition: Any) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
