"""Boosters: allocations in addition to the base, which wait in the queue and may be preempted at any time.

A booster has its number before the scheduler hears of it: it is submitted, under its number, once its request is on
disk. So a supervisor that takes over knows every booster that the scheduler may have, and a runner that connects
belongs to a known booster. The scheduler's own id of a booster is for users.

A booster waits in the queue, and runs; its runners connect and become members. It leaves when it is preempted or no
longer wanted: its nodes train until a step boundary, serve their shards as long as others need them, and are dismissed.
Only then the allocation is ended. The booster stays in the state until the scheduler reports its end, so that an order
to end it is never lost.
"""

from __future__ import annotations

from launcher.core.commands import AskAllocation, Dismiss, EndAllocation
from launcher.core.faults import FaultKind
from launcher.core.frozen import replace
from launcher.core.inputs import (
    AllocationAsked,
    AllocationsSeen,
    AllocationState,
    EventsWritten,
    NodeJoined,
)
from launcher.core.members import Member, Phase, is_usable
from launcher.core.replay import History
from launcher.core.state import Booster, BoosterPhase, JobFacts, Stage, State, Tended
from launcher.core.turn import Turn

PREEMPTED, SCALED_DOWN = "preempted", "scaled down"  # reasons to leave
NODE_FAIL = "NODE_FAIL"  # Slurm's state of a job that ended because a node failed
REFUSED = "no booster can be asked for"
LATE_S = 120.0  # for the runners of a running booster to connect
BROKEN_S = 30.0  # for a lost node of a booster to come back
AVOIDED_S = 3600.0  # for which no booster has a node on which one could not start; also the longest back-off
TELL_AGAIN_S = 300.0  # between two events with these reasons to wait, because they alternate
_USUAL = ("Priority", "Resources")


def known(history: History, job: JobFacts) -> tuple[Booster, ...]:
    """After a take-over: the boosters from the events. Those that were leaving still are."""
    found = []
    for past in history.boosters:
        phase = BoosterPhase.RUNNING if past.nodes else BoosterPhase.QUEUED if past.job_id else BoosterPhase.RECORDING
        if past.is_leaving or past.has_ended:
            phase = BoosterPhase.LEAVING
        nodes = tuple(node for node in past.nodes if node not in job.nodes)  # else it is from an earlier start
        known = Booster(allocation=past.allocation, job_id=past.job_id, phase=phase, nodes=nodes)
        found.append(replace(known, has_ended=past.has_ended))
    return tuple(found)


def nodes(state: State) -> tuple[str, ...]:
    """The nodes of all boosters, in the order of their requests."""
    return tuple(node for booster in state.boosters for node in booster.nodes)


def is_leaving(turn: Turn, node: str) -> bool:
    """Whether the node's booster is leaving."""
    booster = turn.booster(turn.member(node).allocation)
    return booster is not None and booster.phase is BoosterPhase.LEAVING


def is_of_one(turn: Turn, node: str) -> bool:
    return bool(turn.state.boosters) and turn.booster(turn.member(node).allocation) is not None


# Members


