"""Changes the size of the job: the number of boosters, and the time at which an attempt ends for one of another size.

All ranks stop at a common step boundary and save to memory. The attempt ends as `resized`, which is not a fault, and
the next one begins at once. Nodes that no longer train keep their shards as holders until the new attempt has committed
a step of its own, because the restored step needs them.
"""

from __future__ import annotations

from launcher.core import agent_world, boosters, choice
from launcher.core.frozen import replace
from launcher.core.inputs import EventsWritten, ScaleAsked
from launcher.core.members import Phase
from launcher.core.requests import may_be_asked
from launcher.core.state import AttemptPhase, BoosterPhase, Look, Resize, Stage
from launcher.core.stop_reasons import StopReason
from launcher.core.turn import Turn


def on_scale(turn: Turn, given: ScaleAsked) -> None:
    size = None if given.nodes is None else choice.allowed(turn.state.job, given.nodes)
    if size != turn.state.history.scale:
        turn.record("scale_requested", nodes=size)


def on_written(turn: Turn, given: EventsWritten) -> None:
    """The resize is on disk, so a supervisor that takes over knows why ranks stop."""
    if turn.state.requests.stop == StopReason.RESIZE and not turn.state.resize.is_written:
        turn.requests = replace(turn.requests, stop_s=turn.now_s)
        turn.state = replace(turn.state, resize=replace(turn.state.resize, is_written=True))


def awaits_booster(turn: Turn) -> bool:
    """Whether, after a loss, a booster is about to join."""
    state = turn.state
    if not state.boosters or state.fault is None:
        return False
    if choice.size(turn) >= len(state.positions):
        return False
    return any(_is_joining(turn, each.allocation) for each in state.boosters)


def _is_joining(turn: Turn, allocation: str) -> bool:
    booster = turn.booster(allocation)
    if booster is None or booster.phase is not BoosterPhase.RUNNING:
        return False
    members = [turn.member(node) for node in booster.nodes]
    if any(member.phase in (Phase.OUT, Phase.RETURNING) for member in members):
        return False
    return len(members) < turn.state.job.booster_nodes or not all(member.is_warm for member in members)


# While an attempt runs


def advance(turn: Turn) -> None:
    """Requests boosters, releases holders, and requests the stop before a resize."""
    state = turn.state
    attempt = state.attempt
    if attempt is None or state.stage is not Stage.ATTEMPT or not (_is_elastic(turn) or state.holders):
        return
    if attempt.phase is not AttemptPhase.TRAINING or attempt.is_decisive or may_be_asked(state.requests):
        _leave_at_work(turn)
        return
    if state.holders:
        _release(turn)
    if _is_elastic(turn):
        _tend_boosters(turn)
        _leave_at_work(turn)
        _settle(turn)


def _is_elastic(turn: Turn) -> bool:
    state = turn.state
    return state.job.most_boosters > 0 or state.history.scale is not None


# Boosters


def _tend_boosters(turn: Turn) -> None:
    missing = _missing(turn)
    if missing < 0:
        _give_back(turn, -missing)
    elif missing and not boosters.is_asking(turn.state) and turn.due(turn.state.asking.ask_s):
        boosters.ask(turn)


def _missing(turn: Turn) -> int:
    """The number of wanted boosters, without those in the queue or running."""
    return _look(turn).missing


