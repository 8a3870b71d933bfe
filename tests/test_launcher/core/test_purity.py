"""The core and the diagnosis are pure: they import nothing that reads a clock, a file or a random number, and all that
they handle is frozen.
"""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
from mypy import api

from launcher.core import attempt, commands, decision, faults, gains, hang, inputs, members, recovery, replay, state
from launcher.diagnosis import cause, hang_facts, hang_verdict, rules
from launcher.supervisor.supervisor import Supervisor

CORE = Path(decision.__file__).parent
DIAGNOSIS = CORE.parent / "diagnosis"
MODULES = [*sorted(CORE.glob("*.py")), *sorted(DIAGNOSIS.glob("*.py"))]
ALLOWED = {
    "__future__",
    "bisect",
    "collections",
    "collections.abc",
    "dataclasses",
    "enum",
    "functools",  # for the memo of a pure function
    "itertools",
    "math",
    "re",
    "rpds",
    "signal",  # for the names of signals
    "statistics",
    "typing",
}
# Builtins that reach outside, and what `signal` has beside names.
FORBIDDEN_NAMES = {"open", "print", "input", "exec", "eval", "__import__", "id", "hash", "globals"}
ALLOWED_OF_SIGNAL = {"SIGABRT", "SIGTERM", "Signals"}
INPUTS, COMMANDS = get_args(inputs.Input), get_args(commands.Command)


def name(path: Path) -> str:
    package = f"launcher.{path.parent.name}"
    return package if path.stem == "__init__" else f"{package}.{path.stem}"


def imported(path: Path) -> set[str]:
    """Full names of all modules that a file imports, at any depth of its code."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path.name}: relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            known = {name(each) for each in MODULES}
            found |= names & known if node.module == "launcher.core" and names & known else {node.module}
    return found


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_the_core_imports_itself_and_what_has_no_effects(path: Path) -> None:
    inside = {name(each) for each in MODULES}
    assert imported(path) - ALLOWED - inside == set()


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_the_core_calls_nothing_that_reaches_outside(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert not any(isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.Global) for node in ast.walk(tree))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not names & FORBIDDEN_NAMES
    of_signal = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "signal"
    }
    assert of_signal <= ALLOWED_OF_SIGNAL


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_the_core_keeps_nothing_between_decisions(path: Path) -> None:
    """Its modules have constants alone: no list, dict or set that a function changes."""
    changing = {"append", "add", "update", "setdefault", "pop", "clear", "extend", "insert", "discard", "remove"}
    tree = ast.parse(path.read_text())
    kept = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in changing and isinstance(node.value, ast.Name):
            assert node.value.id not in kept, f"{path.name}:{node.lineno} changes {node.value.id}"
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            assert node.value.id not in kept, f"{path.name}:{node.lineno} changes {node.value.id}"


def dataclasses_of(module: ModuleType) -> list[type]:
    found = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
    return [each for each in found if dataclasses.is_dataclass(each)]


@pytest.mark.parametrize(
    "kind",
    [
        each
        for module in (
            *(state, inputs, commands, members, replay, gains, faults, hang, recovery),
            *(cause, rules, hang_facts, hang_verdict),
        )
        for each in dataclasses_of(module)
    ],
    ids=lambda kind: kind.__name__,
)
def test_what_the_core_takes_keeps_and_gives_is_frozen(kind: type) -> None:
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    for each in dataclasses.fields(kind):
        kinds = str(each.type)
        assert not kinds.startswith(("list", "dict", "set", "bytearray")), f"{kind.__name__}.{each.name} can change"


@pytest.mark.parametrize(("module", "union"), [(inputs, INPUTS), (commands, COMMANDS)], ids=["inputs", "commands"])
def test_every_kind_belongs_to_the_union_and_is_documented(module: ModuleType, union: tuple[type, ...]) -> None:
    assert set(dataclasses_of(module)) == set(union) and len(union) == len(set(union))
    for kind in union:
        doc = kind.__doc__ or ""
        has_doc = bool(doc) and not doc.startswith(f"{kind.__name__}(")
        assert has_doc or kind.__name__ == "WorkersStarted", f"{kind.__name__} has no docstring"


def test_every_input_has_a_handler() -> None:
    assert set(decision._TAKE) == set(INPUTS)


def test_every_stage_and_every_phase_of_an_attempt_has_a_handler() -> None:
    assert set(decision._STAGES) == set(state.Stage)
    assert set(attempt._PHASES) == set(state.AttemptPhase)


def test_every_command_has_a_performer() -> None:
    """EndJob ends the loop."""
    assert set(Supervisor._PERFORM) == set(COMMANDS) - {commands.EndJob}


@pytest.mark.parametrize("change", ["no_such_field=1", "phase=7"])
def test_a_wrong_name_or_type_in_a_change_of_the_state_is_found_before_it_runs(tmp_path: Path, change: str) -> None:
    code = "from launcher.core.frozen import replace\nfrom launcher.core.turn import Turn\n\n\n"
    code += f"def change(turn: Turn) -> None:\n    turn.attempt = replace(turn.attempt, {change})\n"
    (tmp_path / "change.py").write_text(code)
    root = CORE.parents[1]
    found, _, code_of_exit = api.run(
        ["--config-file", str(root / "pyproject.toml"), "--follow-imports", "silent", str(tmp_path / "change.py")]
    )
    assert code_of_exit == 1 and change.partition("=")[0] in found, found
