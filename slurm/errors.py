"""The base class of all errors of this package."""

from __future__ import annotations


class SlurmError(Exception):
    """Slurm or its data is not as expected. The message is one line and has the next step."""
