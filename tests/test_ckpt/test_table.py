"""The tables of holdfast ckpt."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ckpt.cli.output import show_table


def test_rows_are_shown_before_the_next_page_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []

    def pages() -> Iterator[list[list[str]]]:
        yield [["9", "a"], ["10", "b"]]
        shown.append(capsys.readouterr().out.splitlines())
        yield [["1234567", "c"]]
        shown.append(capsys.readouterr().out.splitlines())

    show_table(("step", "name"), pages(), right=("step",))
    assert shown == [["step  name", "   9  a", "  10  b"], ["1234567  c"]]


def test_a_column_stays_as_wide_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(("tier", "name"), [[["shared directory", "a"]], [["s3", "b"]]])
    assert capsys.readouterr().out.splitlines() == [
        "tier              name",
        "shared directory  a",
        "s3                b",
    ]
