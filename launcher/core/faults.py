"""What ended an attempt, told from what the runners report. Pure functions."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

PROCESS_EXIT = "process_exit"  # a worker ended, the node is fine
USER_ERROR = "user_error"  # a worker ended with an exception of the script's own
AGENT_LOST = "agent_lost"  # no checkpoint agent to restore from
START_TIMEOUT = "start_timeout"  # a node or its workers did not come up in time
FABRIC = "fabric"  # NCCL does not use the fabric that the job requires
HANG = "hang"  # the workers run and make no step
NODE_LOST = "node_lost"  # silent, or its runner's connection closed
RUNNER_LOST = "runner_lost"  # the runner says that it cannot start workers
ENVIRONMENT = "environment"  # the runner says that the job's Python cannot load what workers need
SCHEDULER_LOST = "scheduler_lost"  # it does not answer, so no checkpoint agents can be started
PREEMPTED = "preempted"  # a booster was ended before its nodes could stop
PREFLIGHT = "preflight"  # the node says that it cannot train

# Exceptions that tell of trouble elsewhere: another rank gone, the fabric, the device, the checkpoint agent.
_SECONDARY = re.compile(
    r"^\S*(DistBackendError|DistNetworkError|DistStoreError|AgentError|ConnectionError|ConnectionResetError"
    r"|ConnectionAbortedError|BrokenPipeError)\b"
    r"|NCCL|gloo|Connection (closed|reset|refused)|Broken pipe|Socket Timeout|CUDA error|uncorrectable ECC",
    re.IGNORECASE,
)
_FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)
_WORDS_CHARS = 500
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        kind: one of the words above.
        node: the node at fault, None where there is no single one.
        reason: what happened, in words.
        rank: the worker at fault.
        detect_s: how long the node had been silent when this was noticed; 0 for a closed connection.
        traceback: the script's traceback; where it ended without an exception, the last lines of its stderr.
    """

    kind: str
    node: str | None
    reason: str
    rank: int | None = None
    detect_s: float | None = None
    traceback: str | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerFailure:
    """A worker that ended with an exit code other than 0 (-N: by signal N); time in seconds since the epoch.

    `error` and `traceback` are an exception's; `last_words` are the last lines that it wrote to stderr.
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
        """From an item of `failures` in a runner's "ended"."""
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
        """Whether it looks like the consequence of another failure: lost peers, or an abort because of them."""
        if self.words is not None:
            return bool(_SECONDARY.search(self.words))
        return self.exit_code == -signal.SIGABRT

    @property
    def words(self) -> str | None:
        """What the script itself says of its end, on one line; None where a signal ended it."""
        if self.error is not None or self.last_words is None or self.exit_code < 0:
            return self.error
        return self.last_words.splitlines()[-1].strip()[:_WORDS_CHARS]


def root_cause(failures: Iterable[WorkerFailure]) -> Fault:
    """The fault behind the failures of one attempt: the earliest that is not a consequence of another.

    Args:
        failures: at least one.
    """
    first = min(failures, key=lambda failure: (failure.is_secondary, failure.time_s))
    reason = f"rank {first.rank} on {first.node} {_ending(first.exit_code)}"
    if first.words is not None:
        reason += f": {first.words}"
    is_users = first.words is not None and not first.is_secondary
    return Fault(
        kind=USER_ERROR if is_users else PROCESS_EXIT,
        node=first.node,
        rank=first.rank,
        reason=reason,
        traceback=first.traceback or first.last_words,
    )


def signature(traceback: str) -> str:
    """What two tracebacks of the same error have in common: the frames, and the last line without its numbers.

    Of other last words: all lines without their numbers.
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
