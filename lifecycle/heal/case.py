"""A node being healed: reserved, started anew, checked in the reservation, and only then given jobs again.

The reservation (MAINT, root's jobs alone) is what keeps others away from the moment Slurm resumes a rebooted node until
its check has passed: Slurm runs no job at all on a drained node, a check neither. It outlives a healer that dies.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from lifecycle.errors import LifecycleError
from lifecycle.heal.history import (
    BY_HAND,
    FAILED,
    LEFT,
    REBOOT,
    REPAIRED,
    RETURNED,
    Case,
    HealEvent,
    History,
)
from lifecycle.heal.settings import HealSettings
from lifecycle.heal.ways import reboots, replacements
from slurm import command
from slurm.client import Slurm, listens
from slurm.command import Runner
from slurm.errors import SlurmError
from slurm.hooks.drains import OUT, is_ours, reason, whose, why
from slurm.records import Node

RESERVATION = "holdfast-heal-"  # begins the name of the reservation of a node that is healed
WAITS, CHECKING = "waits", "checking"

_REBOOTS = frozenset(("REBOOT_REQUESTED", "REBOOT_ISSUED"))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a node in one look at it.

    Attributes:
        node: its name.
        what: a word of history.py, WAITS or CHECKING.
        why: in words.
    """

    node: str
    what: str
    why: str


