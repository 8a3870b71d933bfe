"""The recovery ladder: after a fault, the lowest rung that serves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from launcher.core import boosters
from launcher.core.faults import Fault, FaultKind
from launcher.core.gains import RAN_S, Gains
from launcher.core.members import Phase, is_usable
from launcher.core.outcomes import JobOutcome
from launcher.core.rungs import Rung
from launcher.core.state import RestartLimits
from launcher.core.turn import Turn
from launcher.diagnosis.policy import Action, action_for

_GONE = (Phase.OUT, Phase.RETURNING, Phase.LEAVING)

AGREEING_NODES = 2  # must report a fault that is certain to come again: one alone may lack a file system
AGENTLESS_ATTEMPTS = 2  # then Slurm may never start a step in this allocation again (seen after a controller's restart)
# before the second restart after faults of one kind, or the third after any; doubled before each further one
FIRST_DELAY_S = 2.0
MAX_DELAY_S = 60.0
MOST_DOUBLED = 10  # more than MAX_DELAY_S; a float has no room for 1,100 of them


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The decision after a fault.

    Attributes:
        action: start another attempt, requeue the job, or end it.
        rung: the rung of the next attempt; None at the end.
        outcome: the job's outcome if no attempt follows here.
        swapped: the node that a spare is to replace for good; None if there is none.
        reason: the reason in words.
        delay_s: seconds to wait before the next attempt.
    """

    action: Literal["restart", "requeue", "stop"]
    rung: Rung | None = None
    outcome: JobOutcome = JobOutcome.STOPPED
    reason: str = ""
    swapped: str | None = None
    delay_s: float = 0.0


def after_fault(turn: Turn, gains: Gains, fault: Fault, nodes: tuple[str, ...]) -> Decision:
    """The decision after a fault, with the nodes as they are now.

    Args:
        gains: those of the history, with the attempt that the fault ended.
        nodes: those of that attempt; none if it could not begin.
    """
    state = turn.state
    job, members = state.job, state.members
    has_spare = any(node not in state.positions and node not in gains.suspects for node in usable(turn))
    found = fault.diagnosis
    action = fault.action or _action(turn, gains, fault, nodes)
    decision = choose_rung(
        gains,
        job.limits,
        worded(fault),
        action=action,
        why=f"class {found.fault_class} ({found.domain}), {found.advice}",
        has_checkpoint=job.has_checkpoint,
        can_requeue=job.can_requeue,
        nodes_suffice=members.usable + members.joining_count >= job.sizes[-1],
        nodes_changed=any(node not in members or members[node].phase in _GONE for node in nodes),
        has_spare=has_spare,
    )
    is_swap = action is Action.SWAP and decision.action == "restart" and has_spare
    keeps_size = members.usable + members.joining_count > max(len(nodes), job.sizes[-1])
    node = fault.node
    if is_swap and keeps_size and node is not None and node in members and members[node].phase not in _GONE:
        return replace(decision, rung=Rung.SPARE, swapped=node)
    return decision


def _action(turn: Turn, gains: Gains, fault: Fault, nodes: tuple[str, ...]) -> Action | None:
    found = fault.diagnosis
    has_gained = bool(turn.state.step) or gains.fruitless <= gains.restarts
    agree = len(found.nodes) >= max(1, min(AGREEING_NODES, len(nodes)))  # 0 if no worker has failed
    return action_for(
        found.fault_class,
        found.domain,
        turn.state.job.limits.on,
        is_hopeless=found.is_certain and agree and not has_gained,
    )


def worded(fault: Fault) -> str:
    """The fault's reason, with its node."""
    named = fault.node is None or fault.node in fault.reason
    return fault.reason if named else f"{fault.node}: {fault.reason}"


def usable(turn: Turn) -> tuple[str, ...]:
    """The job's nodes and its boosters' that train or can train."""
    nodes = (*turn.state.job.nodes, *boosters.nodes(turn.state))
    return tuple(node for node in nodes if is_usable(turn.member(node)))


