"""The errors of ckpt. All derive from CheckpointError; catch that to catch them all."""

from __future__ import annotations


class CheckpointError(Exception):
    """Base of all errors of ckpt. The message is one line: what, where, got, expected, what to do next."""


class ConfigError(CheckpointError):
    """The `checkpoint:` section or the environment is not valid. Raised before anything is read or written."""


class StateError(CheckpointError):
    """The state for save() or load() contains something that cannot be stored, or does not match the saved step."""


class CorruptError(CheckpointError):
    """Stored bytes do not verify. A restore passes over such a step; users see this error only from `ckpt verify`."""


class FormatError(CheckpointError):
    """A stored step is of a format that this release does not know. It is intact, and never changed or removed."""


class AgentError(CheckpointError):
    """The node's checkpoint agent cannot be reached, or refused a request.

    The message names the node and the deadline.
    """


class CopyError(CheckpointError):
    """A copy from an accelerator failed. Scripts never see it: the save is logged and counted."""


class NamespaceError(CheckpointError):
    """A checkpoint directory belongs to another namespace, or to another user."""


def one_line(error: Exception) -> str:
    """An error as one line of text, for a message."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
