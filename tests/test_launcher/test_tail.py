"""Following a file: each line once, and no more of it in memory than a chunk."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from launcher.history.tail import Tail

MIB = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank-0.log"


def peak_bytes(tail: Tail) -> int:
    tracemalloc.start()
    try:
        for _ in tail.lines():
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_each_line_is_given_once_when_it_is_whole(path: Path) -> None:
    tail = Tail(path)
    assert list(tail.lines()) == []
    path.write_bytes(b"one\ntw")
    assert list(tail.lines()) == ["one"]
    with path.open("ab") as file:
        file.write(b"o\n\nthree")
    assert (list(tail.lines()), tail.rest(), tail.rest()) == (["two", ""], "three", "")


@pytest.mark.parametrize("line", [b"x" * 99 + b"\n", b"x" * 99 + b"\r"], ids=["lines", "one line without an end"])
def test_a_file_larger_than_memory_is_read_in_chunks(path: Path, line: bytes) -> None:
    path.write_bytes(line * (32 * MIB // len(line)))
    assert peak_bytes(Tail(path)) < 8 * MIB
    assert sum(map(len, Tail(path).lines())) == pytest.approx(path.stat().st_size, rel=0.05)


def test_what_is_added_while_a_call_reads_is_the_next_calls(path: Path) -> None:
    path.write_bytes(b"a\nb\n")
    tail, lines = Tail(path), []
    for line in tail.lines():
        lines.append(line)
        with path.open("ab") as file:  # an endless writer
            file.write(b"more\n")
    assert lines == ["a", "b"]
    assert list(tail.lines()) == ["more", "more"]


@pytest.mark.parametrize("count", [0, 1, 3, 300_000, 400_000])
@pytest.mark.parametrize("end", [b"", b"unfinished"])
def test_the_last_lines_are_found_however_far_back_they_begin(path: Path, count: int, end: bytes) -> None:
    numbers = [f"line {number}" for number in range(350_000)]
    path.write_bytes("\n".join(numbers).encode() + b"\n" + end)
    assert path.stat().st_size > 3 * MIB
    tail = Tail(path)
    tail.skip_to_last(count)
    assert list(tail.lines()) == numbers[max(0, len(numbers) - count) :]
    assert tail.rest() == end.decode()


def test_a_file_that_became_shorter_gives_nothing_twice(path: Path) -> None:
    path.write_bytes(b"one\ntwo\n")
    tail = Tail(path)
    assert list(tail.lines()) == ["one", "two"]
    path.write_bytes(b"one\n")
    assert list(tail.lines()) == []
