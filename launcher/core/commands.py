"""Every command of the core. The driver performs them in order; it decides nothing.

Orders to nodes, to the scheduler and into the job's folder leave the process only while this supervisor leads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class SetTimer:
    """One TimerFired at `at_s` (the clock of `now_s`), in place of any set before; None for none."""

    at_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """An event for events.jsonl, in the order of the commands.

    Attributes:
        time_s: when, in epoch seconds.
        fields: attempt, node, step, seconds, and the event's own; JSON values. See `launcher.history.fields`.
    """

    event: str
    time_s: float
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settle:
    """Answered by EventsWritten when the events so far are in the file: they must survive this supervisor."""


# To runners.


class Order(Enum):
    """What a runner can be asked for about an attempt."""

    STOP = "stop"  # all ranks stop at one step boundary
    DUMP = "dump"  # take the workers' stacks
    RELEASE_AGENT = "release_agent"  # the agent may finish its work and end
    RENEW_AGENT = "renew_agents"  # the agent makes way for one of the next generation
    KILL = "kill"  # end everything of the attempt


@dataclass(frozen=True, kw_only=True, slots=True)
class Send:
    """An order to the runners of some nodes.

    Attributes:
        generation: of the agents that come; only for RENEW_AGENT.
    """

    nodes: tuple[str, ...]
    order: Order
    attempt: int
    generation: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class StartWorkers:
    """Start an attempt's workers.

    Attributes:
        nodes: in node-rank order.
        has_agents: whether checkpoint agents come up beside them.
    """

    nodes: tuple[str, ...]
    attempt: int
    has_agents: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Leave:
    """A runner ends, and may be started again; it keeps its memory."""

    node: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Dismiss:
    """A node's runner ends now, or when it comes; nothing more is received from it.

    Attributes:
        forget: whether it removes the node's memory directory.
        allocation: only the runner of this allocation: one of another may be there, or come later. "" for any.
    """

    node: str
    forget: bool
    allocation: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class AwaitReturn:
    """After a take-over: these nodes' runners look for this supervisor; until they come they count as silent."""

    nodes: tuple[str, ...]


# Processes.


@dataclass(frozen=True, kw_only=True, slots=True)
class StartRunners:
    """Start a runner on each of these nodes."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseRunners:
    """What launched the runners no longer acts on their nodes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AskLaunch:
    """Answered by LaunchEnded: which nodes the runners' launcher could not reach so far."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StartAgents:
    """Start the checkpoint agents of an attempt as one MPI world; its end is answered by AgentsEnded.

    Attributes:
        nodes: in node-rank order.
        generation: 0 for the attempt's first agents.
        holders: nodes behind `nodes` in the MPI world that do not train: they serve what they hold, until the next
            generation is started without them.
        allocations: the allocation of each node, holders too.
    """

    nodes: tuple[str, ...]
    attempt: int
    generation: int
    holders: tuple[str, ...] = ()
    allocations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class AdoptAgents:
    """Take over the agents that an earlier supervisor started."""

    attempt: int
    generation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KillAgents:
    """End the agents' launcher; agents that outlive it are ended by their runners."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LetGo:
    """Others may have taken over: what was started here must no longer act on its nodes. Runners go on."""


# To the scheduler and the job's folder.


class Purpose(Enum):
    """Why it is asked which nodes can be given no process."""

    START = "start"  # before the runners are started
    AGAIN = "again"  # before they are started again, as all were lost at once
    LATE_AGENTS = "late_agents"  # the agents are slow to come up
    AGENTS_FAILED = "agents_failed"  # they did not come up: are nodes at fault, or the scheduler?
    RETURN = "return"  # a lost node's runner is back
    SCHEDULER = "scheduler"  # whether it answers at all


@dataclass(frozen=True, kw_only=True, slots=True)
class AskUnusable:
    """Answered by UnusableAnswered with the same nodes and purpose.

    Attributes:
        allocations: the allocation of each node.
    """

    nodes: tuple[str, ...]
    purpose: Purpose
    allocations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class AskAllocation:
    """Ask for one booster. Answered by AllocationAsked.

    Attributes:
        nodes: how many.
        exclude: nodes that it must not have: the base's, and those that are out.
    """

    nodes: int
    exclude: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class EndAllocation:
    """End a booster, or take it out of the queue. It may be given again, and for one that has ended."""

    allocation: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AskWhyTerminated:
    """Answered by TerminationExplained."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AskTimeLeft:
    """Answered by TimeLeftAnswered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeFolder:
    """Answered by FolderProbed: whether the logs of an attempt can be written to the job's folder, or (attempt None)
    whether the folder still says that this supervisor leads."""

    attempt: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LookAtOwnCheckpoints:
    """Answered by OwnCheckpointsSeen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Requeue:
    """Have the scheduler end this job and start it again. Answered by Requeued.

    Attributes:
        exclude: nodes that are not to be given again.
    """

    exclude: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class EndJob:
    """The last command: end whatever is left, and unless the job goes on elsewhere write its result.

    Attributes:
        reason: why, in words; for halted, what kept the ranks from saving in the stop, or "".
        outcome: done, stopped, halted, user_error, no_progress, too_few_nodes, cancelled, fabric or internal.
    """

    outcome: str
    reason: str
    step: int | None


Command = (
    SetTimer
    | Record
    | Settle
    | Send
    | StartWorkers
    | Leave
    | Dismiss
    | AwaitReturn
    | StartRunners
    | ReleaseRunners
    | AskLaunch
    | StartAgents
    | AdoptAgents
    | KillAgents
    | LetGo
    | AskUnusable
    | AskAllocation
    | EndAllocation
    | AskWhyTerminated
    | AskTimeLeft
    | ProbeFolder
    | LookAtOwnCheckpoints
    | Requeue
    | EndJob
)
