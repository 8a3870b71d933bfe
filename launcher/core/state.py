"""What is known of a job. Frozen: a decision makes a new state of it.

Times are seconds of the driver's clock, which counts from the epoch and never jumps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from rpds import HashTrieMap, HashTrieSet

from launcher.core.faults import Fault, WorkerFailure
from launcher.core.hang import Hang, RankStack, Stall
from launcher.core.inputs import NodeJoined
from launcher.core.members import Members
from launcher.core.replay import History


@dataclass(frozen=True, kw_only=True)
class RestartLimits:
    """The job file's `restart` section."""

    max_without_progress: int = 3
    max_restarts: int = 100
    hang_timeout_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class ElasticLimits:
    """The job file's `elastic` section.

    Attributes:
        scaling_timeout_s: how long nothing may have changed before the job grows.
        graceful_shutdown_timeout_s: how long ranks may take to stop for a resize, and holders to be let go.
        faulty_scale_down_timeout_s: how long to wait, after a loss, for a booster that is about to join.
        scale_up_snooze_s: after a booster has ended, or could not be had, before another is asked for.
    """

    scaling_timeout_s: float = 60.0
    graceful_shutdown_timeout_s: float = 600.0
    faulty_scale_down_timeout_s: float = 30.0
    scale_up_snooze_s: float = 300.0


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """What does not change while one supervisor leads.

    Attributes:
        nodes: all nodes of the base allocation, spares included, those that are to train first.
        allocations: each node's allocation: a Slurm job id, or "local".
        sizes: how many nodes may train, the largest number first.
        base_nodes: how many of the base's nodes are to train; 0 for sizes[0]: there are no boosters.
        booster_nodes, most_boosters: the nodes of one booster, and how many boosters the largest size needs.
        elastic: how it grows and shrinks.
        limits: when to give up.
        has_checkpoint: whether the job has a `checkpoint` section, and so agents.
        names_own_checkpoints: whether the job file has `progress`.
        is_local: the embedded cluster: its nodes are new at each start, and boosters are asked for only by a user.
        can_requeue: whether the scheduler can start the job again.
        predecessor: the node of the supervisor that is taken over; None for none, or for one on our node.
        is_predecessor_silent: whether nothing answers on that node.
        is_take_over: whether a running job is taken over, rather than started (again) by the scheduler.
        distance: how far apart two nodes are in the network.
        start: fields of the event `job_start`.
        warnings: problems to record at the start.
        log_dir: the folder of an attempt's logs, named in reasons; `{attempt}` stands for its number.
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
    names_own_checkpoints: bool = False
    is_local: bool = False
    can_requeue: bool = True
    predecessor: str | None = None
    is_predecessor_silent: bool = False
    is_take_over: bool = False
    distance: Callable[[str, str], int] = lambda one, other: 1
    start: Mapping[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    log_dir: str = "log/attempt-{attempt}"

    @property
    def base_size(self) -> int:
        """The largest size that needs no booster."""
        return self.base_nodes or self.sizes[0]


class BoosterPhase(Enum):
    """Where a booster stands. Exactly one at any time."""

    QUEUED = "queued"
    RUNNING = "running"
    LEAVING = "leaving"  # it serves until its nodes are not needed, and is ended


@dataclass(frozen=True, kw_only=True)
class Booster:
    """An allocation beside the base's.

    Attributes:
        reason: why it waits in the queue, or leaves.
        nodes: its members.
        running_s: since when it runs; None where that is not known.
        broken_s: since when a node of it is lost, and none is in use.
        told_s: when the reason why it waits was recorded.
        is_end_sent: whether it was ordered to end.
        has_ended: whether the scheduler says that it has.
    """

    allocation: str
    phase: BoosterPhase = BoosterPhase.QUEUED
    reason: str = ""
    nodes: tuple[str, ...] = ()
    running_s: float | None = None
    broken_s: float | None = None
    told_s: float | None = None
    is_end_sent: bool = False
    has_ended: bool = False


@dataclass(frozen=True, kw_only=True)
class Asking:
    """The next booster.

    Attributes:
        is_asked: whether an answer is awaited.
        ask_s: not before this time.
        error: why the last one could not be had.
        waiting: runners that came meanwhile, of allocations that are not known yet.
    """

    is_asked: bool = False
    ask_s: float = 0.0
    error: str = ""
    waiting: tuple[NodeJoined, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Resize:
    """The way to another size.

    Attributes:
        seen: the size that the job could have, and of how many nodes.
        since_s: since when that has not changed.
        is_written: whether the resize that was asked for is on disk: ranks are stopped only then.
    """

    seen: tuple[int, int] = (0, 0)
    since_s: float | None = None
    is_written: bool = False


@dataclass(frozen=True, kw_only=True)
class Look:
    """What the job could be with these members and boosters.

    Attributes:
        wanted: the size that is wanted.
        size: the size that the next attempt would have; 0 where too few nodes are there.
        missing: how many boosters are wanted beside those in the queue or running; negative for too many.
    """

    members: Members
    boosters: tuple[Booster, ...]
    wanted: int
    size: int
    missing: int


class AttemptPhase(Enum):
    """How far an attempt is; they follow each other in this order, but for JUDGING, and any may be passed over."""

    __hash__ = object.__hash__  # Enum hashes the name, in Python: tables by phase are read in every decision

    RECORDING = "recording"  # until its start is on disk: its number must not be given twice
    RETURNING = "returning"  # after a take-over: until its runners have found this supervisor
    STARTING = "starting"  # until workers run on all nodes
    TRAINING = "training"
    JUDGING = "judging"  # the workers make no progress: their stacks are taken
    FINDING_CAUSE = "finding_cause"  # a worker has failed: was it the first, or the consequence of something else?
    EXPLAINING = "explaining"  # no agents came up: are nodes at fault, or the scheduler?
    SETTLING = "settling"  # all have ended well: what does a SIGTERM mean?
    RELEASING = "releasing"  # the agents finish their work
    KILLING = "killing"  # until every node says that nothing of the attempt is left
    LOOKING = "looking"  # for newer files of the script's own checkpoints
    ENDED = "ended"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One life of the workers. Times are of the driver's clock.

    Attributes:
        nodes: in node-rank order.
        begun_s, phase_s: when it began, and when its phase did.
        outcome: done, fault, resized, stopped, halted or cancelled; "" before its end is decided.
        started, ended, killed, lost, returned: nodes whose workers run, have ended well, are gone; that are gone
            themselves; whose runners have come (back) during the attempt.
        without_handler: nodes whose workers were asked to stop and do not handle SIGTERM; without agents.
        failures: workers that ended otherwise.
        faults: what else ends the attempt, the decisive one first.
        fault_s: when the first was noticed.
        recorded: how many of the faults are recorded.
        step: the newest finished step; None before the first.
        committed_step: the newest step committed in any tier; 0 before the first.
        committed: the same by tier.
        restored: whether the agents have come up and agreed from where to go on.
        stop_sent: whether the workers were asked to stop.
        is_stopped: whether workers that ended well had been asked to, by whomever.
        others_s: since when only the predecessor's node has not returned.
    """

    number: int
    nodes: tuple[str, ...]
    begun_s: float
    phase: AttemptPhase = AttemptPhase.STARTING
    phase_s: float = 0.0
    outcome: str = ""
    started: HashTrieSet[str] = field(default_factory=HashTrieSet)
    ended: HashTrieSet[str] = field(default_factory=HashTrieSet)
    killed: HashTrieSet[str] = field(default_factory=HashTrieSet)
    lost: HashTrieSet[str] = field(default_factory=HashTrieSet)
    returned: HashTrieSet[str] = field(default_factory=HashTrieSet)
    without_handler: HashTrieSet[str] = field(default_factory=HashTrieSet)
    failures: tuple[WorkerFailure, ...] = ()
    faults: tuple[Fault, ...] = ()
    fault_s: float | None = None
    recorded: int = 0
    step: int | None = None
    committed_step: int = 0
    committed: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    restored: bool = False
    first_step_seen: bool = False
    stop_sent: bool = False
    is_stopped: bool = False
    stall: Stall | None = None
    stacks: HashTrieMap[str, tuple[RankStack, ...]] = field(default_factory=HashTrieMap)
    others_s: float | None = None

    @property
    def is_running(self) -> bool:
        return self.phase is not AttemptPhase.ENDED

    @property
    def all_started(self) -> bool:
        return len(self.started) >= len(self.nodes)

    @property
    def all_ended(self) -> bool:
        """Whether all workers have ended well."""
        return len(self.ended) >= len(self.nodes)

    @property
    def is_decisive(self) -> bool:
        """Whether it is over by what its nodes have reported."""
        return bool(self.faults or self.failures) or self.all_ended

    @property
    def has_stopped(self) -> bool:
        """Whether a stop without agents is over: no worker is left that may still end by its own SIGTERM handler."""
        gone = {*self.without_handler, *self.ended, *(failure.node for failure in self.failures)}
        return bool(self.faults) or len(gone) >= len(self.nodes)


