"""The errors of lifecycle. Each message is one line and has the next step."""

from __future__ import annotations

from holdfast.settings.errors import SettingsError


class LifecycleError(Exception):
    """An operation on this node failed. The command line prints the message and exits with 1."""

    exit_code = 1


class NodeUsageError(LifecycleError, SettingsError):
    """A wrong request: an option, or a file of settings. The command line exits with 2."""

    exit_code = 2
