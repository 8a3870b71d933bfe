"""Every input of the core. The driver makes them of the runners' messages, the scheduler's answers, signals, files and
its one timer. An input that concerns an attempt carries the attempt's number; one of another attempt is ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from launcher.core.commands import Purpose
from launcher.core.faults import WorkerFailure
from launcher.core.hang import RankStack


@dataclass(frozen=True, kw_only=True, slots=True)
class TimerFired:
    """The moment of the last SetTimer has come."""


# Nodes and their runners.


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeJoined:
    """A node's runner has connected, for the first time or again.

    Attributes:
        attempt: the attempt whose workers it has; None for none.
        is_warm: whether its warm process has loaded torch.
        problem: why the node cannot train; None if it can.
        allocation: the runner's: a Slurm job id, or "local"; "" is taken for the node's own. A runner whose node has a
            connected runner of another allocation is reported as well, and neither takes the other's place: the core
            dismisses one of them.
    """

    node: str
    attempt: int | None = None
    is_warm: bool = False
    problem: str | None = None
    allocation: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeWarm:
    """The warm process of a node has loaded torch."""

    node: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeLost:
    """A node's runner is silent, or its connection has closed.

    Attributes:
        detect_s: seconds of silence before this was noticed; 0 for a closed connection.
    """

    node: str
    reason: str
    detect_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeBroken:
    """A runner cannot start workers.

    Attributes:
        is_environment: the job's Python does not load what workers need there.
    """

    node: str
    reason: str
    is_environment: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class IsolationChanged:
    """Most nodes are silent at once, so that it may be this one that is cut off; or no longer."""

    is_isolated: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class StoodStill:
    """The supervisor did not run for a while, so it received nothing."""

    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchEnded:
    """What launches the runners has ended, or is about to, or its log was asked for (AskLaunch).

    Attributes:
        failed: nodes on which no process could be started, with the reason.
        has_ended: whether it has ended, or is about to.
    """

    failed: Mapping[str, str] = field(default_factory=dict)
    has_ended: bool = True


# One attempt's workers, as a node reports them.


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkersStarted:
    node: str
    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkersEnded:
    """The workers of a node have ended by themselves.

    Attributes:
        ok: whether all exited with 0.
        failures: those that did not.
        reason: why not ok, where there is no failure to name.
        step: the newest step finished on the node; None if none is known.
        is_stopped: whether a supervisor, or Slurm, had asked them to stop.
    """

    node: str
    attempt: int
    ok: bool
    failures: tuple[WorkerFailure, ...] = ()
    reason: str = ""
    step: int | None = None
    is_stopped: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkersKilled:
    """A node has ended everything of an attempt.

    Attributes:
        left: pids that the kernel would not let go.
    """

    node: str
    attempt: int
    step: int | None = None
    left: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far the workers of an attempt are: the heartbeats of all its nodes, put together; sent when it changes.

    Attributes:
        step: the newest finished step; None before the first.
        slowest: the step of the rank that is furthest behind; None before any rank tells one.
        is_over: whether ranks have told steps and none is still to tell another.
        is_active: whether any worker wrote output or used CPU time since the last one.
        rank_ended: whether a rank has ended.
    """

    attempt: int
    step: int | None = None
    slowest: int | None = None
    is_over: bool = False
    is_active: bool = False
    rank_ended: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstStep:
    """A node has finished its first step of the attempt, at `time_s` (epoch) by its own clock."""

    node: str
    attempt: int
    step: int
    time_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class FabricMissed:
    """NCCL does not use the node's fabric.

    Attributes:
        is_required: whether the job file says `fabric: require`.
    """

    node: str
    attempt: int
    problem: str
    is_required: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class StopHandled:
    """A node has passed a stop on to workers that have no checkpoint agents.

    Attributes:
        has_handler: whether they handle SIGTERM, so that they may save and end by themselves.
    """

    node: str
    attempt: int
    has_handler: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class StacksTaken:
    """Where the node's workers are."""

    node: str
    attempt: int
    stacks: tuple[RankStack, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reported:
    """A fact about an attempt that is only to be recorded: an event "problem", "rebuilt" or "stop_agreed"."""

    node: str
    attempt: int
    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)


