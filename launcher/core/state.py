"""The state of a job. It is frozen: each decision makes a new state.

Times are in seconds on the driver's clock. It starts at the current epoch time and never jumps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from rpds import HashTrieMap, HashTrieSet

from launcher.core.faults import Fault
from launcher.core.hang import Hang
from launcher.core.marks import Marks
from launcher.core.members import Members, Network
from launcher.core.outcomes import AttemptOutcome, JobOutcome
from launcher.core.replay import History
from launcher.core.rungs import Rung
from launcher.core.stop_reasons import StopReason
from launcher.diagnosis import NodeEvidence, WorkerFailure
from launcher.diagnosis.hang_facts import RankFacts
from launcher.diagnosis.ras import RasProcess


@dataclass(frozen=True, kw_only=True)
class RestartLimits:
    """The job file's `restart` section. `on`: the action after faults of a class."""

    max_without_progress: int = 3
    max_restarts: int = 100
    hang_timeout_s: float | None = None
    on: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ElasticLimits:
    """The job file's `elastic` section.

    Attributes:
        scaling_timeout_s: seconds without a change before the job grows.
        graceful_shutdown_timeout_s: seconds in which ranks must stop for a resize, and holders are released.
        faulty_scale_down_timeout_s: seconds to wait, after a loss, for a booster that is about to join.
        scale_up_snooze_s: seconds after the end of a booster or a failed request, before another request.
    """

    scaling_timeout_s: float = 60.0
    graceful_shutdown_timeout_s: float = 600.0
    faulty_scale_down_timeout_s: float = 30.0
    scale_up_snooze_s: float = 300.0


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """The facts that do not change while one supervisor leads.

    Attributes:
        nodes: all nodes of the base allocation with spares; those that should train come first.
        allocations: each node's allocation: a Slurm job id, or "local".
        sizes: the allowed numbers of training nodes, the largest first.
        base_nodes: number of base nodes that should train; 0 means sizes[0], and no boosters.
        booster_nodes, most_boosters: number of nodes of one booster, and of boosters for the largest size.
        elastic: the settings for growing and shrinking.
        limits: the settings for restarts.
        has_checkpoint: whether the job has a `checkpoint` section, and therefore agents.
        is_local: whether this is the embedded cluster. Its nodes are new at each start, and only users request
            boosters.
        can_requeue: whether the scheduler can start the job again.
        swaps_stragglers: whether a spare takes the place of a node that stays slow.
        predecessor: the node of the supervisor that is taken over; None if there is none, or if it was on this node.
        is_predecessor_silent: whether that node does not answer.
        is_take_over: whether a running job is taken over, rather than started (again) by the scheduler.
        network: the network between the nodes.
        start: fields of the event `job_start`.
        warnings: problems to record at the start.
        log_dir: the folder of an attempt's logs, for messages; `{attempt}` is replaced by its number.
    """

    nodes: tuple[str, ...]
    sizes: tuple[int, ...]
    allocations: Mapping[str, str] = field(default_factory=dict)
    base_nodes: int = 0
    booster_nodes: int = 0
    most_boosters: int = 0
    elastic: ElasticLimits = field(default_factory=ElasticLimits)
    limits: RestartLimits = field(default_factory=RestartLimits)
    has_checkpoint: bool = True
    is_local: bool = False
    can_requeue: bool = True
    swaps_stragglers: bool = False
    predecessor: str | None = None
    is_predecessor_silent: bool = False
    is_take_over: bool = False
    network: Network = field(default_factory=Network)
    start: Mapping[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    log_dir: str = "log/attempt-{attempt}"

    @property
    def base_size(self) -> int:
        """The largest size that needs no booster."""
        return self.base_nodes or self.sizes[0]


class BoosterPhase(Enum):
    """The state of a booster. Exactly one at any time."""

    RECORDING = "recording"  # until its request is on disk; the scheduler has not heard of it
    QUEUED = "queued"
    RUNNING = "running"
    LEAVING = "leaving"  # it serves until its nodes are not needed, and is then ended


@dataclass(frozen=True, kw_only=True)
class Booster:
    """An allocation in addition to the base.

    Attributes:
        allocation: its number in the run, for example b3. It has it before it is submitted.
        job_id: the scheduler's id of it; "" until the scheduler has answered.
        is_asked: whether the scheduler's answer to the request is awaited.
        reason: why it waits in the queue, or leaves.
        nodes: its nodes that are members.
        hosts: the nodes that the scheduler has given it; () while that is not known.
        running_s: time since which it runs; None if it is not known.
        broken_s: time since which a node of it is lost and none is in use.
        told_s: time of the last event with its reason to wait.
        is_end_sent: whether it was ordered to end.
        has_ended: whether the scheduler has reported its end.
    """

    allocation: str
    phase: BoosterPhase = BoosterPhase.RECORDING
    job_id: str = ""
    is_asked: bool = False
    reason: str = ""
    nodes: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    running_s: float | None = None
    broken_s: float | None = None
    told_s: float | None = None
    is_end_sent: bool = False
    has_ended: bool = False

    @property
    def name(self) -> str:
        """The scheduler's id, by which users know it."""
        return self.job_id or self.allocation


@dataclass(frozen=True, kw_only=True)
class Asking:
    """The request for the next booster.

    Attributes:
        ask_s: the earliest time of the next request.
        error: why the last request failed.
        failures: number of boosters in a row that could not start.
        avoided: nodes on which boosters could not start, and until when no booster is to have each.
    """

    ask_s: float = 0.0
    error: str = ""
    failures: int = 0
    avoided: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Resize:
    """The state of a change of size.

    Attributes:
        seen: the size that the job could have, and the number of nodes for it.
        since_s: time since which it has not changed.
        is_written: whether the event of the resize is on disk; only then ranks are stopped.
    """

    seen: tuple[int, int] = (0, 0)
    since_s: float | None = None
    is_written: bool = False


@dataclass(frozen=True, kw_only=True)
class Look:
    """The possible sizes with the current members and boosters.

    Attributes:
        wanted: the wanted size.
        size: the size of an attempt that began now; 0 if there are too few nodes.
        missing: number of wanted boosters without those in the queue or running; negative if there are too many.
    """

    members: Members
    boosters: tuple[Booster, ...]
    wanted: int
    size: int
    missing: int


@dataclass(frozen=True, kw_only=True)
class Tended:
    """The part of the state in which nothing was left to do for boosters until their next time.

    Attributes:
        attempt: the number of the running attempt; None between two attempts.
    """

    members: Members
    boosters: tuple[Booster, ...]
    holders: tuple[str, ...]
    attempt: int | None

    def is_same(self, other: Tended) -> bool:
        """Whether these are the same objects."""
        is_same = self.members is other.members and self.boosters is other.boosters and self.holders is other.holders
        return is_same and self.attempt == other.attempt


class AttemptPhase(Enum):
    """The phases of an attempt, in this order, except JUDGING. Any may be skipped."""

    __hash__ = object.__hash__  # Enum hashes the name, in Python; tables by phase are read in every decision

    RECORDING = "recording"  # until its start is recorded on disk, so that its number is never used twice
    RETURNING = "returning"  # after a take-over: until its runners have connected to this supervisor
    STARTING = "starting"  # until workers run on all nodes
    TRAINING = "training"
    JUDGING = "judging"  # the workers make no progress, and their stacks are taken
    FINDING_CAUSE = "finding_cause"  # a worker has failed, perhaps because of another fault
    EXPLAINING = "explaining"  # no agents came up: nodes or the scheduler are at fault
    RELEASING = "releasing"  # the agents finish their work
    KILLING = "killing"  # until every node has reported that no process of the attempt is left
    ENDED = "ended"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One life of the workers. Times are on the driver's clock.

    Attributes:
        nodes: in node-rank order.
        begun_s, phase_s: start of the attempt and of its phase.
        outcome: None before its end is decided.
        is_last: whether no other attempt follows, as far as was foreseen when its end was decided.
        started, ended, killed, lost, returned: nodes whose workers run; whose workers have ended with 0; whose
            processes are gone; that are lost; whose runners have connected (again) during the attempt.
        without_handler: nodes without agents whose workers were asked to stop but do not handle SIGTERM.
        failures: workers that ended with another exit code.
        evidence: what the nodes of these workers saw.
        is_clear: whether one of them did not fail as the consequence of another failure.
        faults: other causes of the attempt's end, the decisive one first.
        fault_s: time at which the first was noticed.
        recorded: number of recorded faults.
        step: the newest finished step; None before the first.
        committed_step: the newest step committed in any tier; 0 before the first.
        committed: the newest committed step of each tier.
        restored: whether the agents have started and agreed on the step to restore.
        stop_sent: the reason of the stop that the workers were asked for; None if they were not.
        is_stopped: whether workers that ended with 0 had been asked to, by a supervisor or by Slurm.
        others_s: time since which only the predecessor's node has not returned.
        lingering_s: time until which nodes wait for the last of their killed processes; None: none does.
    """

    number: int
    nodes: tuple[str, ...]
    begun_s: float
    phase: AttemptPhase = AttemptPhase.STARTING
    phase_s: float = 0.0
    outcome: AttemptOutcome | None = None
    is_last: bool = False
    started: HashTrieSet[str] = field(default_factory=HashTrieSet)
    ended: HashTrieSet[str] = field(default_factory=HashTrieSet)
    killed: HashTrieSet[str] = field(default_factory=HashTrieSet)
    lost: HashTrieSet[str] = field(default_factory=HashTrieSet)
    returned: HashTrieSet[str] = field(default_factory=HashTrieSet)
    without_handler: HashTrieSet[str] = field(default_factory=HashTrieSet)
    failures: tuple[WorkerFailure, ...] = ()
    evidence: HashTrieMap[str, NodeEvidence] = field(default_factory=HashTrieMap)
    is_clear: bool = False
    faults: tuple[Fault, ...] = ()
    fault_s: float | None = None
    recorded: int = 0
    step: int | None = None
    committed_step: int = 0
    committed: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    restored: bool = False
    first_step_seen: bool = False
    stop_sent: StopReason | None = None
    is_stopped: bool = False
    stall_reason: str = ""
    stacks: HashTrieMap[str, tuple[RankFacts, ...]] = field(default_factory=HashTrieMap)
    ras: tuple[RasProcess, ...] = ()
    others_s: float | None = None
    lingering_s: float | None = None

    @property
    def is_running(self) -> bool:
        return self.phase is not AttemptPhase.ENDED

    @property
    def all_started(self) -> bool:
        return len(self.started) >= len(self.nodes)

    @property
    def all_ended(self) -> bool:
        """Whether all workers have ended with 0."""
        return len(self.ended) >= len(self.nodes)

    @property
    def is_decisive(self) -> bool:
        """Whether the reports of the nodes decide that it is over."""
        return bool(self.faults or self.failures) or self.all_ended

    @property
    def has_stopped(self) -> bool:
        """Whether a stop without agents is over: no worker is left that may still exit by its own SIGTERM handler."""
        gone = {*self.without_handler, *self.ended, *(failure.node for failure in self.failures)}
        return bool(self.faults) or len(gone) >= len(self.nodes)


class AgentPhase(Enum):
    """The phases of the attempt's agents."""

    NONE = "none"  # none were started
    COMING_UP = "coming_up"  # until they have met; if the first are late, the scheduler is asked for the cause
    MAKING_WAY = "making_way"  # as coming_up, in place of agents that are ended because holders are released
    UP = "up"
    IN_DOUBT = "in_doubt"  # one is lost, perhaps with its node
    WAITING = "waiting"  # they are lost, until others are started
    GIVEN_UP = "given_up"  # they are lost, and no others are started for this attempt
    GONE = "gone"  # all have ended, and their launcher writes the last of their log


@dataclass(frozen=True, kw_only=True)
class AgentWorld:
    """The checkpoint agents of the attempt.

    Attributes:
        phase, until_s: the phase, and the time of its end if it has one.
        generation: 0 for the first agents; each replacement has the next number.
        has_launcher: whether a launcher reports the end of all agents.
        gone: nodes whose agents have ended.
        loss: the node and the reason of the loss that is in doubt.
        lost_s: time since which there are no agents; None if there are.
        losses_s: times of recent losses.
    """

    phase: AgentPhase = AgentPhase.NONE
    until_s: float | None = None
    generation: int = 0
    has_launcher: bool = False
    gone: HashTrieSet[str] = field(default_factory=HashTrieSet)
    loss: tuple[str | None, str] = (None, "")
    lost_s: float | None = None
    losses_s: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The start of the runners.

    Attributes:
        is_under_way: whether runners are started again if their start fails.
        has_ended: whether the launcher has ended.
        failed: nodes that the launcher could not reach.
        blind: number of restarts without a known failed node.
        doubtful: nodes lost meanwhile; the answer to AskLaunch shows whether the launcher was the cause.
        late_s: time at which missing runners are given up.
    """

    is_under_way: bool = False
    has_ended: bool = False
    failed: Mapping[str, str] = field(default_factory=dict)
    blind: int = 0
    doubtful: tuple[tuple[str, str, float], ...] = ()
    late_s: float | None = None


class Sigterm(Enum):
    """The explanation of the first SIGTERM, as far as it is known."""

    NONE = "none"
    ASKED = "asked"
    KNOWN = "known"
    AGAIN = "again"  # known, and another one has come: the job may be cancelled meanwhile


@dataclass(frozen=True, kw_only=True)
class Requests:
    """The requests from outside the job.

    Attributes:
        stop: why the job stops at a step boundary; None if it does not.
            For a resize only the attempt stops, and the job goes on.
        stop_s: time of the request.
        is_halt: whether a user has requested its end for good.
        is_halt_pending: whether that request waits for halt_step or halt_s (epoch).
        is_cancelled: whether the job must end; all that is left to do is to write the newest step to the lower tiers.
        cancelled_s: time of that request.
    """

    stop: StopReason | None = None
    stop_s: float = 0.0
    is_halt: bool = False
    is_halt_pending: bool = False
    halt_step: int = 0
    halt_s: float = 0.0
    is_cancelled: bool = False
    cancelled_s: float = 0.0
    sigterm: Sigterm = Sigterm.NONE


@dataclass(frozen=True, kw_only=True)
class TimeLimit:
    """The state of the job's time limit.

    Attributes:
        ask_s: time of the next question to the scheduler; None during a question, and once the limit is near.
        half_s: time at which half of the job's time has passed.
        is_warned: whether a signal has warned of it.
        is_near: whether the job was asked to stop because of it.
        is_ending: whether boosters are released, because they and their memory end with the job.
    """

    begun_s: float = 0.0
    ask_s: float | None = None
    half_s: float | None = None
    is_warned: bool = False
    is_near: bool = False
    is_ending: bool = False


class Stage(Enum):
    """The stages of the job, by what it waits for."""

    __hash__ = object.__hash__  # Enum hashes the name, in Python; tables by phase are read in every decision

    ASKING = "asking"  # which nodes cannot be given a process
    PROBING = "probing"  # the folder can be written
    GATHERING = "gathering"  # nodes
    ATTEMPT = "attempt"
    BACKING_OFF = "backing_off"
    DECIDING = "deciding"  # after a fault: the meaning of a SIGTERM, if there was one
    SCHEDULER = "scheduler"  # the scheduler answers again
    CONFIRMING = "confirming"  # before a requeue: the job is not being cancelled
    CLOSING = "closing"  # the folder still names this supervisor as the leader
    REQUEUEING = "requeueing"
    ENDED = "ended"


class RequeuePhase(Enum):
    """The progress of a requeue."""

    NONE = "none"
    ASKED = "asked"
    REFUSED = "refused"
    DONE = "done"


@dataclass(frozen=True, kw_only=True)
class State:
    """The whole state.

    Attributes:
        history: the part that replaying events.jsonl gives.
        stage, stage_s: the current stage, and its start.
        deadline_s: the stage's deadline, if it has one.
        again_s: time of the next try, if the stage repeats something.
        is_patient: whether to wait a moment for all nodes before choosing among them: before the first attempt.
        full_s: time since which as many nodes are ready as may train.
        rung: the rung of the recovery ladder for the next attempt; None after a resize: it follows from the nodes.
        positions: the nodes chosen last, in node-rank order.
        holders: nodes that serve their shards to the attempt and do not train.
        boosters: the allocations in addition to the base, in the order of their requests.
        marks: the nodes to leave before they fail.
        look: the possible sizes, as last computed.
        tended: the part of the state in which boosters were last looked after.
        attempt: the running or the last attempt.
        roll_call_s: time at which runners that are missing after a take-over are given up.
        is_isolated: whether most nodes are silent at once.
        lost_s: time of the last loss of a runner; None if none was lost.
        stood_still_s: time at which this process last continued after it had stood still.
        stood_still_for_s: seconds for which it had.
        is_waiting_told: whether the wait for the folder has been recorded.
        step: the newest finished step that was reported.
        fault, fault_nodes: the fault that ended the last attempt, and the attempt's nodes; () if none could begin.
        wants_requeue: whether the job is requeued at its end.
        blocked: why the awaited write or answer of the scheduler is not possible.
        ending: the outcome and reason during the end of the job.
        unsettled: number of unanswered Settle commands.
        timer_s: time of the driver's timer.
    """

    job: JobFacts
    history: History = field(default_factory=History)
    members: Members = field(default_factory=Members)
    stage: Stage = Stage.ASKING
    stage_s: float = 0.0
    deadline_s: float | None = None
    again_s: float | None = None
    is_patient: bool = True
    full_s: float | None = None
    rung: Rung | None = Rung.START
    positions: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()
    boosters: tuple[Booster, ...] = ()
    asking: Asking = field(default_factory=Asking)
    resize: Resize = field(default_factory=Resize)
    marks: Marks = field(default_factory=Marks)
    look: Look | None = field(default=None, compare=False)
    tended: Tended | None = field(default=None, compare=False)
    attempt: Attempt | None = None
    agents: AgentWorld = field(default_factory=AgentWorld)
    launch: Launch = field(default_factory=Launch)
    requests: Requests = field(default_factory=Requests)
    time_limit: TimeLimit = field(default_factory=TimeLimit)
    hang: Hang = field(default_factory=Hang)
    roll_call_s: float | None = None
    is_isolated: bool = False
    lost_s: float | None = None
    stood_still_s: float | None = None
    stood_still_for_s: float = 0.0
    is_waiting_told: bool = False
    step: int | None = None
    wants_requeue: bool = False
    fault: Fault | None = None
    fault_nodes: tuple[str, ...] = ()
    blocked: str = ""
    ending: tuple[JobOutcome, str] | None = None
    requeue: RequeuePhase = RequeuePhase.NONE
    requeue_error: str = ""
    unsettled: int = 0
    timer_s: float | None = None
