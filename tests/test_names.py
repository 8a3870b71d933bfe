"""One name, one thing: classes, type aliases and constants."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("ckpt", "launcher", "lifecycle", "slurm")


def classes() -> dict[str, list[str]]:
    """The files that define a class, by its name; private classes are their file's own business."""
    found: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(str(path.relative_to(ROOT)))
    return found


def test_no_two_classes_share_a_name() -> None:
    found = classes()
    assert len(found) > 300  # the packages were found
    shared = {name: files for name, files in found.items() if len(files) > 1}
    assert not shared, "\n".join(f"{name}: {', '.join(files)}" for name, files in shared.items())


def public_names(path: Path) -> Iterator[tuple[str, str]]:
    """The type aliases, constants and classes that a module defines, each with its definition."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            yield node.name, f"class of {path}"
            continue
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(each, ast.Name) and not ast.unparse(node.value or each).startswith("TypeVar("):
                    yield each.id, f"{ast.unparse(node)} of {path}"


@pytest.mark.parametrize("package", ["ckpt", "slurm"])
def test_no_alias_or_constant_has_two_meanings(package: str) -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / package).rglob("*.py")):
        for name, definition in public_names(path):
            if not name.startswith("_") and name not in ("log", "TYPE_CHECKING"):
                found[name].add(definition)
    assert len(found) > 50
    assert {name: sorted(each) for name, each in found.items() if len(each) > 1} == {}
