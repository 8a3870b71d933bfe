"""The variables of Holdfast stand in one list, from which the code takes their names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from holdfast.base import environment
from holdfast.base.environment import PREFIX, Variable

ROOT = Path(__file__).resolve().parent.parent
HOME = Path(environment.__file__)
PRODUCT = ("holdfast", "slurm", "lifecycle", "ckpt", "launcher", "sbatch_templates", "examples", "docs")
NAME = re.compile(rf"(?<![A-Z_]){PREFIX}[A-Z_]*[A-Z]\b")
# They import nothing of other packages: Slurm and a node run them alone.
ALONE = ("slurm/hooks/prolog.py", "slurm/testbed/namespaces.py", "ckpt/agent/process/shim.py")


def texts() -> Iterator[tuple[str, str]]:
    """The path and the text of each file of the product."""
    for top in PRODUCT:
        for path in sorted((ROOT / top).rglob("*")):
            if path.is_file() and path.suffix in (".py", ".sh", ".sbatch", ".md", ".yaml", ".json", ""):
                yield str(path.relative_to(ROOT)), path.read_text(errors="replace")


def test_every_variable_that_a_file_names_is_in_the_list() -> None:
    unknown = [f"{path}: {name}" for path, text in texts() for name in NAME.findall(text) if name not in set(Variable)]
    assert unknown == []


def test_code_takes_the_names_from_the_list() -> None:
    """Except in words for readers, and in texts of a shell, which have a $ before them."""
    found = [
        f"{path}:{node.lineno} {node.value!r:.60}"
        for path, text in texts()
        if path.endswith(".py") and path not in ALONE and not path.startswith("examples/") and ROOT / path != HOME
        for node in strings(ast.parse(text))
        if NAME.search(re.sub(rf"\${{?{PREFIX}\w+", "", node.value))
    ]
    assert found == []


def strings(tree: ast.Module) -> Iterator[ast.Constant]:
    """The strings of a module, without docstrings."""
    words = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body
        if isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in words:
            yield node


def test_every_variable_is_used_and_says_who_sets_and_reads_it() -> None:
    code = "\n".join(text for path, text in texts() if ROOT / path != HOME and not path.endswith((".md", ".json")))
    for variable in Variable:
        short = variable.removeprefix(PREFIX)
        assert variable.name == short
        assert variable.meaning.endswith(".") and variable.setter and variable.readers
        assert re.search(rf"\b(Variable\.{short}|{variable})\b", code), f"{variable} is unused"
