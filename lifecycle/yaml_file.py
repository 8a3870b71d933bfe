"""A site's file of settings, as far as all of them are alike: keys and values in YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lifecycle.errors import UsageError


def read_settings(path: Path) -> dict[str, Any]:
    """The keys and values of a file, not yet looked at; none of an empty one.

    Raises:
        UsageError: it cannot be read as keys and values.
    """
    import yaml  # here: those who call this are imported where nobody reads settings

    try:
        found = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); expected settings in YAML") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: cannot be read as YAML ({' '.join(str(error).split())})") from None
    if not isinstance(found, dict | None):
        raise UsageError(f"{path}: got a {type(found).__name__}, expected keys and values")
    return found or {}
