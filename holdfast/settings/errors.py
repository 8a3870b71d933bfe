"""The error of settings. Its message has a line for each problem: file, key, what was found, what is expected."""

from __future__ import annotations


class SettingsError(Exception):
    """A file of settings or a job file cannot be read or is not valid. The command line exits with 2."""

    exit_code = 2
