"""All inputs of the core. The driver makes them from the runners' messages, the scheduler's answers, signals, files and
its single timer. An input about an attempt has the attempt's number; inputs about other attempts are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from launcher.core.commands import Purpose
from launcher.core.faults import FaultKind
from launcher.core.hang import WorkSection
from launcher.core.stop_reasons import StopReason
from launcher.diagnosis import NodeEvidence, WorkerFailure
from launcher.diagnosis.hang_facts import RankFacts
from launcher.diagnosis.policy import Action
from launcher.diagnosis.ras import RasProcess
from launcher.diagnosis.slow_rank import Straggler


@dataclass(frozen=True, kw_only=True, slots=True)
class TimerFired:
    """The time of the last SetTimer has come."""


# Nodes and their runners


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeJoined:
    """A node's runner has connected, for the first time or again.

    Attributes:
        attempt: the attempt whose workers run on the node; None if there is none.
        is_warm: whether its warm process has loaded torch.
        problem: why the node cannot train; None if it can.
        allocation: the runner's allocation: a booster's number, or the id of the base; "" counts as the node's own. A
            runner of a second allocation on a node is reported too, and neither replaces the other. The core dismisses
            one of them.
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
        is_environment: whether the cause is that the job's Python cannot load what workers need.
    """

    node: str
    reason: str
    is_environment: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class NodesDrained:
    """The nodes of the job that the scheduler drains or is to replace. Sent when they change.

    Attributes:
        reasons: why, in words. Nodes that are missing here are not drained any more.
    """

    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeIncident:
    """The last health check on a node has found something critical. Sent when this changes.

    Attributes:
        reason: what it has found; None: nothing any more.
    """

    node: str
    reason: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class IsolationChanged:
    """Most nodes are silent at once, so this node may be the one that is cut off; or this has ended."""

    is_isolated: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class StoodStill:
    """The supervisor process did not run for a while, so it received nothing."""

    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchEnded:
    """The launcher of the runners has ended, or is about to; or the answer to AskLaunch.

    Attributes:
        failed: nodes on which no process could be started, with the reason.
        has_ended: whether it has ended, or is about to.
    """

    failed: Mapping[str, str] = field(default_factory=dict)
    has_ended: bool = True


# One attempt's workers, as a node reports them


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkersStarted:
    node: str
    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkersEnded:
    """The workers of a node have ended by themselves.

    Attributes:
        ok: whether all exited with 0.
        failures: the workers that did not.
        evidence: what the node saw meanwhile.
        reason: the reason if not ok and there is no failure to name.
        step: the newest step finished on the node; None if none is known.
        is_stopped: whether a supervisor, or Slurm, had asked them to stop.
    """

    node: str
    attempt: int
    ok: bool
    failures: tuple[WorkerFailure, ...] = ()
    evidence: NodeEvidence = field(default_factory=NodeEvidence)
    reason: str = ""
    step: int | None = None
    is_stopped: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultReported:
    """A runner reports a fault, for which the attempt ends.

    Attributes:
        rank: the rank at fault; None: no single one.
        action: what follows; None: what follows a fault of its class.
    """

    node: str
    attempt: int
    kind: FaultKind
    reason: str
    rank: int | None = None
    action: Action | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkersKilled:
    """A node has ended all processes of an attempt.

    Attributes:
        left: processes that could not be killed.
        held: the memory on the node's GPUs that was not freed in time; "" if all was.
    """

    node: str
    attempt: int
    step: int | None = None
    left: tuple[int, ...] = ()
    held: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lingering:
    """Killed processes of an attempt have not ended yet, or still hold memory on GPUs. WorkersKilled follows.

    Attributes:
        held: the processes; or the GPUs, with the memory and the processes.
        wait_s: for how long the node waits.
    """

    node: str
    attempt: int
    held: str
    wait_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """The progress of an attempt's workers, combined from the heartbeats of all its nodes. Sent when it changes.

    Attributes:
        step: the newest finished step; None before the first.
        slowest: the step of the slowest rank; None before any rank reports one.
        is_over: whether ranks have reported steps and none will report another.
        is_active: whether any worker wrote output or used CPU time since the last report.
        rank_ended: whether a rank has ended.
        section: what the ranks do: the section with the longest limit that any of them is in.
    """

    attempt: int
    step: int | None = None
    slowest: int | None = None
    is_over: bool = False
    is_active: bool = False
    rank_ended: bool = False
    section: WorkSection = WorkSection.STEP


@dataclass(frozen=True, kw_only=True, slots=True)
class StragglerSeen:
    """A node has become slow: the others wait for a rank of it."""

    node: str
    attempt: int
    straggler: Straggler


@dataclass(frozen=True, kw_only=True, slots=True)
class StragglerGone:
    """A node that was slow is as fast as the others."""

    node: str
    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstStep:
    """A node has finished its first step of the attempt. `time_s` (epoch) is the node's own clock."""

    node: str
    attempt: int
    step: int
    time_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoreRefused:
    """The agents do not let training begin: lower tiers have steps, and none can be restored."""

    node: str
    attempt: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StopHandled:
    """A node has sent a stop to workers without checkpoint agents.

    Attributes:
        has_handler: whether they handle SIGTERM, so that they may save and end by themselves.
    """

    node: str
    attempt: int
    has_handler: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class StacksTaken:
    """The stacks of a node's workers, and what NCCL's RAS says of the whole job, if this node has asked it."""

    node: str
    attempt: int
    stacks: tuple[RankFacts, ...]
    ras: tuple[RasProcess, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Reported:
    """A fact about an attempt that is only recorded: an event "problem", "rebuilt" or "stop_agreed".

    Attributes:
        node: which has told it; None if it concerns all nodes.
    """

    node: str | None
    attempt: int
    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)


