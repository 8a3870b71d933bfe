"""YAML read strictly: small files, plain data, one-line errors."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

from launcher.errors import UsageError

MAX_FILE_BYTES = 1 << 20


def read_yaml(path: Path) -> Any:
    """Reads a YAML file as plain data.

    Aliases and duplicate keys are refused: the first can hide a bomb, the second a mistake.

    Raises:
        UsageError: the file cannot be read, is larger than 1 MiB, or is not such YAML.
    """
    return _parse(_read(path), path.name)


def _read(path: Path) -> str:
    try:
        if not path.is_file():
            what = "no regular file" if path.exists() else "no such file"
            raise UsageError(f"{path}: {what}; expected a job file (YAML)")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); expected a job file (YAML)") from None
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"{path}: larger than {MAX_FILE_BYTES} bytes; expected a job file (YAML), not data")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (byte {error.start}); expected a job file (YAML)") from None


def _parse(text: str, source: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                mark = self.peek_event().start_mark
                raise yaml.MarkedYAMLError(problem="aliases (*name) are not read", problem_mark=mark)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
            seen = set()
            for key_node, _ in node.value:
                if isinstance(key_node, yaml.ScalarNode) and key_node.value in seen:
                    problem = f"key {key_node.value!r} is given twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
                seen.add(str(key_node.value))
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UsageError(f"{source}: not valid YAML: {error.problem}{place}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UsageError(f"{source}: not valid YAML: nested too deeply") from None
