"""A cluster in memory, as far as healing asks one: for deaths of the healer at every point; for real they take hours.

What it does is what test_heal_slurm.py sees a real one do: a reboot ends with the node resumed, a node that is drained
or down runs no job, a job in a reservation needs all of its nodes in it, and a reservation with a job cannot go.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from slurm.client import Slurm
from slurm.errors import SlurmError
from slurm.hooks.drains import OUT
from slurm.records import Job, Node, Partition
from slurm.topology import Topology

NODES = ("n1", "n2", "n3", "n4")


class Killed(BaseException):
    """The healer died here."""


@dataclass
class Fuse:
    """Counts what changes something, and kills its process at one of these: before it happened, or after.

    Attributes:
        dies_at: the number of the change, from 0; None: never.
        after: whether that change still happens.
    """

    dies_at: int | None = None
    after: bool = False
    changes: int = 0

    def around(self, change: Callable[[], None]) -> None:
        number, self.changes = self.changes, self.changes + 1
        if number == self.dies_at and not self.after:
            raise Killed
        change()
        if number == self.dies_at:
            raise Killed


class SlurmInMemory(Slurm):
    """Four nodes, the first drained by our hook.

    Attributes:
        exit_code: of each job, by its script; None: it runs on.
        looks: how often a node is seen as it was, between an order and its new start.
        exposed: at each moment in which users' jobs could have begun on n1: how many jobs had run there, and how often
            it had started anew.
        orders: reboots and replacements asked for.
        told: the options of each job.
    """

    def __init__(self, fuse: Fuse, exit_code: Callable[[str], int | None], looks: int) -> None:
        self.fuse = fuse
        self.exit_code = exit_code
        self.looks = looks
        self.orders: list[str] = []
        self.told: list[Sequence[str]] = []
        self.exposed: list[tuple[int, int]] = []
        self._reserved: dict[str, set[str]] = {}
        self._jobs: dict[int, tuple[str, Job]] = {}
        self._starts = 0
        self._starting: dict[str, int] = {}
        self._nodes = {
            name: Node(
                name=name,
                address=name,
                state="IDLE",
                flags=frozenset(),
                reason="",
                partitions=("train",),
                cpus=8,
                port=6818,
                slurmd_started="0",
            )
            for name in NODES
        }
        self._set("n1", flags={"DRAIN"}, reason="holdfast: gpu lost")

    def nodes(self) -> tuple[Node, ...]:
        for name, looks in list(self._starting.items()):
            if looks:
                self._starting[name] = looks - 1
            else:
                del self._starting[name]
                self._starts_anew(name)
        reserved = set().union(*self._reserved.values())
        return tuple(
            dataclasses.replace(node, flags=node.flags | ({"MAINTENANCE"} if node.name in reserved else set()))
            for node in self._nodes.values()
        )

    def replace(self, name: str) -> None:
        """What the admin's command does: the new machine is drained as the old one was."""
        self._order("replace", name, lambda: None)

    def fail(self, node: str, reason: str) -> None:
        self._order("fail", node, lambda: self._set(node, flags={"FAIL"}, reason=reason))

    def reboot(self, node: str, reason: str) -> None:
        self._order("reboot", node, lambda: self._set(node, flags={"DRAIN"}, reason=reason))

    def drain(self, node: str, reason: str) -> None:
        self._change(lambda: self._set(node, flags={"DRAIN"}, reason=reason))

    def resume(self, node: str) -> None:
        self._change(lambda: (self._set(node, flags=set(), reason=""), self.change(node, state="IDLE")))

    def reserve(self, name: str, nodes: Iterable[str]) -> None:
        self._change(lambda: self._reserved.update({name: set(nodes)}))

    def release(self, name: str) -> None:
        if any(where == name and not job.has_ended for where, job in self._jobs.values()):
            raise SlurmError("slurm_delete_reservation: Requested reservation is in use")
        self._change(lambda: self._reserved.pop(name, None))

    def reservations(self) -> tuple[str, ...]:
        return tuple(self._reserved)

    def submit(self, options: Sequence[str], script: str) -> int:
        told = dict(option.removeprefix("--").partition("=")[::2] for option in options)
        nodes = told["nodelist"].split(",")
        if not set(nodes) <= self._reserved.get(told["reservation"], set()):
            raise SlurmError("sbatch: error: Requested reservation is invalid")
        if told["partition"] != "train" or not all(map(self._can_run, nodes)):
            raise SlurmError("sbatch: error: Requested nodes are not available")
        self.told.append(options)
        number = len(self.told)
        code = self.exit_code(script)
        job = Job(
            id=number,
            user="root",
            state="RUNNING" if code is None else "FAILED" if code else "COMPLETED",
            reason="",
            partition="train",
            nodes=tuple(nodes),
            batch_host=nodes[0],
            restarts=0,
            exit_code=code or 0,
        )
        self._change(lambda: self._jobs.update({number: (told["reservation"], job)}))
        return number

    def job(self, job_id: int | str) -> Job | None:
        found = self._jobs.get(int(job_id))
        return None if found is None else found[1]

    def cancel_in(self, reservation: str) -> None:
        self._change(lambda: self._cancel_in(reservation))

    def forget_jobs(self) -> None:
        """As after MinJobAge."""
        self._jobs.clear()

    def change(self, name: str, **facts: Any) -> None:
        """Makes a node another one."""
        self._nodes[name] = dataclasses.replace(self._nodes[name], **facts)

    def partitions(self) -> tuple[Partition, ...]:
        """The default one has only the login node, as on many sites."""
        wide = Partition(name="train", state="UP", is_default=False, nodes=NODES)
        return Partition(name="login", state="UP", is_default=True, nodes=("login1",)), wide

    def topology(self) -> Topology:
        return Topology()

    def _can_run(self, name: str) -> bool:
        return not self._nodes[name].flags & OUT and self._nodes[name].state != "DOWN"

    def _cancel_in(self, reservation: str) -> None:
        for number, (where, job) in self._jobs.items():
            if where == reservation and not job.has_ended:
                self._jobs[number] = where, dataclasses.replace(job, state="CANCELLED")

    def _order(self, what: str, name: str, change: Callable[[], object]) -> None:
        self._change(lambda: (self.orders.append(what), self._starting.update({name: self.looks}), change()))

    def _starts_anew(self, name: str) -> None:
        self._starts += 1
        if self.orders[-1] == "reboot":  # Slurm resumes it: nextstate=RESUME
            self._set(name, flags=set(), reason="")
        self._nodes[name] = dataclasses.replace(self._nodes[name], slurmd_started=str(self._starts))

    def _set(self, name: str, flags: set[str], reason: str) -> None:
        said = f"{reason} [root@2026-11-20T23:19:59]" if reason else ""
        self._nodes[name] = dataclasses.replace(self._nodes[name], flags=frozenset(flags), reason=said)

    def _change(self, change: Callable[[], object]) -> None:
        self.fuse.around(lambda: (change(), self._look())[0])  # type: ignore[func-returns-value]

    def _look(self) -> None:
        open_ = not self._nodes["n1"].flags & OUT and not any("n1" in nodes for nodes in self._reserved.values())
        if open_:
            self.exposed.append((len(self._jobs), self._starts))
