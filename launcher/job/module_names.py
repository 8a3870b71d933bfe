"""Resolves conflicts between a script's own modules and Holdfast's packages of the same name.

A worker is forked from a process that has imported Holdfast's packages. Before the script runs, `give_back` removes
those packages from sys.modules whose names mean modules of the user. Two conflicts cannot be resolved. Such jobs are
refused at submission: a directory in PYTHONPATH that hides Holdfast from its own programs, and a script that imports
Holdfast but has a module next to it that hides a package of Holdfast.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import UsageError

if TYPE_CHECKING:
    from launcher.job.jobfile import JobSpec

_OURS = ("ckpt", "launcher", "lifecycle", "slurm")
_ROOT = Path(__file__).resolve().parents[2]


def give_back() -> None:
    """In a worker: remove Holdfast's packages from sys.modules if sys.path finds other modules of their names."""
    for name in _OURS:
        if _found(name, sys.path) is not None:
            for module in [each for each in sys.modules if each.partition(".")[0] == name]:
                del sys.modules[module]


def check_modules(spec: JobSpec, env: Mapping[str, str]) -> None:
    """Refuse a job in which a module of the user would be imported instead of one of Holdfast's.

    Args:
        spec: the job.
        env: the environment at submission.

    Raises:
        UsageError: there is such a module. The message names its file and what to do.
    """
    folders = spec.env.get("PYTHONPATH", env.get("PYTHONPATH", "")).split(os.pathsep)
    for name in _OURS:
        if found := _found(name, [folder for folder in folders if folder]):
            raise UsageError(
                f"{found} hides Holdfast's package {name} from its own programs; "
                "rename it, or take its folder off PYTHONPATH (the script's own folder need not be there)"
            )
    if spec.script is None:
        return
    found = _found("ckpt", [str(spec.script.parent)])
    if found and (spec.checkpoint is not None or _imports_holdfast(spec.script)):
        raise UsageError(f"{found} hides Holdfast's package ckpt, which {spec.script.name} uses; rename it")


def _found(name: str, folders: Iterable[str]) -> str | None:
    """The file of a module of this name that is not Holdfast's. A folder without __init__.py is not a module."""
    spec = PathFinder.find_spec(name, list(folders))
    if spec is None or spec.origin is None or Path(spec.origin).resolve().is_relative_to(_ROOT / name):
        return None
    return spec.origin


def _imports_holdfast(script: Path) -> bool:
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False  # the error will be shown when the script runs
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return any(name.partition(".")[0] == "holdfast" for name in names)