# The checkpoint agents.


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """The agents have come up and agreed from which step to go on; every node may report it."""

    attempt: int
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentsRejoined:
    """Agents that took the place of lost ones have come up."""

    attempt: int
    generation: int
    step: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Committed:
    """A step is committed in a tier; every node may report it."""

    attempt: int
    step: int
    tier: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentLost:
    """A node's agent has ended before it was released, or does not answer."""

    node: str
    attempt: int
    generation: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentEnded:
    """A node's agent has ended after it was released."""

    node: str
    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentsEnded:
    """What launched the agents of a generation has ended, or could not be started.

    Attributes:
        reason: why it could not be started; "" otherwise.
    """

    attempt: int
    generation: int
    reason: str = ""


# Answers to commands.


@dataclass(frozen=True, kw_only=True, slots=True)
class UnusableAnswered:
    """The scheduler's answer to AskUnusable.

    Attributes:
        asked, purpose: the command's nodes and purpose.
        unusable: nodes that can be given no process, with the reason.
        error: the scheduler does not answer; nothing is known of the nodes.
    """

    asked: tuple[str, ...]
    purpose: Purpose
    unusable: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TerminationExplained:
    """What a SIGTERM means: "cancel", "requeue", "preempted" or "batch_script_lost"."""

    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeLeftAnswered:
    """Seconds until the scheduler ends the job; None for no limit, or where nothing is known."""

    left_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderProbed:
    """Whether the job's folder can be written, and says that this supervisor rules; `error` is None if so."""

    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EventsWritten:
    """All events recorded before the command Settle are in the file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnCheckpointsSeen:
    """The newest file of the script's own checkpoints; None if it is the same as before, or was not found in time."""

    file: str | None = None
    modified_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Requeued:
    """The scheduler starts the job again; or does not, with the reason."""

    error: str | None = None


# Boosters: allocations beside the base's.


class AllocationState(Enum):
    """Where a booster's allocation stands with the scheduler. One that is preempted runs on for its grace time."""

    QUEUED = "queued"
    RUNNING = "running"
    PREEMPTED = "preempted"
    ENDED = "ended"


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocationAsked:
    """The answer to AskAllocation.

    Attributes:
        allocation: its id; None where there is none, because of `error`.
    """

    allocation: str | None
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocationsSeen:
    """How the boosters in `State.boosters` stand: the driver asks every 10 s while there are any.

    Attributes:
        states: by allocation; one of which nothing is known is left out.
        reasons: why each is queued, or how it ended, in the scheduler's words.
    """

    states: Mapping[str, AllocationState] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)


# Requests.


@dataclass(frozen=True, kw_only=True, slots=True)
class Terminated:
    """A SIGTERM has arrived at a node's runner, or at the supervisor (node None).

    At a booster's node it means that this allocation leaves.
    """

    node: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeWarned:
    """A signal says that the time limit is near."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HaltAsked:
    """A user wants the job to save and end for good.

    Attributes:
        at_step: not before this step.
        at_s: not before this time (epoch); 0 for at once.
    """

    at_step: int = 0
    at_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaleAsked:
    """A user wants the job to train on that many nodes: the largest allowed size that is not above it."""

    nodes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelAsked:
    """A user wants the job to end at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderRemoved:
    """Somebody has removed the job's folder: nothing can be recorded any more."""

    reason: str


Input = (
    TimerFired
    | NodeJoined
    | NodeWarm
    | NodeLost
    | NodeBroken
    | IsolationChanged
    | StoodStill
    | LaunchEnded
    | WorkersStarted
    | WorkersEnded
    | WorkersKilled
    | Progress
    | FirstStep
    | FabricMissed
    | StopHandled
    | StacksTaken
    | Reported
    | Restored
    | AgentsRejoined
    | Committed
    | AgentLost
    | AgentEnded
    | AgentsEnded
    | UnusableAnswered
    | TerminationExplained
    | TimeLeftAnswered
    | FolderProbed
    | EventsWritten
    | OwnCheckpointsSeen
    | Requeued
    | AllocationAsked
    | AllocationsSeen
    | Terminated
    | TimeWarned
    | HaltAsked
    | ScaleAsked
    | CancelAsked
    | FolderRemoved
)
