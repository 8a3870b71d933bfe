"""The Python of README.md and the guide compiles, and imports from Holdfast what exists."""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import typer

from launcher.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs/guide").glob("*.md"))]
_FENCED = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^    .*\n(?:\n(?=    ))?)+", re.MULTILINE)


def blocks() -> list[tuple[str, str]]:
    """The fenced blocks of Python, and the indented ones that import something of Holdfast."""
    found = []
    for page in PAGES:
        text = page.read_text()
        code = [*_FENCED.findall(text)]
        code += [each for block in _INDENTED.findall(text) if "from holdfast" in (each := textwrap.dedent(block))]
        found += [(f"{page.stem}-{number}", each) for number, each in enumerate(code)]
    return found


@pytest.mark.parametrize("code", [code for _, code in blocks()], ids=[name for name, _ in blocks()])
def test_a_block_compiles_and_its_imports_from_holdfast_exist(code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module in ("holdfast", "ckpt", "ckpt.sagemaker"):
            module = importlib.import_module(node.module)
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_every_verb_that_a_page_calls_exists() -> None:
    def verbs(group: Any, above: str = "") -> set[str]:
        found = set()
        for name in group.list_commands(None):
            command = group.get_command(None, name)
            found |= {f"{above}{name}"} | (verbs(command, f"{name} ") if hasattr(command, "list_commands") else set())
        return found

    known = verbs(typer.main.get_command(app))
    groups = "|".join(sorted({verb.partition(" ")[0] for verb in known if " " in verb}))
    called = re.compile(
        rf"(?:^    (?:\$ )?|^(?:\$ )?|`|/bin/)holdfast ((?:{groups}) [a-z][a-z-]+|[a-z]+)", re.MULTILINE
    )
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    named = {(verb, page.name) for page in pages for verb in called.findall(page.read_text())}
    assert len(named) > 60
    assert sorted(each for each in named if each[0] not in known) == []


def test_the_page_on_scripts_has_fsdp2() -> None:
    assert any("fully_shard(model, mesh=mesh)" in code for name, code in blocks() if name.startswith("script"))
