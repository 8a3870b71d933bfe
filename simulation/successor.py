"""What a supervisor that took over now would know by the events, beside what the one that rules knows.

What the state has and the events lack is allowed where a successor finds it out by itself: a booster without members
that is given back is given back again, a node that is left out is missed at the roll call.
"""

from __future__ import annotations

from collections.abc import Iterator

from launcher.core.members import Phase
from launcher.core.replay import History
from launcher.core.state import AttemptPhase, BoosterPhase, Stage, State
from launcher.core.stop_reasons import StopReason


def differences(state: State) -> Iterator[str]:
    """What a successor would take for something else."""
    history = state.history
    yield from _of_nodes(state, history)
    yield from _of_boosters(state, history)
    yield from _of_requests(state, history)
    if state.attempt is not None and state.attempt.is_running and state.stage is Stage.ATTEMPT:
        yield from _of_attempt(state, history)


def _of_nodes(state: State, history: History) -> Iterator[str]:
    for node, why in history.out.items():
        if node in state.members and state.members[node].phase not in (Phase.OUT, Phase.RETURNING):
            yield f"{node} is out by the events, and {state.members[node].phase.value}"
        is_known = node in state.members and not why.is_lost  # what is only lost says again that it is broken
        if is_known and state.members[node].is_environment is not why.is_environment:
            yield f"{node} is out, environment={why.is_environment} by the events"
    if history.step is not None and (state.step is None or state.step < history.step):
        yield f"step {history.step} by the events, {state.step} is known"


def _of_boosters(state: State, history: History) -> Iterator[str]:
    past = {each.allocation: each for each in history.boosters}
    known = {each.allocation for each in state.boosters}
    for each in history.boosters:
        if not each.has_ended and each.allocation not in known:
            yield f"booster {each.allocation} is forgotten"
    for each in state.boosters:
        of = past.get(each.allocation)
        if of is None:
            yield f"booster {each.allocation} is not in the events"
            continue
        is_leaving = each.phase is BoosterPhase.LEAVING
        if is_leaving is not (of.is_leaving or of.has_ended):
            yield f"booster {each.allocation} is {each.phase.value}, by the events leaving={of.is_leaving}"
        if each.has_ended is not of.has_ended:
            yield f"booster {each.allocation}: has ended={each.has_ended}, by the events {of.has_ended}"
        there = {node for node in each.nodes if state.members[node].phase is not Phase.OUT}
        if not there <= set(of.nodes):
            yield f"booster {each.allocation} has {there}, by the events {of.nodes}"
        gone = {node for node in of.nodes if node not in history.out} - {*each.nodes, *state.job.nodes}
        if gone and not is_leaving:
            yield f"booster {each.allocation} has lost {gone}"


def _of_requests(state: State, history: History) -> Iterator[str]:
    asked = state.requests
    if asked.is_cancelled is not history.is_cancelled:
        yield f"cancelled={asked.is_cancelled}, by the events {history.is_cancelled}"
    if history.is_halt and not asked.is_halt:
        yield "a halt stands in the events, and is not known"
    stop = None if asked.stop == StopReason.RESIZE else asked.stop
    if stop != history.stop:
        yield f"stop {asked.stop}, by the events {history.stop}"


def _of_attempt(state: State, history: History) -> Iterator[str]:
    attempt, past, agents = state.attempt, history.attempt, state.agents
    assert attempt is not None
    if past is None or past.has_ended:
        yield f"attempt {attempt.number} runs, by the events none does"
        return
    for name in ("number", "nodes", "restored", "first_step_seen", "committed"):
        if getattr(attempt, name) == getattr(past, name):  # a HashTrieMap's own != is wrong for empty ones
            continue
        yield f"{name} {getattr(attempt, name)}, by the events {getattr(past, name)}"
    if state.requests.stop == StopReason.RESIZE and not past.is_resizing:
        yield "the attempt makes way for another size, by the events it does not"
    if attempt.phase is AttemptPhase.TRAINING and past.workers_s is None:
        yield "workers run, by the events they do not"
    if past.generation not in (agents.generation, agents.generation + 1):
        yield f"agents of generation {agents.generation}, by the events {past.generation}"
    if past.agents_lost is not (agents.lost_s is not None):
        yield f"agents lost={agents.lost_s is not None}, by the events {past.agents_lost}"
    there = {node for node in history.holders if node in state.members}
    serve = {node for node in there if state.members[node].phase in (Phase.READY, Phase.LEAVING)}
    if not set(state.holders) <= set(history.holders) or serve - set(state.holders):
        yield f"holders {state.holders}, by the events {history.holders}"
