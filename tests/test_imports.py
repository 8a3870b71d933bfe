"""The layout is the architecture: packages import one way, light ones stay light, MPI has one door."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("holdfast", "slurm", "lifecycle", "ckpt", "launcher")
MAY_IMPORT = {
    "holdfast": {"ckpt", "launcher"},
    "slurm": set(),
    "lifecycle": {"slurm"},
    "ckpt": set(),
    "launcher": {"slurm", "lifecycle", "ckpt"},
}
# The launcher knows ckpt and lifecycle by their public faces only.
PUBLIC_ONLY = {
    "ckpt": {"ckpt", "ckpt.agent.process.launch", "ckpt.cli.app", "ckpt.tiers.nvme", "ckpt.timeouts"},
    "lifecycle": {"lifecycle", "lifecycle.cli", "lifecycle.cluster.command", "lifecycle.site_files"},
}
BASE = "holdfast.base"
COMMON = (BASE, "holdfast.settings", "holdfast.blocks")  # all packages may import them; they import none
HEAVY = ("torch", "mpi4py")


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield package, path


@cache
def parsed(path: Path) -> list[ast.AST]:
    """All nodes of a file's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text())))


def imported(path: Path) -> set[str]:
    """Full names of all modules that a file imports, at any depth of its code."""
    names = set()
    for node in parsed(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module)
    return names


def imported_modules(path: Path) -> set[str]:
    """As `imported`; of a `from launcher import gpus`, launcher.job.gpus."""
    nodes = (node for node in parsed(path) if isinstance(node, ast.ImportFrom))
    return imported(path) | {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}


def is_common(name: str) -> bool:
    return any(f"{name}.".startswith(f"{common}.") for common in COMMON)


def test_packages_import_one_way() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for package, path in modules()
        for name in imported(path)
        if (top := name.split(".")[0]) in PACKAGES and top != package and top not in MAY_IMPORT[package]
        if not is_common(name)
    ]
    assert not wrong


def test_the_base_imports_the_standard_library_and_itself() -> None:
    base = ROOT / "holdfast" / "base"
    wrong = [
        f"{path.name} imports {name}"
        for path in base.glob("*.py")
        for name in imported(path)
        if name.split(".")[0] not in sys.stdlib_module_names and not name.startswith(BASE)
    ]
    assert not wrong


def test_what_all_packages_import_imports_none_of_them() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for package, path in modules()
        if package == "holdfast" and is_common(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for name in imported(path)
        if name.split(".")[0] in PACKAGES and not is_common(name)
    ]
    assert not wrong


def test_modules_beside_the_rooms_of_the_launcher_are_its_errors_and_its_start() -> None:
    beside = {path.stem for path in (ROOT / "launcher").glob("*.py")}
    assert beside == {"__init__", "__main__", "errors"}


def test_launcher_uses_public_faces_only() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for package, path in modules()
        if package == "launcher"
        for name in imported(path)
        if (top := name.split(".")[0]) in PUBLIC_ONLY and name not in PUBLIC_ONLY[top]
    ]
    assert not wrong


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports inside functions and for type checkers count too."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for _, path in modules()}
    graph = {name: imported(path) & names.keys() for name, path in names.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names them


def test_rooms_of_the_launcher_import_one_way() -> None:
    """A room is a folder, or a module beside the folders. The package's face names modules and is of no room."""
    graph: dict[str, set[str]] = {}
    for package, path in modules():
        parts = path.relative_to(ROOT).with_suffix("").parts
        if package != "launcher" or parts[1].startswith("__"):
            continue
        rooms = {name.split(".")[1] for name in imported_modules(path) if name.startswith("launcher.")}
        graph.setdefault(parts[1], set()).update(rooms - {parts[1]})
    TopologicalSorter(graph).prepare()  # raises CycleError, which names them


def test_a_room_of_the_agent_imports_only_rooms_below_it_in_the_map() -> None:
    agent = ROOT / "ckpt" / "agent"
    the_map = ast.get_docstring(ast.parse((agent / "__init__.py").read_text())) or ""
    rooms = ["__main__", *re.findall(r"^(\w+)/? {2,}", the_map, re.MULTILINE)]
    rooms.insert(0, rooms.pop(rooms.index("template")))  # it forks what `__main__` starts
    wrong = []
    for path in sorted(agent.rglob("*.py")):
        room = path.relative_to(agent).with_suffix("").parts[0]
        for name in imported_modules(path) if room != "__init__" else ():
            other = name.split(".")[2] if name.startswith("ckpt.agent.") else room
            if other != room and rooms.index(other) < rooms.index(room):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert len(rooms) > 15 and not wrong


def test_slurm_needs_the_standard_library_and_the_base_only() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for package, path in modules()
        if package == "slurm"
        for name in imported(path)
        if name.split(".")[0] not in (*sys.stdlib_module_names, "slurm") and not name.startswith(BASE)
    ]
    assert not wrong