def choose_rung(
    gains: Gains,
    limits: RestartLimits,
    reason: str,
    *,
    action: Action | None = None,
    why: str = "",
    has_checkpoint: bool,
    can_requeue: bool,
    nodes_suffice: bool,
    nodes_changed: bool,
    has_spare: bool,
) -> Decision:
    """The rung after the last fault in `gains`.

    Args:
        reason: the fault in words.
        action, why: what `restart.on`, a log rule or the fault's class demands, and what the class is; None: nothing.
        has_checkpoint: whether the job has a `checkpoint` section.
        can_requeue: whether the scheduler can start the job again.
        nodes_suffice: whether enough nodes are ready or may come for another attempt.
        nodes_changed: whether another attempt would run on other nodes than the last.
        has_spare: whether a spare that is not a suspect could replace a node.
    """
    if gains.kind == FaultKind.FABRIC:  # every further attempt would have the same fault
        return Decision(
            action="stop", outcome=JobOutcome.FABRIC, reason=f"{reason} (the job file says fabric: require)"
        )
    if gains.kind == FaultKind.UNRESTORABLE:  # only a person can say whether to begin again at step 0
        return Decision(action="stop", outcome=JobOutcome.UNRESTORABLE, reason=reason)
    if action is Action.STOP:
        return Decision(action="stop", outcome=JobOutcome.NOT_RETRIED, reason=f"{reason}; not tried again: {why}")
    if gains.error_repeats and action is None:
        return Decision(
            action="stop", outcome=JobOutcome.USER_ERROR, reason=f"the same error twice without progress: {reason}"
        )
    if gains.new_suspect and has_spare and gains.restarts < limits.max_restarts:  # another node may gain something
        if nodes_suffice:
            return Decision(action="restart", rung=Rung.SPARE, reason=reason, delay_s=_delay_s(gains))
        if can_requeue:
            return Decision(action="requeue", rung=Rung.REQUEUE, reason=f"no spare node is left: {reason}")
    if (nothing := why_given_up(gains, limits, has_checkpoint=has_checkpoint)) is not None:
        return Decision(action="stop", outcome=JobOutcome.NO_PROGRESS, reason=f"{nothing}; the last fault: {reason}")
    if gains.restarts >= limits.max_restarts:
        restarts = f"{gains.restarts} restarts (restart.max_restarts)"
        return Decision(action="stop", outcome=JobOutcome.NO_PROGRESS, reason=f"{restarts}; the last fault: {reason}")
    if action is Action.REQUEUE and can_requeue:
        return Decision(action="requeue", rung=Rung.REQUEUE, reason=reason)
    if gains.agentless >= AGENTLESS_ATTEMPTS and can_requeue:
        return Decision(action="requeue", rung=Rung.REQUEUE, reason=f"no checkpoint agents come up here: {reason}")
    if nodes_suffice:
        rung = Rung.SPARE if nodes_changed else Rung.WORKERS
        return Decision(action="restart", rung=rung, reason=reason, delay_s=_delay_s(gains))
    if can_requeue:
        return Decision(action="requeue", rung=Rung.REQUEUE, reason=f"no spare node is left: {reason}")
    return Decision(action="stop", outcome=JobOutcome.TOO_FEW_NODES, reason=f"no spare node is left: {reason}")


def why_given_up(gains: Gains, limits: RestartLimits, *, has_checkpoint: bool) -> str | None:
    """The reason to end the job after attempts without progress; None if there may be another attempt."""
    if gains.counted < limits.max_without_progress:
        return None
    nothing = _nothing_gained(gains, has_checkpoint=has_checkpoint)
    why = f"lost a node after {RAN_S:g} s, or committed again what had been lost, and count less"
    lost = f"; {gains.unlucky} of them {why}" if gains.unlucky else ""
    return f"{gains.fruitless} attempts in a row {nothing} (restart.max_without_progress{lost})"


def _delay_s(gains: Gains) -> float:
    """Seconds before the next attempt.

    0 before the first restart, because most faults happen once; repeated ones may need time.
    """
    again = max(gains.repeats.get(gains.kind, 0) - 2, sum(gains.repeats.values()) - 3)
    return min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(again, MOST_DOUBLED)) if again >= 0 else 0.0


def _nothing_gained(gains: Gains, *, has_checkpoint: bool) -> str:
    if gains.file_s is not None:
        return "wrote no newer file that `progress` matches"
    if not has_checkpoint:
        return f"ran for less than {RAN_S:g} s (`progress` may name the script's own checkpoints)"
    return "committed no new step"
