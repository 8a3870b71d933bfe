"""Reads the YAML files that people write: job files and settings. `yaml_core` parses them."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

from holdfast.settings.errors import SettingsError

MAX_FILE_BYTES = 1 << 20


def read_settings(path: Path) -> dict[str, Any]:
    """Read a settings file.

    Returns:
        Its keys and values, not yet validated; an empty dict for an empty file.

    Raises:
        UsageError: the file cannot be read, or is not a YAML mapping.
    """
    return settings_of(read_yaml(path, "settings"), str(path))


def settings_of(found: Any, source: str) -> dict[str, Any]:
    """Return the keys and values in the result of parse_yaml(); an empty dict for None.

    Raises:
        UsageError: the result is not a dict.
    """
    if not isinstance(found, dict | None):
        raise SettingsError(f"{source}: got a {type(found).__name__}, expected keys and values")
    return found or {}


def read_yaml(path: Path, what: str) -> Any:
    """Read a YAML file as plain data; see parse_yaml().

    Args:
        path: the file.
        what: the expected contents, for errors: "a job file".

    Raises:
        UsageError: the file cannot be read, is larger than 1 MiB, or is not YAML that `yaml_core` accepts.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise SettingsError(f"{path}: not a regular file; expected {what} (YAML)")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such file; expected {what} (YAML)") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"{path}: cannot be read ({reason}); expected {what} (YAML)") from None
    return parse_yaml(data, str(path))


def parse_yaml(data: bytes, source: str) -> Any:
    """Parse YAML as plain data: dict with text as keys, list, str, int, float, bool and None.

    Args:
        data: the YAML, in UTF-8.
        source: name of the file, for errors.

    Raises:
        UsageError: the data are larger than 1 MiB, or are not YAML that `yaml_core` accepts.
    """
    import yaml  # imported here, like `yaml_core`, because most users of this module read no file

    from holdfast.settings.yaml_core import plain_data

    if len(data) > MAX_FILE_BYTES:
        raise SettingsError(f"{source}: got more than {MAX_FILE_BYTES} bytes, expected a smaller YAML file")
    try:
        return plain_data(data.decode())
    except UnicodeDecodeError as error:
        raise SettingsError(f"{source}: not UTF-8 text (byte {error.start}); expected YAML") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise SettingsError(f"{source}: not valid YAML: {error.problem}{place}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None
