"""The Python of README.md and the guide compiles, and imports from Holdfast what exists."""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
from pathlib import Path

import pytest

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


def test_the_page_on_scripts_has_fsdp2() -> None:
    assert any("fully_shard(model, mesh=mesh)" in code for name, code in blocks() if name.startswith("script"))
