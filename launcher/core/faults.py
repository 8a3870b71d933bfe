"""The causes of an attempt's end, found in the runners' reports. Pure functions."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

LOSSES_S = 2.0  # losses of runners within this time are one fault, for example a step that was cancelled

# exceptions with a cause elsewhere: another rank, the fabric, the device, the checkpoint agent
_SECONDARY = re.compile(
    r"^\S*(DistBackendError|DistNetworkError|DistStoreError|AgentError|ConnectionError|ConnectionResetError"
    r"|ConnectionAbortedError|BrokenPipeError)\b"
    r"|NCCL|gloo|Connection (closed|reset|refused)|Broken pipe|Socket Timeout|CUDA error|uncorrectable ECC",
    re.IGNORECASE,
)
_FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)
_WORDS_CHARS = 500
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+")


class FaultKind(StrEnum):
    """What happened. The event `fault` has the values."""

    PROCESS_EXIT = "process_exit"  # a worker ended; the node is healthy
    USER_ERROR = "user_error"  # a worker ended with an exception of the script itself
    AGENT_LOST = "agent_lost"  # no checkpoint agent for the restore
    START_TIMEOUT = "start_timeout"  # a node or its workers did not come up in time
    FABRIC = "fabric"  # NCCL does not use the fabric that the job requires
    UNRESTORABLE = "unrestorable"  # lower tiers have steps, and none can be restored
    HANG = "hang"  # the workers run but make no steps
    NODE_LOST = "node_lost"  # silent, or its runner's connection closed
    RUNNER_LOST = "runner_lost"  # the runner reports that it cannot start workers
    ENVIRONMENT = "environment"  # the runner reports that the job's Python cannot load what workers need
    SCHEDULER_LOST = "scheduler_lost"  # the scheduler does not answer, so no checkpoint agents can be started
    PREEMPTED = "preempted"  # a booster was ended before its nodes could stop
    PREFLIGHT = "preflight"  # the node reports that it cannot train
    BOOSTER_START = "booster_start"  # a booster's runners did not come up on its nodes; the attempt is not affected


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        kind: what happened.
        node: the node at fault, None if there is no single one.
        reason: the cause in words.
        rank: the worker at fault.
        detect_s: seconds of silence before the fault was noticed; 0 for a closed connection.
        traceback: the script's traceback; without an exception, the last lines of its stderr.
    """

    kind: FaultKind
    node: str | None
    reason: str
    rank: int | None = None
    detect_s: float | None = None
    traceback: str | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerFailure:
    """A worker with an exit code other than 0 (-N: ended by signal N). The time is in seconds since the epoch.

    `error` and `traceback` are those of an exception; `last_words` are the last lines of its stderr.
    """

    node: str
    rank: int
    exit_code: int
    time_s: float
    error: str | None = None
    traceback: str | None = None
    last_words: str | None = None

    @classmethod
    def from_report(cls, node: str, report: Mapping[str, Any]) -> WorkerFailure:
        """Parses an item of `failures` in a runner's message "ended"."""
        return cls(
            node=node,
            rank=report["rank"],
            exit_code=report["exit_code"],
            time_s=report["time"],
            error=report["error"],
            traceback=report["traceback"],
            last_words=report["last_words"],
        )

    @property
    def is_secondary(self) -> bool:
        """Whether it is probably the consequence of another failure: lost peers, or an abort because of them."""
        if self.words is not None:
            return bool(_SECONDARY.search(self.words))
        return self.exit_code == -signal.SIGABRT

    @property
    def words(self) -> str | None:
        """The script's own message about its end, in one line; None if a signal ended it."""
        if self.error is not None or self.last_words is None or self.exit_code < 0:
            return self.error
        return self.last_words.splitlines()[-1].strip()[:_WORDS_CHARS]


def root_cause(failures: Iterable[WorkerFailure]) -> Fault:
    """The fault that caused an attempt's failures: the earliest that is not a consequence of another one.

    Args:
        failures: the failures, at least one.
    """
    first = min(failures, key=lambda failure: (failure.is_secondary, failure.time_s))
    reason = f"rank {first.rank} on {first.node} {_ending(first.exit_code)}"
    if first.words is not None:
        reason += f": {first.words}"
    is_users = first.words is not None and not first.is_secondary
    return Fault(
        kind=FaultKind.USER_ERROR if is_users else FaultKind.PROCESS_EXIT,
        node=first.node,
        rank=first.rank,
        reason=reason,
        traceback=first.traceback or first.last_words,
    )


def signature(traceback: str) -> str:
    """The part of a traceback that is the same for each occurrence of an error: the frames, and the last line without
    numbers.

    Without an exception: all lines without their numbers.
    """
    lines = traceback.strip().splitlines()
    frames = [f"{path}:{line}" for path, line in _FRAME.findall(traceback)]
    return "\n".join([*frames, *(_VARYING.sub("#", line) for line in (lines[-1:] if frames else lines))])


def _ending(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    try:
        return f"was ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was ended by signal {-exit_code}"
