"""Commands whose help names arguments as other tools do: `JOB.yaml`, `[DIR]`, `FILE...`.

typer prints `{JOB.yaml}` in the usage line, and a type (`<path>`) beside the name.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand


class PlainCommand(TyperCommand):
    """A command whose arguments appear in its help by their metavar alone."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for param in self.params:
            if isinstance(param, TyperArgument):
                param.__class__ = _PlainArgument


class _PlainArgument(TyperArgument):
    def get_usage_pieces(self, ctx: Any) -> list[str]:
        return [self._shown() if self.required else f"[{self._shown()}]"]

    def get_help_record(self, ctx: Any) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        return record and (self._shown(), record[1])

    def _shown(self) -> str:
        return f"{self.metavar}{'...' if self.nargs != 1 else ''}"


def plain(app: typer.Typer) -> typer.Typer:
    """Gives all commands of an app this class, except those that name one of their own."""
    for info in app.registered_commands:
        if info.cls is TyperCommand:
            info.cls = PlainCommand
    return app