def admit(turn: Turn, given: NodeJoined) -> bool:
    """Whether a runner that has connected belongs to a member. A booster's runner becomes a member here."""
    member = turn.state.members.table.get(given.node)
    allocation = given.allocation or (member.allocation if member is not None else "")
    booster = turn.booster(allocation)
    if member is not None and member.allocation == allocation:
        is_late = booster is not None and booster.phase is BoosterPhase.LEAVING and member.phase is Phase.OUT
        if is_late:
            turn.do(Dismiss(node=given.node, forget=True, allocation=allocation))
        return not is_late
    if booster is None:
        _send_away(turn, given, allocation)
        return False
    if booster.phase is BoosterPhase.LEAVING:
        turn.do(Dismiss(node=given.node, forget=member is None, allocation=allocation))
        return False
    if member is not None and not _has_gone(turn, given.node, member):
        turn.do(Dismiss(node=given.node, forget=False, allocation=allocation))
        leave(turn, allocation, f"{given.node} is in allocation {_name(turn, member.allocation)} as well")
        return False
    if given.node in turn.state.history.out:
        turn.do(Dismiss(node=given.node, forget=True, allocation=allocation))
        leave(turn, allocation, f"it has {given.node}, which is out")
        return False
    if member is not None:
        _remove(turn, given.node, member.allocation)
    if turn.state.asking.failures:
        turn.state = replace(turn.state, asking=replace(turn.state.asking, failures=0))
    turn.state = replace(turn.state, members=turn.state.members.add(given.node, Member(allocation=allocation)))
    running_s = turn.now_s if booster.running_s is None else booster.running_s
    nodes = (*booster.nodes, given.node)
    turn.put_booster(replace(booster, phase=BoosterPhase.RUNNING, nodes=nodes, running_s=running_s))
    return True


def _has_gone(turn: Turn, node: str, member: Member) -> bool:
    """Whether a booster's node is no longer usable in its former allocation."""
    former = turn.booster(member.allocation)
    if former is None or _is_in_use(turn, node):
        return False
    return former.phase is BoosterPhase.LEAVING or member.phase is Phase.OUT


def _send_away(turn: Turn, given: NodeJoined, allocation: str) -> None:
    turn.do(Dismiss(node=given.node, forget=given.node not in turn.state.members, allocation=allocation))
    if allocation and allocation not in turn.state.job.allocations.values():
        turn.do(EndAllocation(allocation=allocation))
    what = f"a runner of allocation {allocation or 'unknown'}, which this job has not asked for, is sent away"
    turn.record("problem", node=given.node, what=what)


def _name(turn: Turn, allocation: str) -> str:
    booster = turn.booster(allocation)
    return allocation if booster is None else booster.name


# The request of a booster


def is_asking(state: State) -> bool:
    """Whether a booster is being requested. There is one request at a time."""
    return any(each.is_asked or each.phase is BoosterPhase.RECORDING for each in state.boosters)


def ask(turn: Turn) -> None:
    """Requests one more booster. It is submitted once its number is on disk, so that no other one has the number."""
    allocation = f"b{turn.state.history.next_booster}"
    turn.state = replace(turn.state, boosters=(*turn.state.boosters, Booster(allocation=allocation)))
    turn.record("booster_asked", allocation=allocation, nodes=turn.state.job.booster_nodes)
    turn.settle()


def on_written(turn: Turn, given: EventsWritten) -> None:
    for booster in turn.state.boosters:
        if booster.phase is BoosterPhase.RECORDING:
            _submit(turn, booster)


def ask_again(turn: Turn) -> None:
    """After a take-over: it is not known whether the scheduler has those about which no answer of it is recorded."""
    for booster in turn.state.boosters:
        if booster.phase is not BoosterPhase.LEAVING and not booster.job_id:
            _submit(turn, booster)


def _submit(turn: Turn, booster: Booster) -> None:
    job = turn.state.job
    out = (node for node, _ in turn.state.history.out.items())
    exclude = tuple(sorted({*job.nodes, *out, *avoided(turn)}))
    phase = BoosterPhase.QUEUED if booster.phase is BoosterPhase.RECORDING else booster.phase
    turn.put_booster(replace(booster, phase=phase, is_asked=True))
    turn.do(AskAllocation(allocation=booster.allocation, nodes=job.booster_nodes, exclude=exclude))


