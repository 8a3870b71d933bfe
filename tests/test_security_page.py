"""docs/admin/security.md names tests that are there, and says of every statement whether it has one."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs/admin/security.md").read_text()


def test_the_tests_that_it_names_are_there() -> None:
    named = set(re.findall(r"`([a-z_/]+/test_[a-z_]+\.py)`", PAGE))
    assert len(named) >= 8 and not [name for name in named if not (TESTS / name).is_file()]


def test_every_statement_of_a_list_names_its_test_or_that_there_is_none() -> None:
    statements = re.findall(r"^- .*(?:\n  .*)*", PAGE, re.MULTILINE)
    assert len(statements) >= 15
    assert not [text for text in statements if "test_" not in text and "no test" not in text]
