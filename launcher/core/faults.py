"""The causes of an attempt's end, found in the runners' reports. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from launcher.diagnosis import Diagnosis, Domain, FaultClass, NodeEvidence, WorkerFailure, diagnose, find_cause
from launcher.diagnosis.policy import Action

LOSSES_S = 2.0  # losses of runners within this time are one fault, for example a step that was cancelled

_FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+")


class FaultKind(StrEnum):
    """What happened. The event `fault` has the values."""

    PROCESS_EXIT = "process_exit"  # a worker ended; the node is healthy
    USER_ERROR = "user_error"  # a worker ended with an exception of the script itself
    AGENT_LOST = "agent_lost"  # no checkpoint agent for the restore
    START_TIMEOUT = "start_timeout"  # a node or its workers did not come up in time
    FABRIC = "fabric"  # NCCL does not use the fabric that the job requires
    UNRESTORABLE = "unrestorable"  # lower tiers have steps, and none can be restored
    HANG = "hang"  # the workers run but make no steps
    NODE_LOST = "node_lost"  # silent, or its runner's connection closed
    RUNNER_LOST = "runner_lost"  # the runner reports that it cannot start workers
    ENVIRONMENT = "environment"  # the runner reports that the job's Python cannot load what workers need
    SCHEDULER_LOST = "scheduler_lost"  # the scheduler does not answer, so no checkpoint agents can be started
    PREEMPTED = "preempted"  # a booster was ended before its nodes could stop
    PREFLIGHT = "preflight"  # the node reports that it cannot train
    BOOSTER_START = "booster_start"  # a booster's runners did not come up on its nodes; the attempt is not affected
    LOG_RULE = "log_rule"  # a worker wrote a line that the job file's `log_rules` names


def _known(fault_class: FaultClass, domain: Domain, advice: str) -> Diagnosis:
    return Diagnosis(fault_class=fault_class, domain=domain, advice=advice)


_C, _D = FaultClass, Domain
# the diagnosis of faults that Holdfast sees itself; a reason that a rule knows says more
_OF_KIND: Mapping[FaultKind, Diagnosis] = {
    FaultKind.AGENT_LOST: _known(_C.UNKNOWN, _D.NODE, "read the end of the agent's log in log/attempt-N"),
    FaultKind.START_TIMEOUT: _known(_C.UNKNOWN, _D.NODE, "look at the runners' logs of the nodes that are named"),
    FaultKind.FABRIC: _known(_C.FABRIC, _D.NODE, "run `holdfast node check` on the node, or say fabric: prefer"),
    FaultKind.UNRESTORABLE: _known(
        _C.DATA, _D.CLUSTER, "`holdfast ckpt verify` tells which steps are damaged or out of reach"
    ),
    FaultKind.HANG: _known(
        _C.HANG,
        _D.UNKNOWN,
        "look at the place where that rank stands; log/attempt-N/rank-*.stack has the stacks of all ranks",
    ),
    FaultKind.NODE_LOST: _known(_C.NODE_LOST, _D.NODE, "look at the node's console and its health record"),
    FaultKind.RUNNER_LOST: _known(_C.UNKNOWN, _D.NODE, "look at the runner's log of the node"),
    FaultKind.ENVIRONMENT: _known(_C.IMPORT, _D.NODE, "make the job's Python the same on all nodes"),
    FaultKind.SCHEDULER_LOST: _known(_C.UNKNOWN, _D.CLUSTER, "ask the administrator for the scheduler's state"),
    FaultKind.PREEMPTED: _known(_C.PREEMPTION, _D.CLUSTER, "nothing: the job continues on fewer nodes"),
    FaultKind.PREFLIGHT: _known(_C.UNKNOWN, _D.NODE, "run `holdfast node check` on the node"),
    FaultKind.BOOSTER_START: _known(_C.UNKNOWN, _D.NODE, "look at the booster's log"),
    FaultKind.LOG_RULE: _known(_C.UNKNOWN, _D.USER, "the job file's log_rules say what follows this line"),
}
_SAYS_MORE = frozenset({
    FaultKind.PROCESS_EXIT, FaultKind.AGENT_LOST, FaultKind.START_TIMEOUT, FaultKind.RUNNER_LOST,
    FaultKind.ENVIRONMENT, FaultKind.PREFLIGHT, FaultKind.LOG_RULE,
})  # fmt: skip
_OTHER = _known(_C.UNKNOWN, _D.UNKNOWN, "read the end of the node's runner log")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        kind: what happened.
        node: the node at fault, None if there is no single one.
        reason: the cause in words.
        rank: the worker at fault.
        detect_s: seconds of silence before the fault was noticed; 0 for a closed connection.
        traceback: the script's traceback; without an exception, the last lines of its stderr.
        cause: what the failed ranks tell; None if Holdfast saw the fault itself.
        action: what the rule says that found it; None: `restart.on` decides.
    """

    kind: FaultKind
    node: str | None
    reason: str
    rank: int | None = None
    detect_s: float | None = None
    traceback: str | None = None
    cause: Diagnosis | None = None
    action: Action | None = None

    @property
    def diagnosis(self) -> Diagnosis:
        """What it is, and whose."""
        if self.cause is not None:
            return self.cause
        seen = _OF_KIND.get(self.kind, _OTHER)
        return diagnose(self.reason, seen) if self.kind in _SAYS_MORE else seen


def root_cause(failures: Sequence[WorkerFailure], nodes: Mapping[str, NodeEvidence] | None = None) -> Fault:
    """The fault that caused an attempt's failures: the earliest that is not a consequence of another one.

    Args:
        failures: the failures, at least one.
        nodes: what their nodes saw.
    """
    cause = find_cause(failures, nodes)
    first = cause.failure
    reason = f"rank {first.rank} on {first.node} {first.ending}"
    if first.words is not None:
        reason += f": {first.words}"
    met = next((failure for failure in failures if failure.action is not None), None)
    if met is not None:
        reason += f" (its log meets the log rule {met.rule})"
    return Fault(
        kind=FaultKind.USER_ERROR if cause.is_users else FaultKind.PROCESS_EXIT,
        node=first.node,
        rank=first.rank,
        reason=reason,
        traceback=first.traceback or first.last_words,
        cause=cause.diagnosis,
        action=Action(met.action) if met is not None and met.action is not None else None,
    )


def signature(traceback: str) -> str:
    """The part of a traceback that is the same for each occurrence of an error: the frames, and the last line without
    numbers.

    Without an exception: all lines without their numbers.
    """
    lines = traceback.strip().splitlines()
    frames = [f"{path}:{line}" for path, line in _FRAME.findall(traceback)]
    return "\n".join([*frames, *(_VARYING.sub("#", line) for line in (lines[-1:] if frames else lines))])
