"""The recovery ladder: after a fault, the lowest rung that serves. Pure: it knows what the job's events say, no more.

An attempt gains something when a step newer than any before it is committed. Attempts that gain nothing are counted,
whatever ended them: a job that only ever loses nodes is going nowhere either. A script that keeps its own checkpoints
gains by a newer file of those that `progress` names, and where nothing is named by training for RAN_S.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from launcher.jobfile import Restart
from launcher.supervisor.faults import AGENT_LOST, FABRIC, NODE_LOST, PREFLIGHT, SCHEDULER_LOST, signature

AGENTLESS_ATTEMPTS = 2  # then Slurm may never start a step in this allocation again (seen after a controller's restart)
SUSPECT_AFTER = 2  # attempts that failed on one node
# Before the second restart after faults of one kind, or the third after any; twice as long before each further one.
FIRST_DELAY_S = 2.0
MAX_DELAY_S = 60.0
RAN_S = 300.0  # longer than a start takes; a job that does this again and again is bounded by max_restarts alone
_NOT_THE_NODES = (AGENT_LOST, NODE_LOST)  # the first has a limit of its own, after the second the node is out
_NOT_THE_JOBS = (PREFLIGHT, SCHEDULER_LOST)  # faults that say nothing about whether the job gains steps


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do after a fault.

    Attributes:
        action: start another attempt, hand the job back to the scheduler, or end it.
        rung: how the next attempt comes about: "workers", "spare" or "requeue"; None at the end.
        outcome: the job's outcome where it ends.
        reason: why, in words.
        delay_s: how long to wait before the next attempt.
    """

    action: Literal["restart", "requeue", "stop"]
    rung: str | None = None
    outcome: str | None = None
    reason: str = ""
    delay_s: float = 0.0


