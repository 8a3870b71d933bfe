"""Errors that lifecycle raises on purpose; each message is one line that says what to do next."""

from __future__ import annotations


class LifecycleError(Exception):
    """Something done to or asked of this node did not work. The command line prints the message and exits 1."""

    exit_code = 1


class NodeUsageError(LifecycleError):
    """A request that cannot be served as written (option, configuration file). The command line exits 2."""

    exit_code = 2
