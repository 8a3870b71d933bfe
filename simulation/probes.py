"""Inputs that are only tried: what would the core do now, if this came next?

A decision has no effects, so the core can be asked in any state of a run, and the run goes on as if it had not been.
So inputs meet states that a schedule seldom brings together. A probe is an input that the driver could give in this
state; its decision must keep to `input_rules`, and its events must give its state.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Sequence
from typing import Any

from launcher.core import inputs as given
from launcher.core.commands import Purpose, Record, SetTimer
from launcher.core.faults import FaultKind
from launcher.core.members import Phase
from launcher.core.replay import apply
from launcher.core.state import Attempt, AttemptPhase, BoosterPhase, Sigterm, Stage, State
from launcher.core.stop_reasons import StopReason
from launcher.diagnosis import WorkerFailure
from simulation.decision_rules import check_decision
from simulation.successor import differences
from simulation.violation import Violation

EVERY = 12  # decisions between two probes
_CONNECTED = (Phase.READY, Phase.TRAINING, Phase.LEAVING, Phase.RETURNING)
_WORK = (AttemptPhase.STARTING, AttemptPhase.TRAINING, AttemptPhase.JUDGING)
_MEANINGS = (StopReason.CANCEL, StopReason.REQUEUE, StopReason.PREEMPTED, StopReason.BATCH_SCRIPT_LOST)  # of a SIGTERM
_UNKNOWN = "999"  # an allocation


class Probes:
    """The probes of one run.

    Args:
        decide: the core.
        seed: of the choice of the inputs.
    """

    __slots__ = ("_decide", "_left", "_rng")

    def __init__(self, decide: Callable[..., Any], seed: int) -> None:
        self._decide = decide
        self._rng = random.Random(seed * 104_729 + 3)
        self._left = self._rng.randrange(EVERY) + 1

    def try_one(self, state: State, now_s: float) -> None:
        """Tries an input in this state, if it is time.

        Raises:
            Violation: the decision would be wrong.
        """
        self._left -= 1
        if self._left > 0 or state.stage is Stage.ENDED:
            return
        self._left = EVERY
        for _ in range(4):
            message = self._rng.choice(_MAKERS)(self._rng, state)
            if message is not None:
                self._try(state, message, now_s)
                return

    def _try(self, state: State, message: Any, now_s: float) -> None:
        if type(message) is given.TimerFired:
            assert state.timer_s is not None
            now_s = max(now_s, state.timer_s)
        after, todo = self._decide(state, message, now_s)
        check_decision(state, message, after, todo, now_s)
        history = state.history
        for command in todo:
            if type(command) is Record:
                history = apply(history, {"time": command.time_s, "event": command.event, **command.fields})
        if history is not after.history and history != after.history:
            raise Violation("replay gives the state", f"if {message} came")
        if after.stage is Stage.ENDED:
            return
        for difference in differences(after):
            raise Violation("a successor knows the state", f"if {message} came: {difference}")
        if type(message) is given.TimerFired and not todo and after == state:
            raise Violation("no lost timer", f"the timer would fire, and none is set before {after.timer_s}")
        set_s = [command.at_s for command in todo if type(command) is SetTimer]
        if set_s and set_s[-1] != after.timer_s:
            raise Violation("no lost timer", f"the state's timer would differ from the driver's after {message}")


Maker = Callable[[random.Random, State], Any]


def _one_of(rng: random.Random, nodes: Sequence[str]) -> str | None:
    return rng.choice(sorted(nodes)) if nodes else None


def _connected(rng: random.Random, state: State) -> str | None:
    return _one_of(rng, [node for node, member in state.members.table.items() if member.phase in _CONNECTED])


def _at_work(state: State, phases: tuple[AttemptPhase, ...] = _WORK) -> Attempt | None:
    attempt = state.attempt
    is_there = attempt is not None and state.stage is Stage.ATTEMPT and attempt.phase in phases
    return attempt if is_there else None


def _rank(rng: random.Random, attempt: Attempt) -> str | None:
    """A node of the attempt that is there and whose workers have not ended."""
    gone = {*attempt.lost, *attempt.ended, *(failure.node for failure in attempt.failures)}
    return _one_of(rng, [node for node in attempt.nodes if node not in gone])


# Nodes


def _node_joined(rng: random.Random, state: State) -> Any:
    number = state.attempt.number if state.attempt is not None else 0
    table = state.members.table
    node = _one_of(rng, [node for node, member in table.items() if member.phase in (Phase.JOINING, Phase.OUT)])
    if node is None:
        return None
    problem = rng.choice((None, None, None, "a GPU has fallen off the bus"))
    attempt = rng.choice((None, number, max(0, number - 1)))
    return given.NodeJoined(
        node=node,
        attempt=None if problem is not None else attempt,
        is_warm=rng.random() < 0.5,
        problem=problem,
        allocation=table[node].allocation,
    )


def _booster_joined(rng: random.Random, state: State) -> Any:
    if not state.job.most_boosters:
        return None
    allocations = [each.allocation for each in state.boosters if len(each.nodes) < state.job.booster_nodes]
    allocation = rng.choice((*allocations, _UNKNOWN))
    strangers = [node for node in state.history.out if node not in state.members]
    return given.NodeJoined(node=rng.choice(("x0", "x0", *sorted(strangers))), allocation=allocation)


def _node_warm(rng: random.Random, state: State) -> Any:
    node = _connected(rng, state)
    return None if node is None else given.NodeWarm(node=node)


def _node_lost(rng: random.Random, state: State) -> Any:
    node = _connected(rng, state)
    return None if node is None else given.NodeLost(node=node, reason="connection to its runner closed")


def _holder_lost(rng: random.Random, state: State) -> Any:
    node = _one_of(rng, state.holders)
    return None if node is None else given.NodeLost(node=node, reason="connection to its runner closed")


def _node_broken(rng: random.Random, state: State) -> Any:
    node = _connected(rng, state)
    if node is None:
        return None
    return given.NodeBroken(node=node, reason="cannot start workers", is_environment=rng.random() < 0.5)


def _isolation(rng: random.Random, state: State) -> Any:
    return given.IsolationChanged(is_isolated=not state.is_isolated)


def _stood_still(rng: random.Random, state: State) -> Any:
    return given.StoodStill(seconds=5.0)


def _launch_ended(rng: random.Random, state: State) -> Any:
    if not state.launch.is_under_way:
        return None
    node = _one_of(rng, state.job.nodes) or ""
    failed = {node: "srun could start no process there"} if rng.random() < 0.5 else {}
    return given.LaunchEnded(failed=failed, has_ended=rng.random() < 0.5)


# The attempt


def _workers_started(rng: random.Random, state: State) -> Any:
    attempt = _at_work(state, (AttemptPhase.STARTING,))
    node = _rank(rng, attempt) if attempt is not None else None
    return attempt and node and given.WorkersStarted(node=node, attempt=attempt.number)


def _workers_ended(rng: random.Random, state: State) -> Any:
    attempt = _at_work(state, (AttemptPhase.TRAINING, AttemptPhase.JUDGING, AttemptPhase.FINDING_CAUSE))
    node = _rank(rng, attempt) if attempt is not None else None
    if attempt is None or node is None:
        return None
    step, chance = attempt.step, rng.random()
    if chance < 0.4:
        is_stopped = rng.random() < 0.5
        return given.WorkersEnded(node=node, attempt=attempt.number, ok=True, step=step, is_stopped=is_stopped)
    if chance < 0.6:
        return given.WorkersEnded(node=node, attempt=attempt.number, ok=False, reason="its workers are gone", step=step)
    error = "ValueError: an error" if chance < 0.8 else None
    failure = WorkerFailure(node=node, rank=0, exit_code=1 if error else -signal.SIGABRT, time_s=1.0, error=error)
    return given.WorkersEnded(node=node, attempt=attempt.number, ok=False, failures=(failure,), step=step)


def _workers_killed(rng: random.Random, state: State) -> Any:
    if rng.random() < 0.5:
        ending = {node: member.ending for node, member in state.members.table.items() if member.ending is not None}
        node = _one_of(rng, tuple(ending))
        number = ending.get(node) if node is not None else None
    else:
        attempt = _at_work(state, (AttemptPhase.KILLING,))
        node = _rank(rng, attempt) if attempt is not None else None
        number = attempt.number if attempt is not None else None
    if node is None or number is None:
        return None
    return given.WorkersKilled(node=node, attempt=number, left=(17,) if rng.random() < 0.3 else ())


def _progress(rng: random.Random, state: State) -> Any:
    attempt = _at_work(state, (AttemptPhase.TRAINING, AttemptPhase.JUDGING))
    if attempt is None:
        return None
    slowest = rng.choice((state.hang.step, (attempt.step or 0) + 1))
    is_active, has_ended = rng.random() < 0.5, rng.random() < 0.2
    return given.Progress(
        attempt=attempt.number, step=slowest, slowest=slowest, is_active=is_active, is_over=has_ended,
        rank_ended=has_ended,
    )  # fmt: skip


def _first_step(rng: random.Random, state: State) -> Any:
    attempt = _at_work(state)
    node = _rank(rng, attempt) if attempt is not None else None
    if attempt is None or node is None:
        return None
    return given.FirstStep(node=node, attempt=attempt.number, step=(attempt.step or 0) + 1, time_s=attempt.begun_s + 9)


def _committed(rng: random.Random, state: State) -> Any:
    attempt = _at_work(state)
    if attempt is None or not state.job.has_checkpoint or not attempt.restored:
        return None
    newest, tier = attempt.committed_step, rng.choice(("memory", "shared"))
    return given.Committed(attempt=attempt.number, step=rng.choice((max(newest, 1), newest + 5)), tier=tier)


def _fault_reported(rng: random.Random, state: State) -> Any:
    attempt = _at_work(state)
    node = _rank(rng, attempt) if attempt is not None else None
    if attempt is None or node is None:
        return None
    kind = rng.choice((FaultKind.FABRIC, FaultKind.LOG_RULE))
    return given.FaultReported(node=node, attempt=attempt.number, kind=kind, reason="NCCL uses sockets")


def _restore_refused(rng: random.Random, state: State) -> Any:
    attempt = _at_work(state)
    node = _rank(rng, attempt) if attempt is not None and not attempt.restored else None
    if attempt is None or node is None:
        return None
    return given.RestoreRefused(node=node, attempt=attempt.number, reason="step 30: written by Holdfast 9")


def _stop_handled(rng: random.Random, state: State) -> Any:
    attempt = _at_work(state)
    node = _rank(rng, attempt) if attempt is not None and attempt.stop_sent else None
    if attempt is None or node is None or node in attempt.without_handler:
        return None
    return given.StopHandled(node=node, attempt=attempt.number, has_handler=rng.random() < 0.5)


# The agents


def _restored(rng: random.Random, state: State) -> Any:
    attempt = _at_work(state)
    return (attempt and state.job.has_checkpoint and given.Restored(attempt=attempt.number)) or None


def _agents_rejoined(rng: random.Random, state: State) -> Any:
    attempt = _at_work(state)
    if attempt is None or not state.agents.generation:
        return None
    generation = state.agents.generation - rng.randrange(2)
    return given.AgentsRejoined(attempt=attempt.number, generation=generation)


def _agent_lost(rng: random.Random, state: State) -> Any:
    attempt = _at_work(state)
    node = _rank(rng, attempt) if attempt is not None and state.job.has_checkpoint else None
    if attempt is None or node is None:
        return None
    generation = max(0, state.agents.generation - rng.randrange(2))
    return given.AgentLost(node=node, attempt=attempt.number, generation=generation, reason="its agent is gone")


def _agents_ended(rng: random.Random, state: State) -> Any:
    attempt = _at_work(state)
    if attempt is None or not state.job.has_checkpoint or not state.agents.has_launcher:
        return None
    reason = rng.choice(("", "srun could start none"))
    return given.AgentsEnded(attempt=attempt.number, generation=state.agents.generation, reason=reason)


# Answers and users


def _unusable(rng: random.Random, state: State) -> Any:
    error = "it does not answer" if rng.random() < 0.3 else None
    if state.stage is Stage.ASKING:
        asked, purpose = state.job.nodes, Purpose.START
    elif state.stage is Stage.SCHEDULER:
        asked, purpose = state.job.nodes, Purpose.SCHEDULER
    elif returning := [node for node, each in state.members.table.items() if each.phase is Phase.RETURNING]:
        asked, purpose = (rng.choice(sorted(returning)),), Purpose.RETURN
    elif (attempt := _at_work(state, (AttemptPhase.EXPLAINING, *_WORK))) is not None and state.job.has_checkpoint:
        asked = (*attempt.nodes, *state.holders)
        purpose = Purpose.AGENTS_FAILED if attempt.phase is AttemptPhase.EXPLAINING else Purpose.LATE_AGENTS
    else:
        return None
    unusable = {rng.choice(asked): "its slurmd does not answer"} if error is None and rng.random() < 0.5 else {}
    return given.UnusableAnswered(asked=asked, purpose=purpose, unusable=unusable, error=error)


def _explained(rng: random.Random, state: State) -> Any:
    if state.requests.sigterm not in (Sigterm.ASKED, Sigterm.AGAIN) and state.stage is not Stage.CONFIRMING:
        return None
    return given.TerminationExplained(why=rng.choice(_MEANINGS))


def _time_left(rng: random.Random, state: State) -> Any:
    limit = state.time_limit
    return given.TimeLeftAnswered(left_s=rng.choice((None, 30.0, 250.0, 5000.0))) if limit.ask_s is None else None


def _folder_probed(rng: random.Random, state: State) -> Any:
    if state.stage not in (Stage.PROBING, Stage.CLOSING):
        return None
    return given.FolderProbed(error=rng.choice((None, "no space left")))


def _events_written(rng: random.Random, state: State) -> Any:
    return given.EventsWritten() if state.unsettled else None


def _own_seen(rng: random.Random, state: State) -> Any:
    return given.OwnCheckpointsSeen(file="own-9", modified_s=(state.history.gains.file_s or 0.0) + rng.randrange(2))


def _allocation_asked(rng: random.Random, state: State) -> Any:
    asked = _one_of(rng, [each.allocation for each in state.boosters if each.is_asked])
    if asked is None:
        return None
    if rng.random() < 0.5:
        return given.AllocationAsked(allocation=asked, error="Slurm does not answer")
    return given.AllocationAsked(allocation=asked, job_id="777")


def _allocations_seen(rng: random.Random, state: State) -> Any:
    if not state.boosters:
        return None
    states, reasons = {}, {}
    for each in state.boosters:
        if each.is_asked or each.phase is BoosterPhase.RECORDING:
            continue
        is_queued = each.phase is BoosterPhase.QUEUED and not each.nodes
        if each.has_ended:
            found = given.AllocationState.ENDED
        else:
            found = rng.choice((*given.AllocationState,) if is_queued else _LATER_STATES)
        states[each.allocation] = found
        reasons[each.allocation] = rng.choice(("CANCELLED by 0", "NODE_FAIL"))
    if rng.random() < 0.3:
        states["777"] = given.AllocationState.QUEUED
    return given.AllocationsSeen(states=states, reasons=reasons)


_LATER_STATES = (given.AllocationState.RUNNING, given.AllocationState.PREEMPTED, given.AllocationState.ENDED)


def _terminated(rng: random.Random, state: State) -> Any:
    return given.Terminated(node=_connected(rng, state) if rng.random() < 0.7 else None)


def _time_warned(rng: random.Random, state: State) -> Any:
    return given.TimeWarned()


def _cancel(rng: random.Random, state: State) -> Any:
    return given.CancelAsked()


def _timer(rng: random.Random, state: State) -> Any:
    return given.TimerFired() if state.timer_s is not None else None


_MAKERS: tuple[Maker, ...] = (
    _node_joined, _booster_joined, _booster_joined, _node_warm, _node_lost, _holder_lost, _node_broken, _isolation,
    _stood_still, _launch_ended, _workers_started, _workers_ended, _workers_killed, _progress, _first_step, _committed,
    _fault_reported, _restore_refused, _stop_handled, _restored, _agents_rejoined, _agent_lost, _agents_ended,
    _unusable, _explained,
    _time_left, _folder_probed, _events_written, _own_seen, _allocation_asked, _allocations_seen, _terminated,
    _time_warned, _cancel, _timer,
)  # fmt: skip
