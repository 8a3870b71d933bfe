"""All commands of the core. The driver carries them out in order, and decides nothing.

Orders to nodes and to the scheduler, and writes to the job's folder, happen only while this supervisor leads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from launcher.core.outcomes import JobOutcome


@dataclass(frozen=True, kw_only=True, slots=True)
class SetTimer:
    """Sends one TimerFired at `at_s` (on the clock of `now_s`). Replaces the timer set before; None: no timer."""

    at_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Writes an event to events.jsonl, in the order of the commands.

    Attributes:
        time_s: the event's time, in epoch seconds.
        fields: attempt, node, step, seconds, and the event's own fields; JSON values. See `launcher.history.fields`.
    """

    event: str
    time_s: float
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settle:
    """Asks for EventsWritten once all events so far are in the file. They must survive this supervisor."""


# Commands to runners


class Order(Enum):
    """The orders to a runner about an attempt."""

    STOP = "stop"  # all ranks stop at one step boundary
    DUMP = "dump"  # write the workers' stacks
    FINISH_AGENT = "finish_agent"  # the job ends: workers are killed, the agent writes the newest step and exits
    RELEASE_AGENT = "release_agent"  # the agent may finish the writes that it has begun, and exit
    RENEW_AGENT = "renew_agents"  # the agent ends, so that one of the next generation can start
    KILL = "kill"  # end all processes of the attempt


@dataclass(frozen=True, kw_only=True, slots=True)
class Send:
    """Sends an order to the runners of some nodes.

    Attributes:
        generation: that of the next agents; only for RENEW_AGENT.
        lower_s: for how long ranks that have saved wait for the lower tiers; None: until their own deadline; only for
            STOP.
    """

    nodes: tuple[str, ...]
    order: Order
    attempt: int
    generation: int = 0
    lower_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StartWorkers:
    """Starts an attempt's workers.

    Attributes:
        nodes: in node-rank order.
        has_agents: whether checkpoint agents run on the nodes.
    """

    nodes: tuple[str, ...]
    attempt: int
    has_agents: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Leave:
    """A runner exits but keeps the node's memory. It may be started again."""

    node: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Dismiss:
    """A node's runner exits, at once or when it connects. Its loss is not reported.

    Attributes:
        forget: whether it removes the node's memory directory.
        allocation: only this allocation's runner exits, because another allocation's may be there too; "": any runner.
    """

    node: str
    forget: bool
    allocation: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class AwaitReturn:
    """After a take-over: these nodes count as silent until their runners connect to this supervisor."""

    nodes: tuple[str, ...]


# Commands about processes


@dataclass(frozen=True, kw_only=True, slots=True)
class StartRunners:
    """Starts a runner on each of these nodes."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseRunners:
    """The runners' launcher must no longer act on their nodes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AskLaunch:
    """Asks for LaunchEnded: the nodes that the runners' launcher could not reach so far."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StartAgents:
    """Starts the checkpoint agents of an attempt as one MPI world. AgentsEnded reports its end.

    Attributes:
        nodes: in node-rank order.
        generation: 0 for the attempt's first agents.
        holders: nodes after `nodes` in the MPI world that do not train. They serve their shards until the next
        generation is started without them.
        allocations: the allocation of each node, including holders.
    """

    nodes: tuple[str, ...]
    attempt: int
    generation: int
    holders: tuple[str, ...] = ()
    allocations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class AdoptAgents:
    """Takes over the agents that an earlier supervisor started."""

    attempt: int
    generation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KillAgents:
    """Ends the agents' launcher. Runners end the agents that survive it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LetGo:
    """Other supervisors may have taken over, so processes started here must no longer act on nodes.

    Runners continue.
    """


# Commands to the scheduler and in the job's folder


class Purpose(Enum):
    """The purpose of the question which nodes cannot be given a process."""

    START = "start"  # before the runners are started
    AGAIN = "again"  # before they are started again after all were lost at once
    LATE_AGENTS = "late_agents"  # the agents are slow to come up
    AGENTS_FAILED = "agents_failed"  # whether nodes or the scheduler are at fault
    RETURN = "return"  # a lost node's runner is back
    SCHEDULER = "scheduler"  # whether the scheduler answers at all


@dataclass(frozen=True, kw_only=True, slots=True)
class AskUnusable:
    """Asks the scheduler which nodes are unusable. UnusableAnswered has the same nodes and purpose.

    Attributes:
        allocations: the allocation of each node.
    """

    nodes: tuple[str, ...]
    purpose: Purpose
    allocations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class AskAllocation:
    """Requests one booster. Answered by AllocationAsked.

    It may be a repetition after a take-over. If the scheduler has the booster already, no other one is submitted.

    Attributes:
        allocation: the booster's number.
        nodes: number of nodes.
        exclude: nodes that it must not have: those of the base, and those that are out.
    """

    allocation: str
    nodes: int
    exclude: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class EndAllocation:
    """Ends a booster, or removes it from the queue, by its number. May be repeated, also after the booster has ended,
    and if it may never have been submitted."""

    allocation: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GiveBack:
    """Returns a node of the base, which the job has left, to the scheduler. The job may keep it where that fails."""

    node: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AskWhyTerminated:
    """Asks for the meaning of a SIGTERM. Answered by TerminationExplained."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AskTimeLeft:
    """Asks for the time until the time limit. Answered by TimeLeftAnswered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeFolder:
    """Asks for FolderProbed: whether an attempt's logs can be written to the job's folder. If `attempt` is None:
    whether the folder still names this supervisor as the leader."""

    attempt: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Requeue:
    """Makes the scheduler end this job and start it again. Answered by Requeued.

    Attributes:
        exclude: nodes that the job must not get again.
    """

    exclude: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class EndJob:
    """The last command: ends all processes, and writes the job's result unless the job continues elsewhere.

    Attributes:
        reason: the reason in words; for halted, why the ranks could not save in the stop, or "".
    """

    outcome: JobOutcome
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
    | GiveBack
    | AskWhyTerminated
    | AskTimeLeft
    | ProbeFolder
    | Requeue
    | EndJob
)
