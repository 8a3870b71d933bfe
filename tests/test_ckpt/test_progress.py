"""What is said of a verb that takes a while, and when nothing is."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from test_cli_ckpt import run
from test_tiers import commit, save_id

from ckpt.cli import progress
from ckpt.cli.progress import Bar
from ckpt.tiers.posix import SharedTier


def spoken(*, terminal: bool, quiet: bool = False) -> list[str]:
    """What has been said after 0, 2.1, 3, 12.2 and 13 seconds, 100 bytes each."""
    now, out, said = [0.0], io.StringIO(), []
    console = Console(file=out, force_terminal=terminal, width=100)
    with Bar("copying", 1000, quiet=quiet, console=console, clock=lambda: now[0]) as bar:
        for second in (0.0, 2.1, 3.0, 12.2, 13.0):
            now[0] = second
            bar.advance(100)
            said.append(out.getvalue())
    return said


def test_a_terminal_shows_a_bar_once_it_has_taken_two_seconds() -> None:
    said = spoken(terminal=True)
    assert said[0] == "" and "copying" in said[1] and "0.2/1.0 kB" in said[1]


def test_elsewhere_a_line_comes_every_ten_seconds_with_bytes_rate_and_time_left() -> None:
    said = spoken(terminal=False)
    first = "copying: 200 bytes of 1.0 kB, 95 bytes/s, 8 s left\n"
    assert said == ["", first, first, *[f"{first}copying: 400 bytes of 1.0 kB, 32 bytes/s, 18 s left\n"] * 2]


def test_a_terminal_shows_what_is_waited_for_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SHOW_AFTER_S", 0.0)
    is_shown = threading.Event()

    class Terminal(io.StringIO):
        def write(self, text: str) -> int:
            is_shown.set() if "listing s3://b" in text else None
            return super().write(text)

    out = Terminal()
    with progress.Waiting("listing s3://b", console=Console(file=out, force_terminal=True)):
        assert is_shown.wait(20)
    assert out.getvalue().endswith("\x1b[2K"), "the line is removed"
    for console, quiet in ((Console(file=out), False), (Console(file=out, force_terminal=True), True)):
        before = out.getvalue()
        with progress.Waiting("listing s3://b", console=console, quiet=quiet):
            pass
        assert out.getvalue() == before


@pytest.mark.parametrize(
    "words",
    [
        ("ls",),
        ("verify",),
        ("copy", "there"),
        ("gc", "--keep", "9"),
        ("export", "--dcp", "out"),
        ("rollback", "--to", "3"),
    ],
)
def test_every_verb_that_lists_a_place_tells_that_it_does(
    words: tuple[str, ...], tier: SharedTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    monkeypatch.setattr(progress.Waiting, "__enter__", lambda waiting: told.append(str(waiting._status.status)))
    run(words[0], tier.path, *words[1:])
    assert told and str(tier.path) in told[0]


def test_nothing_is_said_where_a_program_reads() -> None:
    assert spoken(terminal=True, quiet=True) == spoken(terminal=False, quiet=True) == [""] * 5


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything takes long, and a line comes each time."""
    monkeypatch.setattr(progress, "_SHOW_AFTER_S", -1.0)
    monkeypatch.setattr(progress, "_LINE_EVERY_S", -1.0)


@pytest.fixture
def tier(tmp_path: Path) -> SharedTier:
    tier = SharedTier(tmp_path / "here", "ns")
    tier.prepare()
    for step in (3, 4):
        commit(tier, save_id(step))
    return tier


def last_line(*arguments: Any) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stderr.splitlines()[-1]


def test_every_verb_counts_all_its_bytes(slow: None, tier: SharedTier, tmp_path: Path) -> None:
    assert last_line("verify", tier.path).startswith("verifying 2 steps: 40.0 kB of 40.0 kB, ")
    assert "copying 2 steps: 8" in last_line("copy", tier.path, tmp_path / "there")  # twice, and manifests
    assert last_line("gc", tier.path, "--keep", "1").startswith("removing 1 step: 20.0 kB of 20.0 kB, ")


def test_import_and_export_count_what_they_read_and_write(slow: None, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    dcp.save({"w": torch.arange(3000.0)}, checkpoint_id=tmp_path / "in")
    there = tmp_path / "there"
    said = last_line("import", tmp_path / "in", there, "--step", "7", "--namespace", "model")
    assert said.startswith("importing step 7: 24.0 kB of ")
    said = last_line("export", there, "--dcp", tmp_path / "out")
    assert said.startswith("exporting step 7: 24.")
    said = last_line("export", there, "--safetensors", tmp_path / "out.safetensors")
    assert said.startswith("exporting step 7: 24.")
