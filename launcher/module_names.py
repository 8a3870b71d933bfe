"""A script's own modules may have the names of Holdfast's packages: which of the two an import finds.

A worker comes from a process that has loaded ours. Before the script runs, names that mean a module of the user's there
are given back. Two cases cannot be helped and are refused at submission: a directory of PYTHONPATH that hides Holdfast
from its own programs, and a script that uses Holdfast beside a module that hides what it uses.
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
    from launcher.jobfile import JobSpec

_OURS = ("ckpt", "launcher", "lifecycle", "slurm")
_ROOT = Path(__file__).resolve().parent.parent


def give_back() -> None:
    """In a worker: forgets our packages whose names, by sys.path, mean other modules."""
    for name in _OURS:
        if _found(name, sys.path) is not None:
            for module in [each for each in sys.modules if each.partition(".")[0] == name]:
                del sys.modules[module]


def check_modules(spec: JobSpec, env: Mapping[str, str]) -> None:
    """Refuses a job in which a module of the user's would be taken for one of Holdfast's.

    Args:
        spec: the job.
        env: the environment that it is submitted from.

    Raises:
        UsageError: names the file, and what to do.
    """
    folders = spec.env.get("PYTHONPATH", env.get("PYTHONPATH", "")).split(os.pathsep)
    for name in _OURS:
        if found := _found(name, [folder for folder in folders if folder]):
            raise UsageError(
                f"{found} hides Holdfast's package {name} from its own programs; "
                "rename it, or take its folder off PYTHONPATH (the script's own folder need not be there)"
            )
        if sys.version_info < (3, 11) and (found := _found(name, [os.getcwd()])):
            raise UsageError(
                f"{found} hides Holdfast's package {name} from its own programs under Python 3.10; "
                "rename it, submit from another directory, or use Python 3.11 or newer"
            )
    found = _found("ckpt", [str(spec.script.parent)])
    if found and (spec.checkpoint is not None or _imports_holdfast(spec.script)):
        raise UsageError(f"{found} hides Holdfast's package ckpt, which {spec.script.name} uses; rename it")


def _found(name: str, folders: Iterable[str]) -> str | None:
    """The file of a module of this name that is not ours; a folder without __init__.py is no module."""
    spec = PathFinder.find_spec(name, list(folders))
    if spec is None or spec.origin is None or Path(spec.origin).resolve().is_relative_to(_ROOT / name):
        return None
    return spec.origin


def _imports_holdfast(script: Path) -> bool:
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False  # the script's own run says so
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return any(name.partition(".")[0] == "holdfast" for name in names)
