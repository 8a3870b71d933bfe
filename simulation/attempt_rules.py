"""What the state must be after the reports about an attempt and its agents."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.core import inputs as given
from launcher.core.agent_world import MAY_COME_UP
from launcher.core.attempt import BEFORE_END
from launcher.core.members import Phase
from launcher.core.state import AgentPhase, AttemptPhase
from simulation.decided import AT_WORK, Decided, Rule

# The attempt


def _workers_started(its: Decided, message: given.WorkersStarted) -> Iterator[str]:
    of, attempt = its.before.attempt, its.after.attempt
    assert of is not None and attempt is not None
    if its.is_same_attempt and message.node not in attempt.started:
        yield "they are not known to run"
    if attempt.all_started and attempt.phase is AttemptPhase.STARTING:
        yield "all run, and the attempt still starts"


def _workers_ended(its: Decided, message: given.WorkersEnded) -> Iterator[str]:
    of, attempt = its.before.attempt, its.after.attempt
    assert of is not None and attempt is not None
    if not its.is_same_attempt:
        return
    if message.ok:
        if message.node not in attempt.ended:
            yield "their end is not known"
        is_first = message.node not in of.ended
        if message.is_stopped and is_first and not attempt.is_stopped:
            yield "it is not known that they were asked to"
        return
    if message.failures and not set(message.failures) <= set(attempt.failures):
        yield "their failures are not known"
    if not message.failures and not any(fault.node == message.node for fault in attempt.faults):
        yield "they failed, and that is no fault"
    if attempt.fault_s is None:
        yield "the fault has no time"
    elif of.fault_s is not None and attempt.fault_s != of.fault_s and of.phase is not AttemptPhase.JUDGING:
        yield "the fault has another time than the first"
    if message.failures and attempt.phase in AT_WORK and (of.phase in AT_WORK and its.before.job.has_checkpoint):
        yield "the attempt goes on"


def _workers_killed(its: Decided, message: given.WorkersKilled) -> Iterator[str]:
    node = message.node
    was, now = its.before.members.table[node], its.after.members.table.get(node)
    attempt = its.after.attempt
    if was.phase is Phase.RETURNING and was.ending == message.attempt:
        if message.left:
            if now is not None and now.phase is not Phase.OUT:
                yield f"processes are left, and it is {now.phase.value}"
        elif now is not None and now.phase is Phase.RETURNING and (was.is_judged or now.ending is not None):
            yield "it has ended them, and is not taken back"
        return
    if message.left and now is not None and (now.phase is not Phase.OUT or now.is_lost or not its.dismisses(node)):
        yield "processes are left, and it is not out"
    if attempt is not None and its.is_same_attempt and node in attempt.nodes and node not in attempt.killed:
        yield "it is not known that they are gone"


def _progress(its: Decided, message: given.Progress) -> Iterator[str]:
    was, now = its.before.hang, its.after.hang
    if not its.is_same_attempt or (now.step_s == its.now_s and now.step != message.slowest):
        return  # the workers have just begun
    if (now.step, now.is_over, now.rank_ended) != (message.slowest, message.is_over, message.rank_ended):
        yield f"the progress is {now}"
    if message.is_active and now.active_s != its.now_s:
        yield "their activity is not known"
    if message.slowest != was.step and now.step_s != its.now_s:
        yield "the step has another time"
    if message.slowest == was.step and now.step_s != was.step_s and its.before.attempt is its.after.attempt:
        yield "the step is as before, and its time another"


def _first_step(its: Decided, message: given.FirstStep) -> Iterator[str]:
    of, attempt = its.before.attempt, its.after.attempt
    assert of is not None and attempt is not None
    seconds = round(message.time_s - of.begun_s, 3)
    is_recorded = its.records("first_step", attempt=message.attempt, step=message.step, seconds=seconds)
    if is_recorded is of.first_step_seen or not attempt.first_step_seen:
        yield "it is recorded again" if is_recorded else "it is not recorded"


def _committed(its: Decided, message: given.Committed) -> Iterator[str]:
    of, attempt = its.before.attempt, its.after.attempt
    assert of is not None and attempt is not None
    is_news = message.step > of.committed.get(message.tier, -1)
    if its.records("commit", step=message.step, tier=message.tier) is not is_news:
        yield "it is not recorded" if is_news else "it is recorded again"
    if attempt.committed.get(message.tier, -1) < message.step or attempt.committed_step < message.step:
        yield "it is not known"
    was, now = its.before.hang, its.after.hang
    if is_news and was.step is not None and now.step is not None:
        if now.step < message.step or (message.step > was.step and now.step_s != its.now_s):
            yield "all ranks have finished that step, and it is not known"
        if message.step <= was.step and now.step != was.step:
            yield "the slowest rank is further than that"


def _fault_reported(its: Decided, message: given.FaultReported) -> Iterator[str]:
    before, attempt = its.before.attempt, its.after.attempt
    is_fault = attempt is not None and any(fault.kind is message.kind for fault in attempt.faults)
    if before is not None and before.phase in BEFORE_END and its.is_same_attempt and not is_fault:
        yield "it is no fault"


def _restore_refused(its: Decided, message: given.RestoreRefused) -> Iterator[str]:
    attempt = its.after.attempt
    is_fault = attempt is not None and any(fault.kind == "unrestorable" for fault in attempt.faults)
    if its.is_same_attempt and not is_fault:
        yield "it is no fault"


def _stop_handled(its: Decided, message: given.StopHandled) -> Iterator[str]:
    attempt = its.after.attempt
    assert attempt is not None
    if its.is_same_attempt and message.has_handler is (message.node in attempt.without_handler):
        yield "it is not known"


def _stacks_taken(its: Decided, message: given.StacksTaken) -> Iterator[str]:
    attempt = its.after.attempt
    assert attempt is not None
    if its.is_same_attempt and attempt.phase is AttemptPhase.JUDGING and message.node not in attempt.stacks:
        yield "they are not known"
    if attempt.phase is AttemptPhase.JUDGING and len(attempt.stacks) >= len(attempt.nodes):
        yield "all are there, and they are still awaited"


# The agents


def _restored(its: Decided, message: given.Restored) -> Iterator[str]:
    of, attempt = its.before.attempt, its.after.attempt
    assert of is not None and attempt is not None
    if its.records("restore", attempt=message.attempt) is of.restored or not attempt.restored:
        yield "it is recorded again" if of.restored else "it is not recorded"
    if its.is_same_attempt and not of.restored and its.after.agents.phase is AgentPhase.COMING_UP:
        yield "they are still awaited"


def _agents_rejoined(its: Decided, message: given.AgentsRejoined) -> Iterator[str]:
    was, now = its.before.agents, its.after.agents
    is_awaited = message.generation == was.generation and was.lost_s is not None
    is_news = is_awaited and not was.gone and was.phase in MAY_COME_UP
    if its.records("agents_back", generation=message.generation) is not is_news:
        yield "it is not recorded" if is_news else "it is recorded"
    makes_way = now.generation > message.generation  # its holders are let go in the same decision
    if is_news and now.phase is not (AgentPhase.MAKING_WAY if makes_way else AgentPhase.UP):
        yield f"the agents are {now}"


def _agent_lost(its: Decided, message: given.AgentLost) -> Iterator[str]:
    was, now = its.before.agents, its.after.agents
    if message.generation != was.generation or now.generation != was.generation:
        return
    if message.node not in now.gone:
        yield "its end is not known"
    if now.phase in (AgentPhase.COMING_UP, AgentPhase.MAKING_WAY, AgentPhase.UP):
        yield f"the agents are {now.phase.value}"


def _agent_ended(its: Decided, message: given.AgentEnded) -> Iterator[str]:
    if its.is_same_attempt and message.node not in its.after.agents.gone:
        yield "its end is not known"


def _agents_ended(its: Decided, message: given.AgentsEnded) -> Iterator[str]:
    was, now, of, attempt = its.before.agents, its.after.agents, its.before.attempt, its.after.attempt
    assert of is not None and attempt is not None
    if message.generation != was.generation or now.generation != was.generation or not its.is_same_attempt:
        return
    if now.has_launcher:
        yield "it is not known"
    if message.reason and not of.restored:
        if not any(message.reason in fault.reason for fault in attempt.faults):
            yield "they could not be started, and that is no fault"
    elif now.phase in (AgentPhase.COMING_UP, AgentPhase.MAKING_WAY, AgentPhase.UP):
        yield f"the agents are {now.phase.value}"


RULES: dict[type, Rule] = {
    given.WorkersStarted: _workers_started,
    given.WorkersEnded: _workers_ended,
    given.WorkersKilled: _workers_killed,
    given.Progress: _progress,
    given.FirstStep: _first_step,
    given.Committed: _committed,
    given.FaultReported: _fault_reported,
    given.RestoreRefused: _restore_refused,
    given.StopHandled: _stop_handled,
    given.StacksTaken: _stacks_taken,
    given.Restored: _restored,
    given.AgentsRejoined: _agents_rejoined,
    given.AgentLost: _agent_lost,
    given.AgentEnded: _agent_ended,
    given.AgentsEnded: _agents_ended,
}
