"""The base class of every error this package raises on purpose."""

from __future__ import annotations


class SlurmError(Exception):
    """Something about Slurm is not as it must be; the message is one line that says what to do next."""
