"""A node that is being healed: reserved, rebooted or replaced, checked alone and with neighbours, then returned.

The reservation (MAINT, only root's jobs) keeps other jobs away between the reboot and the end of the check. The node
cannot stay drained for that, because Slurm runs no job on a drained node, not even a check. The reservation survives
the death of the healer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lifecycle.errors import LifecycleError
from lifecycle.heal import comparison
from lifecycle.heal.history import (
    BY_HAND,
    FAILED,
    LEFT,
    REBOOT,
    REPAIRED,
    REPLACE,
    RETURNED,
    Case,
    HealEvent,
    HealHistory,
)
from lifecycle.heal.settings import HealSettings
from lifecycle.heal.ways import Way, reboots, replacements
from slurm import command, hyperpod
from slurm.client import Slurm, listens
from slurm.command import CommandRunner
from slurm.errors import SlurmError
from slurm.hooks.drains import OUT, is_ours, reason, whose, why
from slurm.records import Node

RESERVATION = "holdfast-heal-"  # prefix of the names of healing's reservations
WAITS, CHECKING = "waits", "checking"

_REBOOTS = frozenset(("REBOOT_REQUESTED", "REBOOT_ISSUED"))


@dataclass(frozen=True, kw_only=True)
class HealOutcome:
    """The result of one look at a node.

    Attributes:
        node: its name.
        what: a word of history.py, WAITS or CHECKING.
        why: the reason.
    """

    node: str
    what: str
    why: str


class Cases:
    """Opens cases and advances them. A healer that follows a dead one can repeat each step."""

    def __init__(
        self,
        slurm: Slurm,
        settings: HealSettings,
        history: HealHistory,
        now_s: Callable[[], float],
        run: CommandRunner = command.run,
    ) -> None:
        """
        Args:
            slurm: the cluster.
            settings: the settings of healing.
            history: the stored cases and events.
            now_s: returns the time, Unix seconds.
            run: runs sbatch and the administrator's command.
        """
        self._slurm = slurm
        self._settings = settings
        self._history = history
        self._now_s = now_s
        self._run = run

    def begin(self, node: Node, action: str, cause: str) -> HealOutcome:
        """Opens a case: reserves the node, then requests its reboot or replacement. BY_HAND only checks the node.

        Raises:
            LifecycleError: the history could not be written; the node is unchanged.
        """
        case = Case(node=node.name, action=action, why=cause, since_s=self._now_s(), slurmd_started=node.slurmd_started)
        self._note(case, action, cause, case)
        return self._ask(case, node)

    def go_on(self, case: Case, nodes: Sequence[Node]) -> HealOutcome:
        """Advances a case. Closes it when the node returned, failed, or was taken over by an administrator."""
        node = next((node for node in nodes if node.name == case.node), None)
        if node is None:
            return self._told(case, WAITS, "Slurm does not know it at the moment")
        if node.flags & OUT and not is_ours(node) and not self._is_own_order(case, node):
            return self._close(case, LEFT, f"drained by {whose(node)}: {why(node)}")
        if not case.asked:
            return self._ask(case, node, again=True)
        if case.passed_s is not None:
            return self._is_compared(case, node, nodes, case.passed_s)
        return self._starts(case, node) if case.job is None else self._is_checked(case, node, case.job)

    def strays(self) -> list[str]:
        """Reservations of healing without a case: their healer died, or their check was still ending."""
        return [
            name
            for name in self._slurm.reservations()
            if name.startswith(RESERVATION) and name.removeprefix(RESERVATION) not in self._history.cases
        ]

    def release_strays(self) -> None:
        """Removes these reservations, except those that Slurm still uses."""
        for name in self.strays():
            with contextlib.suppress(SlurmError):
                self._slurm.release(name)

    def _ask(self, case: Case, node: Node, *, again: bool = False) -> HealOutcome:
        """Requests the reboot or replacement. `again`: a healer died here and may have requested it already."""
        try:
            self._slurm.reserve(RESERVATION + node.name, [node.name])
            if case.action != BY_HAND and node.slurmd_started == case.slurmd_started:
                self._way(case.action)(node, case.why)
        except SlurmError as error:
            return self._fail(case, node, f"{case.action}: {error}")
        except LifecycleError as error:
            if not again:  # a repeated request may find nothing left to replace
                return self._fail(case, node, f"{case.action}: {error}")
        asked = dataclasses.replace(case, asked=True)
        self._history.keep(node.name, asked)
        return self._check(asked, node) if case.action == BY_HAND else self._told(case, case.action, case.why)

    def _way(self, action: str) -> Way:
        if action == REBOOT:
            return reboots(self._slurm)[self._settings.reboot]
        return replacements(self._slurm, self._settings, self._run)[self._settings.replace]

    def _is_own_order(self, case: Case, node: Node) -> bool:
        """Whether HyperPod acts on the node by order of this case. Any other order is HyperPod's own, and it carries it
        out without us."""
        by = {REBOOT: self._settings.reboot, REPLACE: self._settings.replace}.get(case.action, "")
        own = {REBOOT: hyperpod.REBOOT, REPLACE: hyperpod.REPLACE}.get(case.action)
        return by.startswith("hyperpod") and hyperpod.order_in(node.reason) == own

    def _starts(self, case: Case, node: Node) -> HealOutcome:
        if "REBOOT_REQUESTED" in node.flags:  # its jobs have not ended; the time limit begins when they have
            self._history.keep(node.name, dataclasses.replace(case, since_s=self._now_s()))
            return self._told(case, WAITS, "jobs on it end first")
        anew = case.action == BY_HAND or node.slurmd_started != case.slurmd_started
        if anew and node.responds and not node.flags & _REBOOTS:
            if is_ours(node) and case.action == REBOOT and self._settings.reboot == "slurm":
                return self._fail(case, node, why(node))  # Slurm had resumed it, and the health check drained it again
            return self._check(case, node)
        if self._now_s() - case.since_s > self._settings.start_timeout_s:
            return self._fail(case, node, f"not back {self._settings.start_timeout_s:g} s after {case.action}")
        if case.action == REBOOT and self._settings.reboot == "slurm" and self._is_lost(case, node):
            self._slurm.resume(node.name)  # Slurm ignores a second reboot while it waits for the first
            self._slurm.reboot(node.name, reason(case.why))
            return self._told(case, WAITS, "Slurm lost its reboot: ordered again")
        return self._told(case, WAITS, f"starts anew ({case.action})")

    def _is_lost(self, case: Case, node: Node) -> bool:
        """Whether Slurm has lost a reboot: it waits for a node whose slurmd has answered all along.

        slurmctld may die before it has told the node; and 22.05 may not notice a node that is back within seconds.
        """
        now_s = self._now_s()
        if not listens(node.address, node.port or self._slurm.slurmd_port()):
            self._history.keep(node.name, dataclasses.replace(case, up_since_s=None))
            return False
        since_s = now_s if case.up_since_s is None else case.up_since_s
        lost = now_s - since_s > self._settings.reboot_again_s
        self._history.keep(node.name, dataclasses.replace(case, up_since_s=None if lost else since_s))
        return lost

    def _check(self, case: Case, node: Node) -> HealOutcome:
        """Runs the node's check in the reservation. Its exit code is the result."""
        if node.flags & OUT or node.state == "DOWN":
            self._slurm.resume(node.name)
        job = self._submit(case, [node.name], f"exec {shlex.join(self._settings.check)}")
        self._history.keep(node.name, dataclasses.replace(case, job=job, since_s=self._now_s()))
        return self._told(case, CHECKING, f"job {job}: {shlex.join(self._settings.check)}")

    def _is_checked(self, case: Case, node: Node, job_id: int) -> HealOutcome:
        job = self._slurm.job(job_id)
        if job is None:  # Slurm has forgotten it, because no healer ran for long
            return self._check(case, node)
        if is_ours(node):
            return self._fail(case, node, why(node))
        if job.has_ended and job.state == "COMPLETED":
            if not self._settings.check_pairs:
                return self._return(case)
            self._history.keep(node.name, dataclasses.replace(case, job=None, passed_s=self._now_s()))
            return self._told(case, CHECKING, "passed alone; next between nodes")
        if job.has_ended:
            return self._fail(
                case, node, f"{case.why}; after {case.action} its check failed (job {job_id}: {job.state})"
            )
        if self._now_s() - case.since_s > self._settings.check_timeout_s:
            return self._fail(case, node, f"{case.why}; its check did not end (job {job_id}: {job.state})")
        return self._told(case, CHECKING, f"job {job_id}: {job.state}")

    def _is_compared(self, case: Case, node: Node, nodes: Sequence[Node], since_s: float) -> HealOutcome:
        """Runs the check between nodes with idle neighbours, within its time limit."""
        if is_ours(node):
            return self._fail(case, node, why(node))
        job = None if case.job is None else self._slurm.job(case.job)
        if job is not None and job.has_ended and job.state == "COMPLETED":
            return self._return(case)
        if job is not None and comparison.is_unfit(job):
            beside = ", ".join(name for name in job.nodes if name != node.name)
            where = f"{comparison.PAIRS_LOG} on {job.batch_host}"
            return self._fail(case, node, f"{case.why}; slow or wrong with {beside}, which do well without it: {where}")
        if self._now_s() - since_s > self._settings.pairs_timeout_s:
            return self._return(case, " (between nodes nothing was measured in time)")
        if job is not None and not job.has_ended:
            return self._told(case, CHECKING, f"job {job.id}, between nodes: {job.state}")
        others = comparison.neighbours(node, nodes, self._slurm.topology())
        if not others:
            return self._told(case, CHECKING, "between nodes as soon as a neighbour is idle")
        self._slurm.reserve(RESERVATION + node.name, [node.name, *others])
        number = self._submit(case, [node.name, *others], comparison.script(node.name, self._settings.check_pairs))
        self._history.keep(node.name, dataclasses.replace(case, job=number))
        return self._told(case, CHECKING, f"job {number}, with {', '.join(others)}")

    def _submit(self, case: Case, nodes: Sequence[str], script: str) -> int:
        """Submits a job of root's in the reservation. First ends one that a dead healer left there."""
        reservation = RESERVATION + case.node
        self._slurm.cancel_in(reservation)
        options = {
            "reservation": reservation,
            "partition": self._partition(nodes),
            "nodelist": ",".join(nodes),
            "nodes": str(len(nodes)),
            "job-name": "holdfast-heal-check",
            "output": "/dev/null",  # the findings are in the node's verdict.json or in PAIRS_LOG
            "chdir": "/",
        }
        told = ["--exclusive", "--no-requeue", *(f"--{name}={value}" for name, value in options.items())]
        return self._slurm.submit(told, f"#!/bin/sh\n{script}\n")

    def _partition(self, nodes: Sequence[str]) -> str:
        """The cluster's default partition where it has these nodes, else the first that does."""
        fitting = [each for each in self._slurm.partitions() if set(nodes) <= set(each.nodes)]
        if not fitting:
            raise SlurmError(f"no partition has {', '.join(nodes)}; a check is a job, and that needs one")
        return min(fitting, key=lambda each: not each.is_default).name

    def _fail(self, case: Case, node: Node, said: str) -> HealOutcome:
        """Drains the node again before it can get a job."""
        self._slurm.drain(node.name, reason(said))
        return self._close(case, FAILED, said)

    def _return(self, case: Case, remark: str = "") -> HealOutcome:
        return self._close(case, REPAIRED if case.action == BY_HAND else RETURNED, case.why + remark)

    def _close(self, case: Case, what: str, said: str) -> HealOutcome:
        self._note(case, what, said, None)
        with contextlib.suppress(SlurmError):  # it fails while the check's job is ending; `release_strays` repeats it
            self._slurm.cancel_in(RESERVATION + case.node)
            self._slurm.release(RESERVATION + case.node)
        return self._told(case, what, said)

    @staticmethod
    def _told(case: Case, what: str, said: str) -> HealOutcome:
        return HealOutcome(node=case.node, what=what, why=said)

    def _note(self, case: Case, what: str, said: str, left: Case | None) -> None:
        self._history.note(HealEvent(time_s=round(self._now_s(), 3), node=case.node, what=what, why=said), left)