# The checkpoint agents


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """The agents have started and agreed on the step to restore. Every node may report it."""

    attempt: int
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentsRejoined:
    """The agents that replace lost ones have started."""

    attempt: int
    generation: int
    step: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Committed:
    """A step is committed in a tier. Every node may report it."""

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
    """The launcher of one generation of agents has ended, or could not be started.

    Attributes:
        reason: why it could not be started; "" if it has ended.
    """

    attempt: int
    generation: int
    reason: str = ""


# Answers to commands


@dataclass(frozen=True, kw_only=True, slots=True)
class UnusableAnswered:
    """The scheduler's answer to AskUnusable.

    Attributes:
        asked, purpose: the command's nodes and purpose.
        unusable: nodes on which no process can be started, with the reasons.
        error: why the scheduler does not answer; then nothing is known about the nodes.
    """

    asked: tuple[str, ...]
    purpose: Purpose
    unusable: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TerminationExplained:
    """The meaning of a SIGTERM: CANCEL, REQUEUE, PREEMPTED or BATCH_SCRIPT_LOST."""

    why: StopReason


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeLeftAnswered:
    """Seconds until the scheduler ends the job; None if there is no limit or it is not known."""

    left_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderProbed:
    """Whether the job's folder can be written and names this supervisor as the leader; `error` is None if so."""

    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EventsWritten:
    """All events recorded before the command Settle are in the file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnCheckpointsSeen:
    """The newest file of the script's own checkpoints has changed.

    Attributes:
        file: its path; "" if there is no file.
        modified_s: its modification time (epoch); 0 if there is no file.
    """

    file: str
    modified_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Requeued:
    """The scheduler will start the job again; or it does not, for the reason in `error`.

    Attributes:
        lacks_nodes: whether it does not because too few nodes are left beside those to be excluded.
    """

    error: str | None = None
    lacks_nodes: bool = False


# Boosters


class AllocationState(Enum):
    """The state of a booster's allocation in the scheduler. A preempted one continues to run for its grace time."""

    QUEUED = "queued"
    RUNNING = "running"
    PREEMPTED = "preempted"
    ENDED = "ended"


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocationAsked:
    """The answer to AskAllocation.

    Attributes:
        job_id: the scheduler's id of the booster; "" if the request failed.
        error: why it failed. The scheduler may have the booster nevertheless.
    """

    allocation: str
    job_id: str = ""
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocationsSeen:
    """The state of the boosters. The driver asks every 10 s while there are any.

    Attributes:
        states: by allocation: of all boosters of the run that the scheduler has, and of those that it has forgotten. A
            booster that is being requested is not among the forgotten ones.
        reasons: why each is queued or how it ended, in the scheduler's words.
        nodes: the nodes of each that runs or has run.
        failed: those that have ended with an error of their own.
    """

    states: Mapping[str, AllocationState] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    failed: frozenset[str] = frozenset()


# Requests


@dataclass(frozen=True, kw_only=True, slots=True)
class Terminated:
    """A node's runner, or the supervisor (node None), has received a SIGTERM.

    On a booster's node it means that this allocation leaves.

    Attributes:
        why: why the booster's allocation ends, if the scheduler has said so; "" counts as a preemption.
    """

    node: str | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeWarned:
    """A signal warns that the time limit is near."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HaltAsked:
    """A user has requested that the job saves and ends for good.

    Attributes:
        at_step: the earliest step.
        at_s: the earliest time (epoch); 0: at once.
    """

    at_step: int = 0
    at_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaleAsked:
    """A user has requested a number of nodes. The job trains on the largest allowed size that is not above it.

    Attributes:
        nodes: the number; None for the size in the job file.
    """

    nodes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelAsked:
    """A user has requested that the job ends without training on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderRemoved:
    """The job's folder was removed, so nothing can be recorded any more."""

    reason: str


Input = (
    TimerFired
    | NodeJoined
    | NodeWarm
    | NodeLost
    | NodeBroken
    | NodesDrained
    | NodeIncident
    | IsolationChanged
    | StoodStill
    | LaunchEnded
    | WorkersStarted
    | WorkersEnded
    | WorkersKilled
    | FaultReported
    | Lingering
    | Progress
    | StragglerSeen
    | StragglerGone
    | FirstStep
    | RestoreRefused
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
