"""What a long command waits for is told on a terminal after a while, and nowhere else."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest

from holdfast.blocks import WaitLine
from launcher.cli import main

DEADLINE_S = 20.0


class Terminal(io.StringIO):
    """Tells when something is written."""

    def __init__(self) -> None:
        super().__init__()
        self.is_written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.is_written.set()
        return super().write(text)


def test_a_long_wait_is_told_on_a_terminal_and_the_line_is_removed() -> None:
    out = Terminal()
    with WaitLine("asking Slurm", out, after_s=0.0):
        assert out.is_written.wait(DEADLINE_S)
    assert out.getvalue().startswith("\rasking Slurm, ") and out.getvalue().endswith("\r\x1b[K")


def test_a_short_wait_is_not_told() -> None:
    out = Terminal()
    with WaitLine("asking Slurm", out, after_s=1000.0) as line:
        line.show("half")
    assert out.getvalue() == ""


def test_nothing_is_told_into_a_pipe() -> None:
    out = io.StringIO()
    with WaitLine("asking Slurm", out, after_s=0.0) as line:
        line.show("half")
    assert out.getvalue() == ""


def test_a_program_that_forks_tells_how_far_it_has_come_without_a_thread() -> None:
    out = Terminal()
    before = threading.active_count()
    with WaitLine("checking this node", out, shows_by_itself=False, after_s=0.0) as line:
        line.show("12 of 43 checks")
        assert threading.active_count() == before
    assert "\rchecking this node: 12 of 43 checks, 0 s" in out.getvalue()


def test_a_wait_that_fails_removes_its_line() -> None:
    out = Terminal()
    try:
        with WaitLine("asking Slurm", out, shows_by_itself=False, after_s=0.0) as line:
            line.show()
            raise OSError
    except OSError:
        assert out.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize(
    "words",
    [("status", "JOB"), ("report", "JOB"), ("metrics", "JOB"), ("scale", "JOB", "2"), ("stop", "JOB"),
     ("cancel", "JOB"), ("usage",), ("cluster", "status"), ("node", "heal"), ("doctor",)],
)  # fmt: skip
def test_every_verb_that_may_take_long_tells_what_it_does(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "runs/20261128-032012-9ab9"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").touch()
    told: list[str] = []

    def enter(line: WaitLine) -> WaitLine:
        told.append(line._what)
        raise KeyboardInterrupt  # what comes then is not looked at here

    monkeypatch.setattr(WaitLine, "__enter__", enter)
    main([str(folder) if word == "JOB" else word for word in words])
    assert told
