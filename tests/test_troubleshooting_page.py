"""docs/guide/troubleshooting.md: a message that it quotes is one that the code prints."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/guide/troubleshooting.md").read_text()
PACKAGES = ("ckpt", "holdfast", "launcher", "lifecycle", "slurm")
HEADINGS = re.findall(r"^\*\*(.+?)\*\*", PAGE.partition("\n## ")[2], re.MULTILINE | re.DOTALL)
QUOTED = [quoted for heading in HEADINGS for quoted in re.findall(r"`([^`]+)`", " ".join(heading.split()))]

# Texts of other programs, commands and files, which no string of Holdfast's has as a whole.
OTHERS = {
    "Permission denied",  # the kernel's
    "No such file or directory",  # the same
    "The client socket has timed out",  # torch's
    "bad-step-...",  # a file's name
    "log/runner-<node>.log", "ckpt ls", "holdfast node check", "unknown",
}  # fmt: skip
_SLURMS = re.compile(r"(?<=^waits in the queue: ).*|^(?:QOS|Assoc|Max)\w*\.\.\.\w*$")  # why a job is pending
# What a message has in an example, in place of what the code fills in.
_EXAMPLE = re.compile(
    r"(?:\.\.\./)?lock(?= is)|\.\.\.|\d+ of \d+ ranks|\b(?:n\d+|\d+|N)\b|(?<=the )(?:shared|s3)(?= tier)|^s3(?= tier)"
    r"|(?<=got )none, pmi2|(?<=none)(?= can be restored)|^ckpt\.py|ckpt$|^/dev/shm|^No space left on device"
)
_FILLED = re.compile(r"%[-+ 0#]*[0-9.]*[sdrgfx]")


@cache
def strings() -> list[str]:
    """The strings and the names of classes of each file, together; what is filled in later is a NUL."""
    found = []
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            words = []
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
                    words.append("".join(parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    words.append(_FILLED.sub("\0", node.value))
                elif isinstance(node, ast.ClassDef):
                    words.append(node.name)
            found.append("\n".join(words))
    return found


@pytest.mark.parametrize("quoted", [text for text in QUOTED if text not in OTHERS])
def test_a_quoted_message_is_in_the_code(quoted: str) -> None:
    pieces = [piece for each in _EXAMPLE.split(_SLURMS.sub("...", quoted)) if (piece := each.strip(" ,:"))]
    assert any(all(piece in text for piece in pieces) for text in strings()), pieces


def test_messages_of_others_are_on_the_page() -> None:
    assert set(QUOTED) >= OTHERS and len(QUOTED) > 45


def test_every_anchor_of_the_page_is_an_error_or_a_symptom() -> None:
    """A reader finds an entry by the text that he has seen, so entries begin with it."""
    assert len(HEADINGS) == len({" ".join(heading.split()) for heading in HEADINGS}) > 50