@dataclass(frozen=True, kw_only=True)
class AgentWorld:
    """The checkpoint agents of the attempt.

    Attributes:
        generation: above 0 for those that took the place of lost ones.
        back: the newest generation that came up.
        has_launcher: whether something tells when all of them have ended.
        is_ended: whether all have ended.
        gone: nodes whose agents have ended, where nothing tells it of all.
        judge_s: when a loss is to be judged: perhaps it is its node's.
        loss: the node and the reason of that loss.
        is_judged: whether this generation's loss has been judged.
        lost_s: since when there are none; None while they are there.
        losses_s: when agents were lost of late.
        due_s: when others are started; None for not at all.
        ask_s: when to ask whether late ones can come up at all.
        makes_way: whether the agents of the generation before are being ended because holders are let go.
    """

    generation: int = 0
    back: int = 0
    has_launcher: bool = False
    is_ended: bool = False
    gone: HashTrieSet[str] = field(default_factory=HashTrieSet)
    judge_s: float | None = None
    loss: tuple[str | None, str] = (None, "")
    is_judged: bool = False
    lost_s: float | None = None
    losses_s: tuple[float, ...] = ()
    due_s: float | None = None
    ask_s: float | None = None
    makes_way: bool = False


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The start of the runners.

    Attributes:
        is_under_way: whether runners whose start fails are started again.
        has_ended: whether what launches them has ended.
        failed: nodes that it could not reach.
        blind: how often it was started again with nobody saying which node it was.
        doubtful: nodes lost meanwhile, of which AskLaunch is to tell whether it was the launcher.
        late_s: when runners that have not come are given up.
    """

    is_under_way: bool = False
    has_ended: bool = False
    failed: Mapping[str, str] = field(default_factory=dict)
    blind: int = 0
    doubtful: tuple[tuple[str, str, float], ...] = ()
    late_s: float | None = None


class Sigterm(Enum):
    """What is known of the first SIGTERM."""

    NONE = "none"
    ASKED = "asked"
    KNOWN = "known"


@dataclass(frozen=True, kw_only=True)
class Requests:
    """What somebody outside asks of the job.

    Attributes:
        stop: why it is to stop at a step boundary: halt, requeue, time_limit, preempted, batch_script_lost; or None.
            For a resize only the attempt stops, and the job goes on.
        stop_s: since when.
        is_halt: a user wants it to end for good.
        is_halt_pending: a user wants that, but not before halt_step and halt_s (epoch).
        is_cancelled: it is to end at once.
    """

    stop: str | None = None
    stop_s: float = 0.0
    is_halt: bool = False
    is_halt_pending: bool = False
    halt_step: int = 0
    halt_s: float = 0.0
    is_cancelled: bool = False
    sigterm: Sigterm = Sigterm.NONE


@dataclass(frozen=True, kw_only=True)
class TimeLimit:
    """The watch over the job's time limit.

    Attributes:
        ask_s: when to ask the scheduler next; None while an answer is awaited, and once the limit is near.
        half_s: half of the job's time.
        is_warned: whether a signal says that it is near.
        is_near: whether the job was asked to stop for it.
        is_ending: whether boosters are given back: they end with the job, and what they hold with them.
    """

    begun_s: float = 0.0
    ask_s: float | None = None
    half_s: float | None = None
    is_warned: bool = False
    is_near: bool = False
    is_ending: bool = False


class Stage(Enum):
    """What the job as a whole waits for."""

    __hash__ = object.__hash__  # Enum hashes the name, in Python: tables by phase are read in every decision

    ASKING = "asking"  # which nodes can be given a process
    PROBING = "probing"  # a folder that can be written
    GATHERING = "gathering"  # nodes
    LOOKING = "looking"  # the script's own checkpoints, as they are before the attempt
    ATTEMPT = "attempt"
    BACKING_OFF = "backing_off"
    DECIDING = "deciding"  # after a fault: what a SIGTERM means, if there was one
    SCHEDULER = "scheduler"  # a scheduler that answers
    CONFIRMING = "confirming"  # that it is not being cancelled, before a requeue
    CLOSING = "closing"  # a folder that says that this supervisor still leads
    REQUEUEING = "requeueing"
    ENDED = "ended"


class RequeuePhase(Enum):
    """How far the way back to the scheduler is."""

    NONE = "none"
    ASKED = "asked"
    REFUSED = "refused"
    DONE = "done"


@dataclass(frozen=True, kw_only=True)
class State:
    """Everything.

    Attributes:
        history: what events.jsonl holds: replaying it gives an equal one.
        stage, stage_s: what is waited for, and since when.
        deadline_s: until when, where the stage has an end of its own.
        again_s: when to try again, where the stage repeats something.
        is_patient: whether to wait a moment for all nodes, to choose among them: before the first attempt.
        full_s: since when as many nodes are ready as may train.
        rung: how the next attempt comes about.
        positions: the nodes chosen last, in node-rank order.
        holders: nodes that serve what they hold to the attempt and do not train.
        boosters: the allocations beside the base's, in the order in which they were asked for.
        look: what the job could be, as computed last.
        attempt: the one that runs, or ran last.
        roll_call_s: when runners that have not come back after a take-over are given up.
        is_isolated: most nodes are silent at once.
        stood_still_s: when this process went on after it had stood still, the last time.
        is_waiting_told: whether the wait for the folder has been recorded.
        step: the newest finished step that is known.
        fault, fault_nodes: what ended the last attempt, and the nodes of that; () where none could begin.
        wants_requeue: whether the job goes back to the scheduler at its end.
        blocked: what stands against the write, or the scheduler's answer, that is waited for.
        ending: the outcome and reason while the end is prepared.
        unsettled: how many Settle are not answered yet.
        timer_s: when the driver's timer fires.
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
    rung: str = "start"
    positions: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()
    boosters: tuple[Booster, ...] = ()
    asking: Asking = field(default_factory=Asking)
    resize: Resize = field(default_factory=Resize)
    look: Look | None = field(default=None, compare=False)
    attempt: Attempt | None = None
    agents: AgentWorld = field(default_factory=AgentWorld)
    launch: Launch = field(default_factory=Launch)
    requests: Requests = field(default_factory=Requests)
    time_limit: TimeLimit = field(default_factory=TimeLimit)
    hang: Hang = field(default_factory=Hang)
    roll_call_s: float | None = None
    is_isolated: bool = False
    stood_still_s: float | None = None
    is_waiting_told: bool = False
    step: int | None = None
    wants_requeue: bool = False
    fault: Fault | None = None
    fault_nodes: tuple[str, ...] = ()
    blocked: str = ""
    ending: tuple[str, str] | None = None
    requeue: RequeuePhase = RequeuePhase.NONE
    requeue_error: str = ""
    unsettled: int = 0
    timer_s: float | None = None
