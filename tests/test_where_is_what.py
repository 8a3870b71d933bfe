"""Files and names that CONTRIBUTING.md and the walks of docs/internals/checkpoints.md give exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
WALKS = (ROOT / "docs/internals/checkpoints.md").read_text().partition("## Two walks through the code")[2]
_PATH = re.compile(r"`((?:ckpt|docs|holdfast|launcher|lifecycle|slurm|tests)/[\w/.-]*)`")
ROWS = re.findall(r"^\| ([^|]+\?[^|]*) \| ([^|]+) \| ([^|]*)\|$", CONTRIBUTING, re.MULTILINE)


def test_every_path_in_contributing_exists() -> None:
    named = _PATH.findall(CONTRIBUTING)
    assert len(named) > 40
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(("question", "files", "names"), ROWS, ids=[question for question, *_ in ROWS])
def test_a_question_leads_to_files_that_have_the_names(question: str, files: str, names: str) -> None:
    paths = _PATH.findall(files)
    assert paths, question
    text = "".join((ROOT / path).read_text() for path in paths)
    for name in re.findall(r"`(\w+)`", names):
        assert re.search(rf"^\s*(?:class |(?:async )?def )?{name}\b", text, re.MULTILINE), name


def test_the_table_has_about_twenty_questions() -> None:
    assert len(ROWS) > 18


def test_every_stop_of_the_walks_through_ckpt_is_a_file() -> None:
    stops = re.findall(r"`([a-z_0-9/]+\.py)`", WALKS)
    assert len(stops) > 20
    assert [stop for stop in stops if not (ROOT / "ckpt" / stop).exists()] == []


def unmapped(package: str) -> Iterator[str]:
    """Modules and folders that the docstring of their package's `__init__` does not name."""
    for init in sorted((ROOT / package).rglob("__init__.py")):
        the_map = ast.get_docstring(ast.parse(init.read_text())) or ""
        for path in init.parent.iterdir():
            is_module = path.suffix == ".py" or (path / "__init__.py").exists()
            if is_module and not path.stem.startswith("__") and not re.search(rf"\b{path.stem}\b", the_map):
                yield str(path.relative_to(ROOT))


@pytest.mark.parametrize("package", ["ckpt", "slurm", "holdfast"])
def test_every_module_stands_in_the_map_of_its_package(package: str) -> None:
    assert sorted(unmapped(package)) == []
