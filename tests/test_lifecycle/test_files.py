"""Files that are published whole: writers that are killed, writers that live, and what only looks like theirs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.base.files import publish

# A writer that says where it has come to, and goes on when it is told.
_WRITER = """
import fcntl, os, sys
from pathlib import Path
from holdfast.base.files import publish
path, text, module, name = sys.argv[1:]
module = {"os": os, "fcntl": fcntl}[module]
real = getattr(module, name)
def pause(*args, **options):
    setattr(module, name, real)
    print("here", flush=True)
    sys.stdin.readline()
    return real(*args, **options)
setattr(module, name, pause)
publish(Path(path), text.encode())
"""


@contextmanager
def writer(path: Path, text: str, stops_at: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is about to do a step of its publishing, and does it when it reads a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path), text, *stops_at.split(".")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == b"here\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "verdict.json"


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


@pytest.mark.parametrize("step", ["os.fchmod", "os.fsync", "os.replace"])
def test_what_a_killed_writer_left_goes_when_the_file_is_written_again(path: Path, step: str) -> None:
    publish(path, b"old")
    for _ in range(2):
        with writer(path, "torn", step) as process:
            process.kill()
    assert len(names(path)) == 2 and path.read_bytes() == b"old"  # the second has removed what the first had left
    publish(path, b"new")
    assert names(path) == [path.name] and path.read_bytes() == b"new"


@pytest.mark.parametrize("step", ["fcntl.flock", "os.fsync", "os.replace"])
def test_a_writer_that_lives_loses_nothing_to_another(path: Path, step: str) -> None:
    """Before it has locked its draft too: it makes another one then."""
    with writer(path, "slow", step) as process:
        publish(path, b"quick")
        assert path.read_bytes() == b"quick"
        process.communicate(b"\n")
        assert process.returncode == 0
    assert names(path) == [path.name] and path.read_bytes() == b"slow"


def test_nothing_else_is_removed_and_no_link_followed(path: Path, tmp_path: Path) -> None:
    precious = tmp_path / "elsewhere"
    precious.write_bytes(b"precious")
    (tmp_path / ".verdict.json.00000000.tmp").symlink_to(precious)
    (tmp_path / ".verdict.json.00000001.tmp").mkdir()
    for name in (
        ".other.json.00000000.tmp",
        ".verdict.json.0000.tmp",
        ".verdict.json.0000000g.tmp",
        "verdict.json.old",
    ):
        (tmp_path / name).write_bytes(b"theirs")
    before = names(path)
    publish(path, b"new")
    assert names(path) == sorted([*before, path.name]) and precious.read_bytes() == b"precious"


def test_a_writer_that_fails_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.base.files.os.fsync", full)
    with pytest.raises(KeyboardInterrupt):
        publish(path, b"new")
    assert names(path) == []