def on_asked(turn: Turn, given: AllocationAsked) -> None:
    """The answer to AskAllocation. A booster that was refused leaves: the scheduler may have it nevertheless."""
    asking, booster, error = turn.state.asking, turn.booster(given.allocation), given.error or ""
    ask_s = turn.now_s + turn.state.job.elastic.scale_up_snooze_s if error else asking.ask_s
    turn.state = replace(turn.state, asking=replace(asking, ask_s=ask_s, error=error))
    if error and error != asking.error:
        turn.record("problem", what=REFUSED, detail=error, again=round(ask_s, 3))
    if booster is None:
        return
    turn.put_booster(replace(booster, is_asked=False, job_id=given.job_id))
    if error:
        leave(turn, given.allocation, error)
        return
    turn.record("booster_submitted", allocation=given.allocation, job_id=given.job_id)
    if booster.is_end_sent:  # before the scheduler had it
        turn.do(EndAllocation(allocation=given.allocation))


# The life of a booster


def on_seen(turn: Turn, given: AllocationsSeen) -> None:
    """The scheduler's report about the state of all boosters."""
    for booster in turn.state.boosters:
        state, reason = given.states.get(booster.allocation), given.reasons.get(booster.allocation, "")
        hosts = given.nodes.get(booster.allocation, ())
        if hosts and hosts != booster.hosts:
            turn.put_booster(replace(booster, hosts=hosts))
            booster = replace(booster, hosts=hosts)
        if state is AllocationState.ENDED:
            _on_end(turn, booster, reason, has_failed=booster.allocation in given.failed)
        elif booster.phase is BoosterPhase.LEAVING:
            if booster.is_end_sent:  # the order may have been lost
                turn.do(EndAllocation(allocation=booster.allocation))
        elif state is AllocationState.PREEMPTED:  # the SIGTERM came before a runner could receive it
            leave(turn, booster.allocation, PREEMPTED)
        elif state is AllocationState.QUEUED and booster.phase is BoosterPhase.QUEUED:
            _on_queued(turn, booster, reason)
        elif state is AllocationState.RUNNING and booster.running_s is None:
            turn.put_booster(replace(booster, phase=BoosterPhase.RUNNING, running_s=turn.now_s))
    _end_unknown(turn, given)


def _end_unknown(turn: Turn, given: AllocationsSeen) -> None:
    """Ends the run's boosters of an earlier start, and those that the scheduler got long after its error."""
    for allocation, state in given.states.items():
        if state is not AllocationState.ENDED and turn.booster(allocation) is None:
            turn.do(EndAllocation(allocation=allocation))


def _on_queued(turn: Turn, booster: Booster, reason: str) -> None:
    alternate = booster.reason in _USUAL and reason in _USUAL
    is_due = booster.told_s is None or not alternate or turn.now_s >= booster.told_s + TELL_AGAIN_S
    if reason and reason != booster.reason and is_due:
        turn.put_booster(replace(booster, reason=reason, told_s=turn.now_s))
        turn.record("booster_waits", **_named(booster), reason=reason)


def _on_end(turn: Turn, booster: Booster, reason: str, *, has_failed: bool) -> None:
    if booster.has_ended:
        return
    if booster.phase is not BoosterPhase.LEAVING:
        leave(turn, booster.allocation, reason or "it has ended")
        if has_failed and not booster.nodes:
            _cannot_start(turn, booster, booster.hosts, reason)
    turn.put_booster(replace(turn.booster(booster.allocation) or booster, has_ended=True))
    ask_s = turn.state.asking.ask_s
    again = round(ask_s, 3) if ask_s > turn.now_s else None
    if not booster.job_id:  # the scheduler may never have had it
        reason = booster.reason or reason
    reason = reason or "it has ended"
    turn.record("booster_end", **_named(booster), reason=reason, again=again)
    if NODE_FAIL not in reason:
        _forgive(turn, booster.allocation)