class Ladder:
    """Decides. Give it every event of the job, old ones first; it then needs no other memory.

    Args:
        restart: the job's limits.
        can_requeue: whether the scheduler could give us other nodes.
        tells_steps: whether the job has a `checkpoint` section.
    """

    def __init__(self, restart: Restart, can_requeue: bool, *, tells_steps: bool = True) -> None:
        self._restart = restart
        self._tells_steps = tells_steps
        self._trains_since_s: float | None = None  # epoch; None until the attempt's workers run
        self._newest_file_s: float | None = None  # of the script's own checkpoints; None: none are named
        self._newest_file_at_fault_s = 0.0
        self._can_requeue = can_requeue
        self._newest_step = 0
        self._newest_step_at_fault = 0
        self._fruitless = 0  # attempts in a row that gained nothing
        self._agentless = 0  # attempts in a row, of this start of the job, for which no checkpoint agents came up
        self._restarts = 0
        self._kind = ""  # of the fault observed last
        self._repeats: Counter[str] = Counter()  # faults of each kind since a step was gained
        self._failed_on: Counter[str] = Counter()  # faults of each node since then
        self._is_new_suspect = False  # whether the fault observed last has made its node one
        self._error: str | None = None
        self._error_repeats = False
        self._is_fabric = False
        self._judged = False  # whether the attempt's decisive fault, the first, has been seen

    def observe(self, event: Mapping[str, Any]) -> None:
        """Takes note of an event of the job."""
        if event["event"] == "commit":
            self._newest_step = max(self._newest_step, event.get("step") or 0)
        elif event["event"] == "job_start":
            self._judged = False
            self._agentless = 0
        elif event["event"] == "own_checkpoint":
            if self._newest_file_s is None:  # as it was before the first attempt
                self._newest_file_at_fault_s = event["modified"]
            self._newest_file_s = max(self._newest_file_s or 0.0, event["modified"])
        elif event["event"] == "workers_started":
            self._trains_since_s = event["time"]
        elif event["event"] == "attempt_start":
            self._trains_since_s = None
            self._judged = False
            self._restarts += bool(event.get("attempt"))
        elif event["event"] == "fault" and event.get("kind") not in _NOT_THE_JOBS and not self._judged:
            self._judged = True
            self._is_fabric = event.get("kind") == FABRIC
            gained = self._newest_step > self._newest_step_at_fault or self._has_newer_file
            has_run = not self._tells_steps and self._newest_file_s is None and self._has_run_until(event)
            self._newest_file_at_fault_s = self._newest_file_s or 0.0
            self._agentless = self._agentless + 1 if event.get("kind") == AGENT_LOST else 0
            self._newest_step_at_fault = self._newest_step
            self._fruitless = 0 if gained or has_run else self._fruitless + 1
            self._kind = str(event.get("kind"))
            if gained or has_run:
                self._repeats.clear()
                self._failed_on.clear()
            self._repeats[self._kind] += 1
            node = event.get("node") if self._kind not in _NOT_THE_NODES else None
            self._failed_on[node or ""] += bool(node)
            self._is_new_suspect = node is not None and self._failed_on[node] == SUSPECT_AFTER
            trace = event.get("traceback") if event.get("kind") == "user_error" else None
            error = signature(trace) if trace else None
            self._error_repeats = error is not None and error == self._error and not gained
            self._error = error

    @property
    def _has_newer_file(self) -> bool:
        return self._newest_file_s is not None and self._newest_file_s > self._newest_file_at_fault_s

    @property
    def _nothing_gained(self) -> str:
        if self._newest_file_s is not None:
            return "wrote no newer file that `progress` matches"
        if not self._tells_steps:
            return f"ran for less than {RAN_S:g} s (`progress` may name the script's own checkpoints)"
        return "committed no new step"

    def _has_run_until(self, fault: Mapping[str, Any]) -> bool:
        return self._trains_since_s is not None and fault["time"] - self._trains_since_s >= RAN_S

    @property
    def suspects(self) -> set[str]:
        """Nodes on which attempts failed again and again without a new step: spares are to take their places."""
        return {node for node, count in self._failed_on.items() if count >= SUSPECT_AFTER}

    def decide(self, reason: str, *, nodes_suffice: bool, nodes_changed: bool, spare_left: bool = False) -> Decision:
        """The rung after the fault observed last.

        Args:
            reason: that fault in words.
            nodes_suffice: whether enough nodes are ready for another attempt.
            nodes_changed: whether it would run on other nodes than the last.
            spare_left: whether a spare that is no suspect could take a node's place.
        """
        if self._is_fabric:  # on every further attempt and node it would be the same
            return Decision(action="stop", outcome="fabric", reason=f"{reason} (the job file says fabric: require)")
        if self._error_repeats:
            return Decision(
                action="stop", outcome="user_error", reason=f"the same error twice without progress: {reason}"
            )
        if self._is_new_suspect and spare_left and self._restarts < self._restart.max_restarts:
            return Decision(action="restart", rung="spare", reason=reason, delay_s=self._delay_s())
        if self._fruitless >= self._restart.max_without_progress:
            attempts = f"{self._fruitless} attempts in a row {self._nothing_gained} (restart.max_without_progress)"
            return Decision(action="stop", outcome="no_progress", reason=f"{attempts}; the last fault: {reason}")
        if self._restarts >= self._restart.max_restarts:
            restarts = f"{self._restarts} restarts (restart.max_restarts)"
            return Decision(action="stop", outcome="no_progress", reason=f"{restarts}; the last fault: {reason}")
        if self._agentless >= AGENTLESS_ATTEMPTS and self._can_requeue:
            return Decision(action="requeue", rung="requeue", reason=f"no checkpoint agents come up here: {reason}")
        if nodes_suffice:
            rung = "spare" if nodes_changed else "workers"
            return Decision(action="restart", rung=rung, reason=reason, delay_s=self._delay_s())
        if self._can_requeue:
            return Decision(action="requeue", rung="requeue", reason=f"no spare node is left: {reason}")
        return Decision(action="stop", outcome="too_few_nodes", reason=f"no spare node is left: {reason}")

    def _delay_s(self) -> float:
        """None before the first restart: most faults happen once. What comes again and again may need time to pass."""
        again = max(self._repeats[self._kind] - 2, self._repeats.total() - 3)
        return min(MAX_DELAY_S, FIRST_DELAY_S * 2.0**again) if again >= 0 else 0.0