def _look(turn: Turn) -> Look:
    """The possible sizes of the job. Computed again only if nodes, boosters or requests have changed."""
    state = turn.state
    job, members, look, wanted = state.job, state.members, state.look, choice.wanted(turn)
    if look is not None and look.members is members and look.boosters is state.boosters and look.wanted == wanted:
        return look
    missing = 0
    if job.most_boosters:
        # A base that Slurm has started on fewer nodes, or that has lost some, has more boosters in their place. Near
        # its time limit it keeps only those without which it could not train at all.
        base = sum(members[node].phase is not Phase.OUT for node in job.nodes)
        least = job.sizes[-1] if state.time_limit.is_ending else wanted
        lacking = max(0, least - min(job.base_size, base))
        missing = -(-lacking // job.booster_nodes)
        missing -= sum(each.phase is not BoosterPhase.LEAVING for each in state.boosters)
    size = choice.size(turn)
    look = Look(members=members, boosters=state.boosters, wanted=wanted, size=size, missing=missing)
    turn.state = replace(turn.state, look=look)
    return look


def _give_back(turn: Turn, count: int) -> None:
    """Ends superfluous boosters: those in the queue first, then those that do not train."""
    attempt = turn.attempt

    def worth(allocation: str) -> tuple[bool, bool]:
        booster = turn.booster(allocation)
        nodes = booster.nodes if booster is not None else ()
        return (bool(nodes), any(node in attempt.nodes for node in nodes))

    there = [each.allocation for each in turn.state.boosters if each.phase is not BoosterPhase.LEAVING]
    for allocation in sorted(reversed(there), key=worth)[:count]:
        boosters.leave(turn, allocation, boosters.SCALED_DOWN)


# Sizes


def _leave_at_work(turn: Turn) -> None:
    """Nodes of the attempt are leaving: a smaller attempt replaces it as soon as its workers can stop."""
    state, attempt = turn.state, turn.attempt
    at_work = (AttemptPhase.RECORDING, AttemptPhase.STARTING, AttemptPhase.TRAINING, AttemptPhase.JUDGING)
    is_busy = attempt.phase not in at_work or attempt.is_decisive or state.requests.stop is not None
    if is_busy or not state.members.counts[Phase.LEAVING]:
        return
    leaving = next((node for node in attempt.nodes if state.members[node].phase is Phase.LEAVING), None)
    if leaving is not None:
        _ask(turn, state.members[leaving].reason, to=_look(turn).size)


def _settle(turn: Turn) -> None:
    """Another size is possible or wanted. A smaller one begins at once, a larger one once nothing changes."""
    state, attempt = turn.state, turn.attempt
    if state.requests.stop is not None:
        return
    look, now = _look(turn), len(attempt.nodes)
    size = look.size
    if 0 < size < now and look.wanted < now:
        _ask(turn, boosters.SCALED_DOWN, to=size)
        return
    seen = (size, state.members.usable)
    if size <= now:
        if state.resize.since_s is not None:
            turn.state = replace(turn.state, resize=Resize())
    elif state.resize.since_s is None or state.resize.seen != seen:
        turn.state = replace(turn.state, resize=Resize(seen=seen, since_s=turn.now_s))
    elif may_make_way(turn) and turn.due(state.resize.since_s + state.job.elastic.scaling_timeout_s):
        _ask(turn, "more nodes are there", to=size)


def may_make_way(turn: Turn) -> bool:
    """False until the attempt has more progress than the last one, and while it could not be saved."""
    state, attempt = turn.state, turn.attempt
    if state.holders or (state.job.has_checkpoint and not agent_world.is_whole(turn)):
        return False
    return attempt.first_step_seen or attempt.committed_step > 0 or not state.history.tells_steps


def _ask(turn: Turn, reason: str, *, to: int) -> None:
    """Requests a resize. Ranks stop once it is on disk; otherwise their end would be taken for the end of the job."""
    if turn.state.requests.stop is not None or turn.state.requests.is_cancelled:
        return
    attempt = turn.attempt
    turn.record("resize", attempt=attempt.number, size=len(attempt.nodes), to=to, reason=reason)
    make_way(turn)


def make_way(turn: Turn) -> None:
    """The attempt ends so that one on other nodes can begin. The event that says so was recorded just before."""
    turn.requests = replace(turn.requests, stop=StopReason.RESIZE, stop_s=turn.now_s)
    turn.state = replace(turn.state, resize=Resize())
    turn.settle()


# Holders


def _release(turn: Turn) -> None:
    """The attempt has committed a step that does not need its holders, so they are released."""
    state, attempt = turn.state, turn.attempt
    if not state.holders or state.requests.stop is not None or not agent_world.is_whole(turn):
        return
    if attempt.committed_step > 0 or turn.due(_release_s(turn)):
        generation = state.agents.generation + 1
        turn.record("holders_released", attempt=attempt.number, generation=generation, nodes=list(state.holders))
        turn.state = replace(turn.state, holders=())
        agent_world.release(turn)


def _release_s(turn: Turn) -> float | None:
    """The time at which leaving holders are released even if nothing is committed yet."""
    state, attempt = turn.state, turn.attempt
    if not attempt.restored or not agent_world.is_whole(turn) or state.requests.stop is not None:
        return None
    if not any(state.members[node].phase is Phase.LEAVING for node in state.holders):
        return None
    return attempt.phase_s + state.job.elastic.graceful_shutdown_timeout_s
