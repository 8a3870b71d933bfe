"""A job's settings without secrets, because a report is made to be passed on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

HIDDEN = "(hidden)"

_SECRET_NAME = re.compile(r"token|secret|passw|credential|auth|api.?key|access.?key|private|webhook", re.IGNORECASE)
_HIDDEN_SECTIONS = ("env", "notify")  # any variable may have a secret, and the URL of a webhook is one


def shown_settings(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each key of a job with its value as text. Keys without a value are left out.

    Args:
        spec: the content of job.json.
    """
    for name, value in spec.items():
        yield from _shown(str(name), value, hide=name in _HIDDEN_SECTIONS)


def _shown(path: str, value: Any, *, hide: bool) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield from _shown(f"{path}.{name}", below, hide=hide or bool(_SECRET_NAME.search(str(name))))
    elif value not in (None, "", [], ()):
        yield path, HIDDEN if hide else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(_without_secrets([str(item) for item in value]))
    return _without_password(str(value))


def _without_secrets(words: Sequence[str]) -> Iterator[str]:
    """A script's arguments; the values of options whose names sound like secrets are hidden."""
    hides_next = False
    for word in words:
        name, equals, _ = word.partition("=")
        is_option = word.startswith("-")
        if hides_next and not is_option:
            yield HIDDEN
        elif equals and _SECRET_NAME.search(name):
            yield f"{name}={HIDDEN}"
        else:
            yield _without_password(word)
        hides_next = is_option and not equals and bool(_SECRET_NAME.search(name))


def _without_password(text: str) -> str:
    """A URL without its user, password and query; any other text as it is."""
    if "://" not in text:
        return text
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return HIDDEN
    return urlunsplit((parts.scheme, f"{host}{port}", parts.path, "", "")) if parts.netloc else text
