"""How attempts and jobs end. Events and result.json have the values."""

from __future__ import annotations

from enum import StrEnum


class AttemptOutcome(StrEnum):
    """How an attempt ended."""

    DONE = "done"  # the script has ended its training
    FAULT = "fault"
    RESIZED = "resized"  # another attempt begins, of another size
    STOPPED = "stopped"  # the job continues when the scheduler starts it again
    HALTED = "halted"  # a user has ended the job for good, with a save
    CANCELLED = "cancelled"


class JobOutcome(StrEnum):
    """How a job ended.

    Attributes:
        exit_code: the job's exit code.
        words: its meaning.
    """

    exit_code: int
    words: str

    def __new__(cls, name: str, exit_code: int = 0, words: str = "") -> JobOutcome:
        outcome = str.__new__(cls, name)
        outcome._value_ = name
        outcome.exit_code, outcome.words = exit_code, words
        return outcome

    DONE = "done", 0, "the script has ended"
    HALTED = "halted", 0, "saved at a step and ended for good, by `holdfast stop`"
    STOPPED = "stopped", 0, "saved at a step; the job continues when it starts again"
    SUPERSEDED = "superseded", 0, "another supervisor continues the job"
    INTERNAL = "internal", 1, "internal error; the reason says what the supervisor could not do"
    USER_ERROR = "user_error", 10, "the script failed twice with the same error"
    NO_PROGRESS = "no_progress", 11, "no progress"
    TOO_FEW_NODES = "too_few_nodes", 12, "too few nodes"
    CANCELLED = "cancelled", 13, "cancelled"
    FABRIC = "fabric", 14, "not the fabric that the job file requires"
    UNSAVED = "unsaved", 15, "done but no step is in a lower tier"
    UNRESTORABLE = "unrestorable", 16, "no step of the lower tiers can be restored"
    NOT_RETRIED = "not_retried", 17, "not tried again: the fault would come again, or the job file says so"

    @property
    def is_final(self) -> bool:
        """Whether the job has ended for good."""
        return self not in (JobOutcome.STOPPED, JobOutcome.SUPERSEDED)

    @property
    def is_failure(self) -> bool:
        """Whether the job has ended by a fault."""
        return self.exit_code != 0 and self is not JobOutcome.CANCELLED


FINAL = tuple(outcome for outcome in JobOutcome if outcome.is_final)
