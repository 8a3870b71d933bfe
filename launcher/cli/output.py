"""How verbs print: JSON in one form; tables and pages by lifecycle's print_block."""

from __future__ import annotations

import json
from typing import Any

import typer


def print_json(facts: Any) -> None:
    typer.echo(json.dumps(facts, indent=2, default=str))
