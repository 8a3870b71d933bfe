"""One name, one thing: no two classes of the packages share a name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

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
