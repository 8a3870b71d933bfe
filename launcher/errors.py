"""Errors that the launcher raises on purpose; each message is one line that says what to do next."""

from __future__ import annotations


class LauncherError(Exception):
    """Something the launcher tried did not work. The command line prints the message and exits 1."""

    exit_code = 1


class JobFailed(LauncherError):
    """The supervised job ended without finishing; the message names the outcome, the step and the cause.

    Raised inside the job; job.result() raises submitit's FailedJobError, which carries this message.
    """


class UsageError(LauncherError):
    """A request that cannot be served as written (job file, option, folder). Raised before anything is submitted.

    The command line prints the message and exits 2. Catch it to let the user correct the request.
    """

    exit_code = 2
