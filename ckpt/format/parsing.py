"""The guard around everything that parses stored data: whatever goes wrong is one line of a CorruptError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

from ckpt.errors import CheckpointError, CorruptError

MAX_DEPTH = 200  # levels of a JSON form


@contextmanager
def parsing(what: str) -> Iterator[None]:
    """Turns every failure of a parse into a CorruptError. Also a decorator of a function that parses.

    Stored data may come from anybody. They can cause any exception: of a missing key, of a number too large, of memory
    or of the stack. Errors of ckpt pass, because they are one line already, and so do those of the storage.

    Args:
        what: the name of the record or the place of the data, for the message.
    """
    try:
        yield
    except (CheckpointError, OSError):
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        raise CorruptError(f"{what}: missing or malformed field: {type(error).__name__}: {text:.300}") from None


def is_too_deep(node: Any) -> bool:
    """Whether a JSON form has more than MAX_DEPTH levels. Some versions of Python read more than they can decode."""
    level = [node]
    for _ in range(MAX_DEPTH + 1):
        containers = [each.values() if type(each) is dict else each for each in level if type(each) in (dict, list)]
        if not containers:
            return False
        level = list(chain.from_iterable(containers))
    return True


def checked_depth(node: Any) -> Any:
    """The JSON form. Raises CorruptError if it has too many levels."""
    if is_too_deep(node):
        raise CorruptError(f"value: nested more than {MAX_DEPTH} levels deep")
    return node
