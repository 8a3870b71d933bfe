"""What a worker runs: a Python script, a module as `python -m` runs it, or any command. It is checked at submission.

A job may queue for hours before its script fails. Python compiles a script in milliseconds, so an error of its syntax
is found before the job is submitted.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from launcher.env.containers import in_container
from launcher.job.sbatch_options import normal_options

_COMPILE = re.compile(rb"torch\.compile|torch_compile|model\.compile\(")
_SHELLS = ("sh", "bash", "dash", "ksh", "zsh")
_SHELL_SUFFIXES = (".sh", ".bash", ".sbatch", ".slurm")


def name_and_check(data: dict[str, Any], base_dir: Path, found: dict[tuple[str | int, ...], str]) -> None:
    """Adds the job's name, if it has none, and the problems of its script, module or command to `found`.

    In a container another Python and other files may be the job's, so only the script's path is checked. With sbatch's
    --chdir, modules and commands are looked for in another directory.
    """
    script, module, command = data.get("script"), data.get("module"), data.get("command")
    names = [name for name in ("script", "module", "command") if data.get(name)]
    if not names:
        found["script",] = "missing, expected the path of a Python script; or give module or command"
    found |= {(name,): f"{names[0]} is given too; leave one of them out" for name in names[1:]}
    options = data.get("slurm")
    given = normal_options(options) if isinstance(options, Mapping) else {}
    is_here = not in_container(given)
    stem = "x"
    if isinstance(script, str | os.PathLike) and script:
        path = base_dir.absolute() / script
        stem = path.stem
        problem = script_problem(path) if str(path).isprintable() else ""
        if problem and (is_here or not path.is_file()):
            found.setdefault(("script",), problem)
    elif isinstance(module, str) and module:
        stem = module
        paths = {**os.environ, **env}.get("PYTHONPATH", "") if isinstance(env := data.get("env") or {}, Mapping) else ""
        folders = [os.getcwd(), *filter(None, str(paths).split(os.pathsep))]
        if is_here and "chdir" not in given and (problem := module_problem(module, folders)):
            found["module",] = problem
    elif isinstance(command, list | tuple) and command and isinstance(command[0], str):
        if is_here and "chdir" not in given and (problem := command_problem(command)):
            found["command",] = problem
        if "name" not in data:
            found["name",] = "missing, expected a name for the job, because a command gives it none"
    data.setdefault("name", derived_name(stem))


def derived_name(stem: str) -> str:
    """A job's name, made from that of its script. Names that differ only in other letters stay different."""
    name = re.sub(r"[^A-Za-z0-9_.-]|^[^A-Za-z0-9]", "x", stem)[:128]
    return name if name == stem else f"{name[:119]}-{hashlib.sha256(stem.encode()).hexdigest()[:8]}"


def script_problem(path: Path) -> str:
    """Why a file cannot run as a Python script; "" if nothing speaks against it."""
    if not path.is_file():
        return f"no file {path}; relative paths count from the job file's folder"
    if is_shell_script(path):
        return f"{path} is a shell script, expected a Python script; `command: [bash, {path.name}]` runs it as it is"
    return _source_problem(path)


def module_problem(name: str, folders: Sequence[str]) -> str:
    """Why a module cannot run by `python -m`; "" if nothing speaks against it. No package is imported.

    Args:
        name: the module's name.
        folders: where it is looked for before sys.path.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        return f"got {name!r:.80}, expected a module's name, such as pkg.train"
    file = module_file(name, folders)
    if file is None:
        looked = ", ".join(folders)
        return f"no module {name}, or no {name}.__main__ in it, in {looked} or among the installed ones"
    return _source_problem(file) if file.suffix == ".py" else ""


def module_file(name: str, folders: Sequence[str]) -> Path | None:
    """The file that `python -m name` would run; None if there is none."""
    first, *rest = name.split(".")
    spec = PathFinder.find_spec(first, list(folders))
    if spec is None or spec.loader is None:
        spec = importlib.util.find_spec(first) or spec  # an editable install is found by its own finder
    for part in rest:  # by its own name: by its whole name Python would ask for its parent, which is not imported
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(part, spec.submodule_search_locations)
    if spec is not None and spec.submodule_search_locations is not None:  # a package runs its __main__
        spec = PathFinder.find_spec("__main__", spec.submodule_search_locations)
    return Path(spec.origin) if spec is not None and spec.origin else None


def command_problem(command: Sequence[str]) -> str:
    """Why a command cannot be started; "" if nothing speaks against it. The nodes may have programs that are not here,
    so only a path is looked at."""
    program = command[0]
    if "/" in program and shutil.which(program) is None:
        what = "is not executable" if Path(program).is_file() else "no such file"
        return f"{program}: {what}; relative paths count from the working directory, in which the command runs"
    return ""


def uses_torch_compile(path: Path | None) -> bool:
    """Whether a source file names torch.compile, so that its first step loads torch's compiler."""
    try:
        return path is not None and _COMPILE.search(path.read_bytes()) is not None
    except OSError:
        return False


def is_shell_script(path: Path) -> bool:
    """Whether a file is a shell script, by its suffix or its first line."""
    with path.open("rb") as file:
        words = file.readline(256).decode(errors="replace").split()
    is_shebang = bool(words) and words[0].startswith("#!")
    interpreters = {os.path.basename(word.removeprefix("#!")) for word in words[:2]} if is_shebang else set()
    return path.suffix in _SHELL_SUFFIXES or bool(interpreters & {*_SHELLS})


def _source_problem(path: Path) -> str:
    """The first error of syntax in a file, as Python reports it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they come when the script runs
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except OSError as error:
        return f"{path}: cannot be read ({error.strerror})"
    except SyntaxError as error:
        version = ".".join(map(str, sys.version_info[:2]))
        return f"{path}, line {error.lineno or 1}: {error.msg} (Python {version})"
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes before Python 3.12; nested too deeply
        return f"{path}: not a Python script: {error}"
    return ""