LIVE_ON = {  # modules that start a process which lives on beside theirs, or replace themselves by a program
    "ckpt/agent/process/daemon.py", "ckpt/agent/process/launch.py", "ckpt/agent/process/shim.py",
    "ckpt/worker/standalone/memory_dir.py", "slurm/testbed/machine.py", "slurm/testbed/namespaces.py",
    "launcher/leadership/succession.py", "launcher/observer/start.py", "launcher/runner/agent_template.py",
    "launcher/runner/script.py", "launcher/runner/warm.py", "launcher/runner/workers.py",
    "launcher/clusters/slurm/booster.py", "launcher/clusters/child_process.py", "launcher/clusters/local/submission.py",
}  # fmt: skip
_LIVES_ON = re.compile(r"\b(?:Popen\(|create_subprocess_\w+\(|posix_spawn|os\.exec[lv]\w*\()")
_ENDS = re.compile(r"\b(?:subprocess\.(?:run|call|check_call|check_output|getoutput)|os\.(?:system|popen))\(")


def test_programs_are_run_to_their_end_by_one_runner() -> None:
    """A deadline that kills the program alone waits on for what the program has started."""
    texts = {str(path.relative_to(ROOT)): path.read_text() for _, path in modules()}
    assert {path for path, text in texts.items() if _ENDS.search(text)} == set()
    assert {path for path, text in texts.items() if _LIVES_ON.search(text)} - {"holdfast/base/programs.py"} == LIVE_ON


def test_slurms_commands_have_one_door() -> None:
    programs = {"sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo"}
    callers = {
        str(path.relative_to(ROOT))
        for package, path in modules()
        if not str(path).startswith(str(ROOT / "slurm" / "testbed"))
        for call in parsed(path)
        if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.List) and call.args[0].elts
        for program in call.args[0].elts[:1]
        if isinstance(program, ast.Constant) and program.value in programs
    }
    assert callers == {"slurm/client.py"}


def test_mpi_has_one_door() -> None:
    doors = {
        str(path.relative_to(ROOT))
        for _, path in modules()
        if any(name.split(".")[0] == "mpi4py" for name in imported(path))
    }
    assert doors == {"ckpt/agent/rpc/transport.py"}


def test_importing_the_packages_and_the_command_line_loads_neither_torch_nor_mpi() -> None:
    code = f"import sys, {', '.join(PACKAGES)}, launcher.cli; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


# Imported while a job starts or recovers: they take a job that was validated at its submission as it is.
STARTS = (
    *("ckpt.config", "ckpt.agent.__main__", "ckpt.checkpointer", "launcher.job.jobfile", "launcher.runner.runner"),
    *("launcher.runner.script", "launcher.supervisor.standby", "launcher.supervisor.entry"),
)


def test_nothing_that_starts_or_recovers_a_job_loads_what_validates_files() -> None:
    validators = ("pydantic", "yaml", "holdfast.settings.validation")
    code = f"import sys, {', '.join(STARTS)}; print([m for m in {validators!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_modules_beside_the_tests_have_names_of_their_own() -> None:
    """pytest imports them by their bare names, unless they are in a package: the first of two would stand for both."""
    files = [path for path in (ROOT / "tests").rglob("*.py") if not (path.parent / "__init__.py").exists()]
    names = [path.stem for path in files if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))


def _private(nodes: list[ast.AST]) -> set[str]:
    """The private names that code defines in classes or reads from objects."""
    found = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    found |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def test_submitits_inside_has_one_door() -> None:
    """A private name that a subclass overrides or reads may change with any release of submitit."""
    import submitit

    theirs: set[str] = set()
    for path in Path(submitit.__file__).parent.rglob("*.py"):
        theirs |= _private(parsed(path)) if not path.name.startswith("test_") else set()
    door = "launcher/submission/submitit_base.py"
    users, importers = set(), set()
    for _, path in modules():
        name, names = str(path.relative_to(ROOT)), imported(path)
        if any(module.startswith("submitit.") for module in names):
            importers.add(name)
        if {"submitit", door.removesuffix(".py").replace("/", ".")} & names and _private(parsed(path)) & theirs:
            users.add(name)
    assert users == importers == {door}
