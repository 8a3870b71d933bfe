"""Writes a manual page for each verb, from its help: `python -m launcher.cli.man DIR`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import typer

from launcher.cli.app import app


def pages(release: str) -> Iterator[tuple[str, str]]:
    """The name and the text, in man(7)'s macros, of each page; `holdfast` first."""
    command = typer.main.get_command(app)
    context = command.context_class(command, info_name="holdfast", **_settings(command))
    yield from _pages_of(command, context, f"holdfast {release}")


def write_pages(directory: Path, release: str) -> list[Path]:
    """Writes all pages into a directory, which is made if missing; `release` is the version that they name."""
    directory.mkdir(parents=True, exist_ok=True)
    files = []
    for name, text in pages(release):
        files.append(directory / f"{name}.1")
        files[-1].write_text(text)
    return files


def _settings(command: Any) -> dict[str, Any]:
    return {**command.context_settings, "resilient_parsing": True}


def _pages_of(command: Any, context: Any, source: str) -> Iterator[tuple[str, str]]:
    yield context.command_path.replace(" ", "-"), _page(command, context, source)
    for name in _verbs(command, context):
        verb = command.get_command(context, name)
        below = verb.context_class(verb, info_name=name, parent=context, **_settings(verb))
        yield from _pages_of(verb, below, source)


def _verbs(command: Any, context: Any) -> list[str]:
    return command.list_commands(context) if hasattr(command, "list_commands") else []


def _page(command: Any, context: Any, source: str) -> str:
    name = context.command_path.replace(" ", "-")
    text = inspect.cleandoc(command.help or "")
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f'.TH {name.upper()} 1 "" "{source}"', ".SH NAME"]
    lines += [f"{name} \\- {_roff(command.get_short_help_str(200).rstrip('.'))}", ".SH SYNOPSIS"]
    lines += [f".B {_roff(context.command_path)}", _roff(usage), ".SH DESCRIPTION", *_paragraphs(text)]
    arguments = [param for param in command.get_params(context) if param.param_type_name == "argument"]
    options = [param for param in command.get_params(context) if param.param_type_name == "option"]
    for heading, params in (("ARGUMENTS", arguments), ("OPTIONS", options)):
        records = [record for param in params if (record := param.get_help_record(context)) is not None]
        lines += [f".SH {heading}"] if records else []
        for words, meaning in records:
            lines += [".TP", f".B {_roff(words)}", _roff(meaning)]
    verbs = _verbs(command, context)
    lines += [".SH COMMANDS"] if verbs else []
    for verb in verbs:
        short = command.get_command(context, verb).get_short_help_str(200)
        lines += [".TP", f".BR {_roff(f'{name}-{verb}')} (1)", _roff(short)]
    if context.parent is not None:
        parent = context.parent.command_path.replace(" ", "-")
        lines += [".SH SEE ALSO", f".BR {_roff(parent)} (1)"]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        yield ".PP"
        if paragraph.startswith("    "):  # an example
            yield from (".nf", ".RS", *map(_roff, inspect.cleandoc(paragraph).splitlines()), ".RE", ".fi")
        else:
            yield _roff(" ".join(paragraph.split()))


def _roff(text: str) -> str:
    """Escapes the characters that have a meaning in roff."""
    return re.sub(r"^(?=[.'])", r"\\&", text.replace("\\", r"\e").replace("-", r"\-"))


def main() -> int:
    """Writes all pages into the directory that is named."""
    if len(sys.argv) != 2:
        print("launcher.cli.man: expected one directory", file=sys.stderr)
        return 2
    write_pages(Path(sys.argv[1]), version("holdfast-hpc"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
