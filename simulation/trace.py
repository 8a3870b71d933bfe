"""What happened, for people."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from typing import Any

_QUIET = ("SetTimer",)


class Trace:
    """Lines of one run."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, now_s: float, text: str) -> None:
        self.lines.append(f"{now_s:10.3f}            {text}")

    def fault(self, now_s: float, fault: Any, node: str) -> None:
        self.lines.append(f"{now_s:10.3f}  !!!!!!!!  {fault.kind} at {node}, {fault.lasts_s:g} s, flag {fault.flag}")

    def supervisor(self, now_s: float, driver: Any, todo: Any) -> None:
        self.lines.append(f"{now_s:10.3f}  term {driver.term:3}  begins on {driver.host.name}; {_phases(driver.state)}")
        self._commands(todo)

    def decision(self, now_s: float, driver: Any, message: Any, todo: Any) -> None:
        self.lines.append(f"{now_s:10.3f}  term {driver.term:3}  {_text(message)}; {_phases(driver.state)}")
        self._commands(todo)

    def _commands(self, todo: Any) -> None:
        for command in todo:
            if type(command).__name__ not in _QUIET:
                self.lines.append(f"{'':26}-> {_text(command)}")

    def __str__(self) -> str:
        return "\n".join(self.lines)


def _text(value: Any) -> str:
    given = []
    for item in fields(value):
        held = getattr(value, item.name)
        if held not in (None, "", (), {}) and item.name != "time_s":
            given.append(f"{item.name}={held.value if isinstance(held, Enum) else held!r}")
    return f"{type(value).__name__}({', '.join(given)})"[:300]


def _phases(state: Any) -> str:
    members = " ".join(f"{node}:{member.phase.value}" for node, member in sorted(state.members.table.items()))
    attempt = state.attempt
    text = f"{attempt.number} {attempt.phase.value}" if attempt is not None else "none"
    return f"[{state.stage.value}, attempt {text}] {members}"
