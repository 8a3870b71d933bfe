"""The launcher's errors. Each message says what to do next."""

from __future__ import annotations


class LauncherError(Exception):
    """An operation of the launcher failed. The command line prints the message and exits with code 1."""

    exit_code = 1


class JobFailed(LauncherError):
    """The supervised job ended before it was done. The message names the outcome, the step and the cause.

    Raised inside the job; job.result() raises submitit's FailedJobError, which carries this message.
    """


class NoAnswer(LauncherError):
    """The scheduler does not answer at present. Ask it again later."""


class TooFewNodes(LauncherError):
    """The job cannot be requeued, because too few nodes would be left for it beside those to be excluded."""


class UsageError(LauncherError):
    """A job file, an option or a folder is not valid. Raised before anything is submitted.

    The command line prints the message and exits with code 2. Catch this error to let the user correct the request.
    """

    exit_code = 2
