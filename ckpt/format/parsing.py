"""The guard around everything that parses stored data: whatever goes wrong is one line of a CorruptError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ckpt.errors import CheckpointError, CorruptError


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
