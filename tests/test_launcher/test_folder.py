"""A job's folder that cannot be written for a while."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.supervisor import folder
from launcher.supervisor.folder import log_to, probe, until_written


def failing(times: int) -> tuple[Callable[[], None], list[int]]:
    """A write that succeeds after so many failures, and how often it was tried."""
    tried: list[int] = []

    def write() -> None:
        tried.append(len(tried))
        if len(tried) <= times:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/runs/7/result.json")

    return write, tried


def wait(write: Callable[[], None], timeout_s: float, give_up: bool = False) -> str | None:
    return asyncio.run(until_written(write, timeout_s=timeout_s, give_up=lambda: give_up))


def test_a_write_is_repeated_until_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "_AGAIN_S", 0.0)
    write, tried = failing(3)
    assert wait(write, 60.0) is None
    assert len(tried) == 4


def test_after_the_deadline_or_when_told_the_file_and_the_cause_are_named() -> None:
    for timeout_s, give_up in ((0.0, False), (60.0, True)):
        write, tried = failing(2)
        assert wait(write, timeout_s, give_up) == "/runs/7/result.json: No space left on device"
        assert len(tried) == 1


def test_a_line_is_printed_once_where_another_programs_root_logger_prints_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a task of hydra, whose root logger writes to stdout."""
    root, handler = logging.getLogger(), logging.StreamHandler(sys.stdout)
    root.addHandler(handler)
    try:
        with log_to(tmp_path / "supervisor.log"):
            logging.getLogger("launcher.supervisor").info("attempt 0 begins")
        assert logging.getLogger("launcher").propagate
    finally:
        root.removeHandler(handler)
    assert capsys.readouterr().out.count("attempt 0 begins") == 1
    assert (tmp_path / "supervisor.log").read_text().count("attempt 0 begins") == 1


def test_a_probe_leaves_a_folder_and_nothing_in_it(tmp_path: Path) -> None:
    probe(tmp_path / "log" / "attempt-3")
    assert list((tmp_path / "log" / "attempt-3").iterdir()) == []