class Cases:
    """Opens cases and takes each one step further, in steps that a dead healer's successor can repeat."""

    def __init__(
        self,
        slurm: Slurm,
        settings: HealSettings,
        history: History,
        now_s: Callable[[], float],
        run: Runner = command.run,
    ) -> None:
        """
        Args:
            slurm: the cluster.
            settings: what is allowed.
            history: where cases and events are kept.
            now_s: the time, Unix seconds.
            run: how sbatch and the admin's command are run.
        """
        self._slurm = slurm
        self._settings = settings
        self._history = history
        self._now_s = now_s
        self._run = run

    def begin(self, node: Node, action: str, cause: str) -> Outcome:
        """Opens a case: reserves the node, then asks for its reboot or replacement; BY_HAND checks it as it is.

        Raises:
            LifecycleError: the history could not be written; the node is as it was.
        """
        case = Case(node=node.name, action=action, why=cause, since_s=self._now_s(), slurmd_started=node.slurmd_started)
        self._note(case, action, cause, case)
        try:
            self._slurm.reserve(RESERVATION + node.name, node.name)
            if action == BY_HAND:
                return self._check(case, node)
            ways = reboots(self._slurm) if action == REBOOT else replacements(self._slurm, self._settings, self._run)
            ways[self._settings.reboot if action == REBOOT else self._settings.replace](node, cause)
        except (SlurmError, LifecycleError) as error:
            return self._fail(case, node, f"{action}: {error}")
        return Outcome(node=node.name, what=action, why=cause)

    def go_on(self, case: Case, node: Node | None) -> Outcome:
        """Takes a case further; closes it where the node returned, failed, or is an admin's now."""
        if node is None:
            return Outcome(node=case.node, what=WAITS, why="Slurm does not know it at the moment")
        if node.flags & OUT and not is_ours(node) and not node.reason.startswith("Action:"):
            return self._close(case, LEFT, f"drained by {whose(node)}: {why(node)}")
        return self._starts(case, node) if case.job is None else self._is_checked(case, node, case.job)

    def strays(self) -> list[str]:
        """Reservations of ours without a case: their healer died, or their check was still ending."""
        return [
            name
            for name in self._slurm.reservations()
            if name.startswith(RESERVATION) and name.removeprefix(RESERVATION) not in self._history.cases
        ]

    def release_strays(self) -> None:
        """Removes them, as far as Slurm lets go of them yet."""
        for name in self.strays():
            with contextlib.suppress(SlurmError):
                self._slurm.release(name)

    def _starts(self, case: Case, node: Node) -> Outcome:
        if "REBOOT_REQUESTED" in node.flags:  # until its jobs have ended; the time to start counts from then
            self._history.keep(node.name, dataclasses.replace(case, since_s=self._now_s()))
            return Outcome(node=node.name, what=WAITS, why="jobs on it end first")
        anew = case.action == BY_HAND or node.slurmd_started != case.slurmd_started
        if anew and node.responds and not node.flags & _REBOOTS:
            if is_ours(node) and case.action == REBOOT and self._settings.reboot == "slurm":
                return self._fail(case, node, why(node))  # Slurm had resumed it: its own health check drained it again
            return self._check(case, node)
        if self._now_s() - case.since_s > self._settings.start_timeout_s:
            return self._fail(case, node, f"not back {self._settings.start_timeout_s:g} s after {case.action}")
        if case.action == REBOOT and self._settings.reboot == "slurm" and self._is_lost(case, node):
            self._slurm.resume(node.name)  # while it waits for a reboot, Slurm accepts another order and does nothing
            self._slurm.reboot(node.name, reason(case.why))
            return Outcome(node=node.name, what=WAITS, why="Slurm lost its reboot: ordered again")
        return Outcome(node=node.name, what=WAITS, why=f"starts anew ({case.action})")

    def _is_lost(self, case: Case, node: Node) -> bool:
        """Whether Slurm has lost a reboot: it waits for a node whose slurmd has been up at every look for long.

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

    def _check(self, case: Case, node: Node) -> Outcome:
        """Has the node run its check, in the reservation; the exit code is the answer."""
        if node.flags & OUT or node.state == "DOWN":
            self._slurm.resume(node.name)
        options = {
            "reservation": RESERVATION + node.name,
            "nodelist": node.name,
            "nodes": "1",
            "job-name": "holdfast-heal-check",
            "output": "/dev/null",  # the node's verdict.json has the findings
            "chdir": "/",
        }
        told = ["--exclusive", "--no-requeue", *(f"--{name}={value}" for name, value in options.items())]
        job = self._slurm.submit(told, f"#!/bin/sh\nexec {shlex.join(self._settings.check)}\n")
        self._history.keep(node.name, dataclasses.replace(case, job=job, since_s=self._now_s()))
        return Outcome(node=node.name, what=CHECKING, why=f"job {job}: {shlex.join(self._settings.check)}")

    def _is_checked(self, case: Case, node: Node, job_id: int) -> Outcome:
        job = self._slurm.job(job_id)
        if job is None:  # forgotten while no healer ran
            return self._check(case, node)
        if is_ours(node):
            return self._fail(case, node, why(node))
        if job.has_ended and job.state == "COMPLETED":
            return self._close(case, REPAIRED if case.action == BY_HAND else RETURNED, case.why)
        if job.has_ended:
            return self._fail(
                case, node, f"{case.why}; after {case.action} its check failed (job {job_id}: {job.state})"
            )
        if self._now_s() - case.since_s > self._settings.check_timeout_s:
            return self._fail(case, node, f"{case.why}; its check did not end (job {job_id}: {job.state})")
        return Outcome(node=node.name, what=CHECKING, why=f"job {job_id}: {job.state}")

    def _fail(self, case: Case, node: Node, said: str) -> Outcome:
        """Drains it again before it can be given a job."""
        self._slurm.drain(node.name, reason(said))
        return self._close(case, FAILED, said)

    def _close(self, case: Case, what: str, said: str) -> Outcome:
        self._note(case, what, said, None)
        with contextlib.suppress(SlurmError):  # while its check still ends; `release_strays` does it then
            if case.job is not None:
                self._slurm.cancel(case.job)
            self._slurm.release(RESERVATION + case.node)
        return Outcome(node=case.node, what=what, why=said)

    def _note(self, case: Case, what: str, said: str, left: Case | None) -> None:
        self._history.note(HealEvent(time_s=round(self._now_s(), 3), node=case.node, what=what, why=said), left)
