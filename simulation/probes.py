"""Inputs that are only tried: what would the core do now, if this came next?

A decision has no effects, so the core can be asked at any moment of a run, and the run goes on as if it had not been.
So inputs come at moments that a schedule seldom brings together. A probe is an input that the driver could give, by
what its supervisor has said and was told; its decision must keep to `decision_rules`, and its events must give its
state.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterable
from typing import Any

from launcher.core import commands as do
from launcher.core import inputs as given
from launcher.core.faults import FaultKind
from launcher.core.stop_reasons import StopReason
from launcher.diagnosis import WorkerFailure
from simulation.decision_rules import check_decision
from simulation.said import Said
from simulation.successor import Replayed

EVERY = 12  # decisions between two probes
_UNKNOWN = "999"  # an allocation
_MEANINGS = (StopReason.CANCEL, StopReason.REQUEUE, StopReason.PREEMPTED, StopReason.BATCH_SCRIPT_LOST)  # of a SIGTERM
_OF_AGENTS = (do.Purpose.LATE_AGENTS, do.Purpose.AGENTS_FAILED)


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

    def try_one(self, state: Any, said: Said, replayed: Replayed, now_s: float) -> None:
        """Tries an input in this state, if it is time.

        Raises:
            Violation: the decision would be wrong.
        """
        self._left -= 1
        if self._left > 0 or said.is_over:
            return
        self._left = EVERY
        makers = (_NODES, _ATTEMPT if said.runs and not (said.is_ending or said.asked[do.Settle]) else _NODES, _ANSWERS)
        message = self._rng.choice(self._rng.choice(makers))(self._rng, said)
        if message is None:
            return
        if type(message) is given.TimerFired:
            now_s = max(now_s, said.timer_s or 0.0)
        after, todo = self._decide(state, message, now_s)
        check_decision(said, message, todo, now_s)
        replayed.check(after, todo, is_tried=True)


Maker = Callable[[random.Random, Said], Any]


def _one_of(rng: random.Random, names: Iterable[str]) -> str:
    """One of the names; "" if there is none: a node that nobody knows."""
    return rng.choice(sorted(names) or [""])


# Nodes


def _node_joined(rng: random.Random, said: Said) -> Any:
    node = _one_of(rng, said.out)
    attempt = rng.choice((None, max(0, said.number), max(0, said.number - 1)))
    return given.NodeJoined(node=node, attempt=attempt, is_warm=rng.random() < 0.5) if node else None


def _stranger_joined(rng: random.Random, said: Said) -> Any:
    return given.NodeJoined(node="x0", allocation=rng.choice((_UNKNOWN, *sorted(said.boosters))))


def _node_lost(rng: random.Random, said: Said) -> Any:
    return given.NodeLost(node=_one_of(rng, said.there), reason="connection to its runner closed")


def _node_broken(rng: random.Random, said: Said) -> Any:
    node = _one_of(rng, said.there)
    return given.NodeBroken(node=node, reason="cannot start workers", is_environment=rng.random() < 0.5)


def _launch_ended(rng: random.Random, said: Said) -> Any:
    failed = {node: "srun could start no process there" for node in [_one_of(rng, said.there)] if node}
    return given.LaunchEnded(failed=failed, has_ended=rng.random() < 0.5) if said.has_launcher else None


_NODES: tuple[Maker, ...] = (
    _node_joined,
    _stranger_joined,
    _node_lost,
    _node_broken,
    _launch_ended,
    lambda rng, said: given.NodeWarm(node=_one_of(rng, said.there)),
    lambda rng, said: given.NodeLost(node=_one_of(rng, said.holders), reason="connection to its runner closed"),
    lambda rng, said: given.IsolationChanged(is_isolated=not said.is_isolated),
    lambda rng, said: given.StoodStill(seconds=5.0),
    lambda rng, said: given.Terminated(node=rng.choice((None, *sorted(said.there)))),
)


# The attempt


def _workers_ended(rng: random.Random, said: Said) -> Any:
    node, chance = _one_of(rng, said.nodes), rng.random()
    if chance < 0.4:
        return given.WorkersEnded(node=node, attempt=said.number, ok=True, is_stopped=rng.random() < 0.5)
    error = "ValueError: an error" if chance < 0.7 else None
    failure = WorkerFailure(node=node, rank=0, exit_code=1 if error else -signal.SIGABRT, time_s=1.0, error=error)
    return given.WorkersEnded(node=node, attempt=said.number, ok=False, failures=(failure,))


def _committed(rng: random.Random, said: Said) -> Any:
    newest, tier = max(said.committed.values(), default=0), rng.choice(("memory", "shared"))
    return given.Committed(attempt=said.number, step=rng.choice((max(newest, 1), newest + 5)), tier=tier)


def _fault_reported(rng: random.Random, said: Said) -> Any:
    kind = rng.choice((FaultKind.FABRIC, FaultKind.LOG_RULE))
    return given.FaultReported(node=_one_of(rng, said.nodes), attempt=said.number, kind=kind, reason="seen")


def _agent_lost(rng: random.Random, said: Said) -> Any:
    generation = max(0, said.generation - rng.randrange(2))
    node = _one_of(rng, said.nodes)
    return given.AgentLost(node=node, attempt=said.number, generation=generation, reason="its agent is gone")


_ATTEMPT: tuple[Maker, ...] = (
    _workers_ended,
    _committed,
    _fault_reported,
    _agent_lost,
    lambda rng, said: given.WorkersStarted(node=_one_of(rng, said.nodes), attempt=said.number),
    lambda rng, said: given.FirstStep(node=_one_of(rng, said.nodes), attempt=said.number, step=9, time_s=2e9),
    lambda rng, said: given.RestoreRefused(node=_one_of(rng, said.nodes), attempt=said.number, reason="too new"),
    lambda rng, said: given.Restored(attempt=said.number),
    lambda rng, said: given.AgentsRejoined(attempt=said.number, generation=said.generation - rng.randrange(2)),
    lambda rng, said: given.AgentsEnded(attempt=said.number, generation=said.generation),
)


# Answers and users


def _unusable(rng: random.Random, said: Said) -> Any:
    asked: tuple[str, ...] = (_one_of(rng, said.out),)
    purpose = do.Purpose.RETURN
    if said.runs and (due := [each for each in _OF_AGENTS if said.asked[each]]):
        asked, purpose = (*said.nodes, *said.holders), due[0]
    chance = rng.random()
    unusable = {rng.choice(asked): "its slurmd does not answer"} if chance < 0.5 else {}
    error = "it does not answer" if chance > 0.8 else None
    return given.UnusableAnswered(asked=asked, purpose=purpose, unusable=unusable, error=error)


def _allocation_asked(rng: random.Random, said: Said) -> Any:
    if not said.asked[do.AskAllocation]:
        return None
    error = rng.choice((None, "Slurm does not answer"))
    return given.AllocationAsked(allocation=_one_of(rng, said.boosters), job_id="" if error else "777", error=error)


def _allocations_seen(rng: random.Random, said: Said) -> Any:
    later = (given.AllocationState.RUNNING, given.AllocationState.PREEMPTED, given.AllocationState.ENDED)
    states = {name: rng.choice(later) for name in sorted(said.boosters) if not said.asked[do.AskAllocation]}
    if rng.random() < 0.3:
        states[_UNKNOWN] = given.AllocationState.QUEUED
    reasons = {name: rng.choice(("CANCELLED by 0", "NODE_FAIL")) for name in states}
    return given.AllocationsSeen(states=states, reasons=reasons)


def _if_asked(question: type, maker: Maker) -> Maker:
    return lambda rng, said: maker(rng, said) if said.asked[question] else None


_ANSWERS: tuple[Maker, ...] = (
    _unusable,
    _allocation_asked,
    _allocations_seen,
    _if_asked(do.AskWhyTerminated, lambda rng, said: given.TerminationExplained(why=rng.choice(_MEANINGS))),
    _if_asked(do.AskTimeLeft, lambda rng, said: given.TimeLeftAnswered(left_s=rng.choice((None, 30.0, 250.0, 5000.0)))),
    _if_asked(do.ProbeFolder, lambda rng, said: given.FolderProbed(error=rng.choice((None, "no space left")))),
    _if_asked(do.Settle, lambda rng, said: given.EventsWritten()),
    lambda rng, said: given.OwnCheckpointsSeen(file="own-9", modified_s=2e9 * rng.randrange(2)),
    lambda rng, said: given.TimeWarned(),
    lambda rng, said: given.CancelAsked(),
    lambda rng, said: given.TimerFired() if said.timer_s is not None else None,
)