def _cannot_start(turn: Turn, booster: Booster, hosts: tuple[str, ...], reason: str) -> None:
    """A booster has its nodes, and its runners do not come up there. Further boosters avoid these nodes for a while.

    The nodes need not be at fault. So each such booster in a row doubles the time to the next one.
    """
    asking, now_s = turn.state.asking, turn.now_s
    wait_s = turn.state.job.elastic.scale_up_snooze_s * 2.0**asking.failures
    avoided = tuple((host, until_s) for host, until_s in asking.avoided if until_s > now_s and host not in hosts)
    avoided += tuple((host, now_s + AVOIDED_S) for host in hosts)
    ask_s = max(asking.ask_s, now_s + min(wait_s, AVOIDED_S))
    turn.state = replace(turn.state, asking=replace(asking, failures=asking.failures + 1, avoided=avoided, ask_s=ask_s))
    where = f" on {', '.join(hosts)}, which further boosters avoid for {AVOIDED_S:g} s" if hosts else ""
    what = f"booster {booster.name} did not start{where}: {reason}"
    turn.record("fault", kind=FaultKind.BOOSTER_START, node=hosts[0] if len(hosts) == 1 else None, reason=what)


def avoided(turn: Turn) -> tuple[str, ...]:
    """The nodes that no booster is to have, because one could not start there a short time ago."""
    return tuple(host for host, until_s in turn.state.asking.avoided if until_s > turn.now_s)


def _forgive(turn: Turn, allocation: str) -> None:
    """Nodes lost together with their booster are not at fault. Another booster may have them again."""
    history = turn.state.history
    for past in history.boosters:
        for node in past.nodes if past.allocation == allocation else ():
            why = history.out.get(node)
            if why is not None and why.is_lost:
                turn.record("node_back", node=node, allocation=allocation, job_id=past.job_id or None)


def on_terminated(turn: Turn, node: str, why: str = "") -> bool:
    """Whether a SIGTERM concerns only a booster, which then leaves.

    Args:
        why: the scheduler's reason; "" for a preemption.
    """
    allocation = turn.member(node).allocation
    if turn.booster(allocation) is None:
        return False
    leave(turn, allocation, why or PREEMPTED)
    return True


def leave(turn: Turn, allocation: str, reason: str) -> None:
    """A booster leaves. Its nodes serve until they are not needed. Another one is requested later."""
    booster = turn.booster(allocation)
    if booster is None or booster.phase is BoosterPhase.LEAVING:
        return
    turn.put_booster(replace(booster, phase=BoosterPhase.LEAVING, reason=reason))
    if reason != SCALED_DOWN:
        ask_s = turn.now_s + turn.state.job.elastic.scale_up_snooze_s
        turn.state = replace(turn.state, asking=replace(turn.state.asking, ask_s=max(ask_s, turn.state.asking.ask_s)))
    if not booster.nodes:
        turn.record("booster_leaving", **_named(booster), reason=reason)
    for node in booster.nodes:
        member = turn.member(node)
        if is_usable(member):
            turn.put_member(node, replace(turn.member(node), phase=Phase.LEAVING, reason=reason))
        elif member.phase is Phase.RETURNING:
            turn.put_member(node, replace(turn.member(node), phase=Phase.OUT, ending=None))
        turn.record("node_leaving", node=node, **_named(booster), reason=reason)


def _named(booster: Booster) -> dict[str, str]:
    """The fields of an event that say which booster it is about."""
    return {"allocation": booster.allocation} | ({"job_id": booster.job_id} if booster.job_id else {})


def advance(turn: Turn) -> None:
    """Dismisses nodes of leaving boosters that are no longer needed, and ends boosters without nodes.

    All their nodes are looked at, so this is done only after a change: each of thousands of nodes has its reports.
    """
    state = turn.state
    if not state.boosters:
        return
    attempt = state.attempt if _may_dismiss(turn) else None
    number = None if attempt is None else attempt.number
    tended = Tended(members=state.members, boosters=state.boosters, holders=state.holders, attempt=number)
    is_due = any([turn.due(at_s) for at_s in _times(turn)])  # all of them are waited for
    if not is_due and state.tended is not None and state.tended.is_same(tended):
        return
    used: frozenset[str] = frozenset()
    if state.members.counts[Phase.OUT] or any(booster.phase is BoosterPhase.LEAVING for booster in state.boosters):
        used = frozenset(nodes(state) if attempt is None else (*attempt.nodes, *state.holders))
    for booster in state.boosters:
        if booster.phase is BoosterPhase.LEAVING:
            _let_go(turn, booster, used)
        elif turn.due(_late_s(turn, booster)):
            came = f"{len(booster.nodes)} of its {state.job.booster_nodes} runners came within {LATE_S:g} s"
            late = tuple(host for host in booster.hosts if host not in booster.nodes)
            leave(turn, booster.allocation, came)
            _cannot_start(turn, booster, late, f"{came}; see log/booster-{booster.name}.log")
        elif booster.phase is BoosterPhase.RUNNING and attempt is not None:
            _look_after(turn, booster, used)
    turn.state = replace(turn.state, tended=tended)


