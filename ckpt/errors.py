"""Errors of ckpt. Every one derives from CheckpointError; catch that to catch them all."""

from __future__ import annotations


class CheckpointError(Exception):
    """Base of all errors that ckpt raises. The message is one line: what, where, got, expected, what to do next."""


class ConfigError(CheckpointError):
    """The `checkpoint:` section or the environment is unusable. Raised before anything is read or written."""


class StateError(CheckpointError):
    """The state given to save() or load() holds something that cannot be stored, or does not match what is stored."""


class CorruptError(CheckpointError):
    """Stored bytes do not verify. ckpt passes such a step over by itself; users meet this only from `ckpt verify`."""


class AgentError(CheckpointError):
    """The node's checkpoint agent cannot be reached, or refused a request. Names the node and the deadline."""


class CopyError(CheckpointError):
    """Copying the state from an accelerator failed. Never raised to a script: that save is logged and counted."""


class NamespaceError(CheckpointError):
    """A checkpoint directory belongs to another namespace, or to another user."""


def one_line(error: Exception) -> str:
    """An error in words, for a message."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
