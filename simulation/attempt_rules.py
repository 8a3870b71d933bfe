"""What follows from the reports about an attempt and its agents."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.core import inputs as given
from launcher.core.agent_world import MAY_COME_UP
from launcher.core.members import Phase
from launcher.core.state import AttemptPhase
from simulation.decided import AT_WORK, Decided, Rule


def _workers_started(its: Decided, message: given.WorkersStarted) -> Iterator[str]:
    of, attempt = its.before.attempt, its.after.attempt
    assert of is not None and attempt is not None
    is_complete = {*of.started, message.node}.issuperset(of.nodes) and attempt.phase is AttemptPhase.TRAINING
    if of.phase is AttemptPhase.STARTING and is_complete is not its.records("workers_started", attempt=of.number):
        yield "all run, and that is not recorded" if is_complete else "it is recorded that all run"


def _workers_ended(its: Decided, message: given.WorkersEnded) -> Iterator[str]:
    of, attempt = its.before.attempt, its.after.attempt
    assert of is not None and attempt is not None
    if message.ok or not its.before.job.has_checkpoint or not its.is_same_attempt:
        return
    if of.phase in AT_WORK and attempt.phase in AT_WORK:
        yield "they failed, and the attempt goes on"


def _workers_killed(its: Decided, message: given.WorkersKilled) -> Iterator[str]:
    node = message.node
    was, now = its.before.members.table[node], its.after.members.table.get(node)
    if message.left and was.phase is not Phase.OUT and now is not None and not its.dismisses(node):
        yield "processes are left, and its runner stays"
    is_awaited = was.phase is Phase.RETURNING and was.ending == message.attempt and was.is_judged
    if is_awaited and now is not None and not message.left and not its.records("node_back", node=node):
        yield "it has ended them, and is not taken back"


def _first_step(its: Decided, message: given.FirstStep) -> Iterator[str]:
    of = its.before.attempt
    assert of is not None
    seconds = round(message.time_s - of.begun_s, 3)
    is_recorded = its.records("first_step", attempt=message.attempt, step=message.step, seconds=seconds)
    if is_recorded is of.first_step_seen:
        yield "it is recorded again" if is_recorded else "it is not recorded"


def _committed(its: Decided, message: given.Committed) -> Iterator[str]:
    of = its.before.attempt
    assert of is not None
    is_news = message.step > of.committed.get(message.tier, -1)
    if its.records("commit", step=message.step, tier=message.tier) is not is_news:
        yield "it is not recorded" if is_news else "it is recorded again"


def _restored(its: Decided, message: given.Restored) -> Iterator[str]:
    of = its.before.attempt
    assert of is not None
    if its.records("restore", attempt=message.attempt) is of.restored:
        yield "it is recorded again" if of.restored else "it is not recorded"


def _agents_rejoined(its: Decided, message: given.AgentsRejoined) -> Iterator[str]:
    agents = its.before.agents
    is_awaited = message.generation == agents.generation and agents.lost_s is not None
    is_news = is_awaited and not agents.gone and agents.phase in MAY_COME_UP
    if its.records("agents_back", generation=message.generation) is not is_news:
        yield "it is not recorded" if is_news else "it is recorded"


RULES: dict[type, Rule] = {
    given.WorkersStarted: _workers_started,
    given.WorkersEnded: _workers_ended,
    given.WorkersKilled: _workers_killed,
    given.FirstStep: _first_step,
    given.Committed: _committed,
    given.Restored: _restored,
    given.AgentsRejoined: _agents_rejoined,
}
