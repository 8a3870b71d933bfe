"""The progress that attempts made: the input of the recovery ladder, computed from the events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rpds import HashTrieMap

from launcher.core.faults import LOSSES_S, FaultKind, signature
from launcher.core.frozen import replace

SUSPECT_AFTER = 2  # number of attempts that failed on one node
RAN_S = 300.0  # longer than a start takes; a job that does this again and again is bounded by max_restarts alone
UNLUCKY_FOR_ONE = 4
_NOT_THE_NODES = (
    FaultKind.AGENT_LOST,
    FaultKind.NODE_LOST,
)  # the first has a limit of its own, after the second the node is out
_OF_LOST_NODES = (
    FaultKind.NODE_LOST,
    FaultKind.START_TIMEOUT,
)  # the second follows from the first where too few nodes are left

Event = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Gains:
    """The input of the recovery ladder: which attempts made progress, and what ended the others.

    An attempt makes progress if it commits a step that is newer than all before, or if the next one goes on from a step
    that is newer than where all before began: newer steps may be lost with the memory of nodes. For a script with its
    own checkpoints, progress is a newer file that `progress` in the job file matches; without that key, it is training
    for RAN_S.

    Attributes:
        step, step_at_fault: the newest committed step, now and at the last failure of an attempt.
        restored: the newest step from which an attempt has gone on.
        committed: the newest step that was committed since the last failure of an attempt, even if it is not new.
        file_s, file_at_fault_s: the same for the time of the newest own checkpoint (epoch); None without `progress`.
        fruitless: number of attempts in a row without progress, whatever ended them.
        unlucky: those of them that perhaps made progress. They trained for RAN_S and then lost a node, when perhaps no
            save was due before; or they committed again a step that had been lost, from which the next may go on.
        agentless: number of attempts in a row whose agents did not start, since the job's last start.
        restarts: number of attempts after the first, without those after a resize.
        kind, fault_s: kind and time (epoch) of the last decisive fault.
        repeats: number of faults of each kind since the last progress.
        failed_on: number of faults of each node since the last progress.
        new_suspect: the node that became a suspect with the last fault; None if none did.
        error: the signature of the last user error.
        error_repeats: whether it came twice without progress between.
    """

    step: int = 0
    step_at_fault: int = 0
    restored: int = 0
    committed: int = 0
    file_s: float | None = None
    file_at_fault_s: float = 0.0
    fruitless: int = 0
    unlucky: int = 0
    agentless: int = 0
    restarts: int = 0
    kind: str = ""
    fault_s: float = 0.0
    repeats: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    failed_on: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    new_suspect: str | None = None
    error: str | None = None
    error_repeats: bool = False

    @property
    def suspects(self) -> frozenset[str]:
        """Nodes on which attempts failed repeatedly without progress. Spares replace them."""
        return frozenset(node for node, count in self.failed_on.items() if count >= SUSPECT_AFTER)

    @property
    def counted(self) -> float:
        """The attempts in a row that count for `restart.max_without_progress`: several unlucky ones count as one."""
        return self.fruitless - self.unlucky + self.unlucky / UNLUCKY_FOR_ONE


def after_fault(gains: Gains, fault: Event, workers_s: float | None, *, has_checkpoint: bool) -> Gains:
    """Takes account of the fault that ended an attempt.

    Args:
        gains: before it.
        fault: its event.
        workers_s: the time at which the attempt's workers ran (epoch); None if they never did.
        has_checkpoint: whether committed steps show the progress of the job's script.
    """
    kind, node = fault["kind"], fault.get("node")
    has_newer_file = gains.file_s is not None and gains.file_s > gains.file_at_fault_s
    gained = gains.step > gains.step_at_fault or has_newer_file
    has_run = workers_s is not None and fault["time"] - workers_s >= RAN_S
    is_blind = not has_checkpoint and gains.file_s is None
    is_fruitful = gained or (has_run and is_blind)
    repeats, failed_on = gains.repeats, gains.failed_on
    if is_fruitful:
        repeats, failed_on = HashTrieMap(), HashTrieMap()
    repeats = repeats.insert(kind, repeats.get(kind, 0) + 1)
    new_suspect = None
    if node is not None and kind not in _NOT_THE_NODES:
        failed_on = failed_on.insert(node, failed_on.get(node, 0) + 1)
        new_suspect = node if failed_on[node] == SUSPECT_AFTER else None
    trace = fault.get("traceback") if kind == FaultKind.USER_ERROR else None
    error = signature(trace) if trace else None
    is_same = {kind, gains.kind} <= {*_OF_LOST_NODES} and fault["time"] - gains.fault_s <= LOSSES_S
    is_unlucky = not is_same and ((has_run and kind == FaultKind.NODE_LOST) or gains.committed > gains.restored)
    return replace(
        gains,
        file_at_fault_s=gains.file_s or 0.0,
        step_at_fault=gains.step,
        committed=0,
        fruitless=0 if is_fruitful else gains.fruitless + (not is_same),
        unlucky=0 if is_fruitful else gains.unlucky + is_unlucky,
        agentless=gains.agentless + 1 if kind == FaultKind.AGENT_LOST else 0,
        kind=kind,
        fault_s=fault["time"],
        repeats=repeats,
        failed_on=failed_on,
        new_suspect=new_suspect,
        error=error,
        error_repeats=error is not None and error == gains.error and not gained,
    )
