"""Printed tables and lines: nothing is lost on a narrow terminal, and nothing in a text controls it."""

from __future__ import annotations

import io

import pytest
from rich.table import Table
from rich.text import Text

from holdfast.blocks import print_block


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(block: object, columns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    print_block(block, out)  # type: ignore[arg-type]
    return out.getvalue()


WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen"


@pytest.mark.parametrize("columns", [20, 40, 60, 79])
@pytest.mark.parametrize("style", ["", "red"])
def test_no_word_of_a_wrapped_text_is_lost(columns: int, style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = printed(Text(WORDS, style=style), columns, monkeypatch)
    assert shown.split() == WORDS.split() and all(len(line.rstrip()) <= columns for line in shown.splitlines())
    table = Table.grid(padding=(0, 2))
    table.add_row("what", WORDS)
    assert sorted(printed(table, columns, monkeypatch).split()) == sorted(["what", *WORDS.split()])


def test_control_characters_are_escaped_on_a_terminal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = printed(Text("a\x1b[31mred\x00 b"), 40, monkeypatch)
    assert shown == "a\\x1b[31mred\\x00 b\n"