def _times(turn: Turn) -> list[float | None]:
    """The times at which advance() has work."""
    found = [_late_s(turn, booster) for booster in turn.state.boosters]
    if _may_dismiss(turn):
        for booster in turn.state.boosters:
            if booster.phase is BoosterPhase.RUNNING and booster.broken_s is not None:
                found.append(booster.broken_s + BROKEN_S)
    return found


def _let_go(turn: Turn, booster: Booster, used: frozenset[str]) -> None:
    allocation, left = booster.allocation, [node for node in booster.nodes if node not in used]
    for node in left:
        turn.do(Dismiss(node=node, forget=True, allocation=allocation))
        _remove(turn, node, allocation)
    if len(left) < len(booster.nodes):
        return
    if booster.has_ended:
        turn.state = replace(
            turn.state, boosters=tuple(each for each in turn.state.boosters if each.allocation != allocation)
        )
    elif not booster.is_end_sent:
        turn.put_booster(replace(booster, nodes=(), is_end_sent=True))
        turn.do(EndAllocation(allocation=allocation))


def _may_dismiss(turn: Turn) -> bool:
    """False between two attempts, because the next one decides which nodes are its holders."""
    attempt = turn.state.attempt
    return turn.state.stage is Stage.ATTEMPT and attempt is not None and attempt.is_running


def _is_in_use(turn: Turn, node: str) -> bool:
    attempt = turn.state.attempt
    trains = attempt is not None and attempt.is_running and node in attempt.nodes
    return trains or node in turn.state.holders


def _late_s(turn: Turn, booster: Booster) -> float | None:
    """The time at which a running booster's missing runners are overdue; None if none is missing.

    It counts between attempts too, because the next attempt must not use an incomplete booster.
    """
    is_complete = len(booster.nodes) >= turn.state.job.booster_nodes
    if booster.phase is not BoosterPhase.RUNNING or booster.running_s is None or is_complete:
        return None
    return booster.running_s + LATE_S


def _look_after(turn: Turn, booster: Booster, used: frozenset[str]) -> None:
    """Lets a booster with nodes that are out leave, so that another one can replace it."""
    is_fit = not turn.state.members.counts[Phase.OUT] or not used.isdisjoint(booster.nodes)
    out = [] if is_fit else [node for node in booster.nodes if turn.member(node).phase is Phase.OUT]
    if not out:
        if booster.broken_s is not None:
            turn.put_booster(replace(booster, broken_s=None))
    elif not all(turn.member(node).is_lost for node in out) or (
        booster.broken_s is not None and turn.now_s >= booster.broken_s + BROKEN_S
    ):
        leave(turn, booster.allocation, f"{out[0]} is out: {turn.member(out[0]).reason}")
    elif booster.broken_s is None:
        turn.put_booster(replace(booster, broken_s=turn.now_s))


def _remove(turn: Turn, node: str, allocation: str) -> None:
    booster = turn.booster(allocation)
    if booster is not None:
        turn.put_booster(replace(booster, nodes=tuple(other for other in booster.nodes if other != node)))
    turn.state = replace(turn.state, members=turn.state.members.remove(node))
