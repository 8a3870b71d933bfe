"""The simulator's rules speak of what can be seen from outside: commands, events, outcomes, times and the world."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import simulation

# Modules that see the core's state, and what for.
MAY_SEE = {
    "driver": "hands it to the core, and asks the scheduler after the boosters in it, as the supervisor does",
    "successor": "compares it with a replay of the events",
    "state_machine": "prints the page of its stages and phases",
    "trace": "shows it to people",
    "world": "lets a fault come as a stage or a phase begins",
}
HIDDEN = ("launcher.core.state", "launcher.core.members", "launcher.core.turn")
OF_ENUMS = ("value", "name")  # the state of an allocation, say
RULES = [path for path in sorted(Path(simulation.__path__[0]).glob("*.py")) if path.stem not in MAY_SEE]


def seen(source: str) -> Iterator[str]:
    """What a module sees of the core's state."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names if each.name.startswith(HIDDEN))
            case ast.ImportFrom(module=module) if module is not None:
                yield from (
                    name for name in (f"{module}.{each.name}" for each in node.names) if name.startswith(HIDDEN)
                )
            case ast.Attribute(value=ast.Attribute(attr="state") | ast.Name(id="state"), attr=field):
                if field not in OF_ENUMS:
                    yield f"state.{field}"


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_a_rule_sees_nothing_of_the_cores_state(path: Path) -> None:
    assert not list(seen(path.read_text()))


def test_modules_that_may_see_the_state_do() -> None:
    folder = RULES[0].parent
    assert all(list(seen((folder / f"{name}.py").read_text())) for name in MAY_SEE)


def test_a_look_into_the_state_is_found() -> None:
    source = (
        "from launcher.core import members\nfrom launcher.core.state import Stage\ndriver.state.attempt\nstate.stage"
    )
    assert list(seen(source)) == [
        "launcher.core.members", "launcher.core.state.Stage", "state.attempt", "state.stage",
    ]  # fmt: skip
