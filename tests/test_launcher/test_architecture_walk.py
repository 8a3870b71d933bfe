"""The walk of docs/internals/architecture.md, from the death of a node to training on the spare, is true."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_stop_of_the_walk_names_a_module_and_what_is_in_it() -> None:
    page = (ROOT / "docs/internals/architecture.md").read_text()
    walk = page.partition("From the death of a node")[2].partition("\n\n")[2].partition("\n\n")[0]
    stops = re.split(r"^\d+\. ", walk, flags=re.MULTILINE)[1:]
    assert 5 <= len(stops) <= 10
    for stop in stops:
        modules = re.findall(r"`([a-z_/]+\.py)`", stop)
        assert modules, stop
        text = "".join((ROOT / "launcher" / module).read_text() for module in modules)
        for name in re.findall(r"`(\w+)\(\)`", stop):
            assert f"def {name}(" in text, f"{modules}: {name}"
        for name in re.findall(r"`([A-Z][A-Za-z]+)", stop):
            assert name in text, f"{modules}: {name}"
