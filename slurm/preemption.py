"""Which jobs Slurm preempts.

With `PreemptType=preempt/partition_prio` these are jobs in a partition of a lower PriorityTier. With `preempt/qos` they
are jobs of a QOS that is in another QOS's Preempt list.

An elastic job's boosters have to be preemptible, and must not preempt the job itself.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slurm.client import Slurm
from slurm.errors import SlurmError
from slurm.qos import Qos
from slurm.records import Partition

MODES = ("REQUEUE", "CANCEL")  # a job that is suspended keeps its memory and looks as if it hung
BY_PARTITION = "preempt/partition_prio"
BY_QOS = "preempt/qos"
_NO_TIME = ("", "NONE", "(null)", "00:00:00", "-1")
_ADVICE = "`holdfast node slurm-conf --elastic` prints what an administrator sets"


def ends_jobs(mode: str) -> bool:
    """Whether a PreemptMode ends preempted jobs. It may have several words: GANG,REQUEUE."""
    return any(word in MODES for word in mode.upper().split(","))


@dataclass(frozen=True, kw_only=True)
class Boosters:
    """Partition, QOS and time limit of a job's boosters, and partition and QOS of the job itself.

    Attributes:
        partition, qos: those of the boosters; None if not named.
        time_min: their time limit in minutes; None if not named, or without a limit.
        has_time: whether the job file names their time limit.
        base_partitions: the job's own; Slurm chooses one of them.
        base_qos: the job's own; None if not named.
    """

    partition: str | None
    qos: str | None
    base_partitions: tuple[str, ...]
    base_qos: str | None
    time_min: int | None = None
    has_time: bool = False


@dataclass(frozen=True, kw_only=True)
class Preemption:
    """How a cluster preempts.

    Attributes:
        type: PreemptType; "" if Slurm does not report it.
        mode: PreemptMode of the cluster. A QOS without a mode of its own uses it.
        partitions: all partitions.
        qos: all QOS; None if the cluster has no accounting or it does not answer.
        exempt_time: PreemptExemptTime, for which a job is not preempted; "" for none.
        requires_time: whether every job needs a time limit (JobSubmitPlugins=require_timelimit).
    """

    type: str
    mode: str
    partitions: tuple[Partition, ...]
    qos: tuple[Qos, ...] | None = None
    exempt_time: str = ""
    requires_time: bool = False

    @classmethod
    def read(cls, slurm: Slurm) -> Preemption:
        """Asks Slurm.

        Raises:
            SlurmError: the controller does not answer.
        """
        config = slurm.config()
        qos = None
        if config.get("AccountingStorageType", "").endswith("slurmdbd"):
            try:
                qos = slurm.qos()
            except SlurmError:  # sites without a reachable database, or one that shows users nothing
                qos = None
        return cls(
            type=config.get("PreemptType", ""),
            mode=config.get("PreemptMode", "").upper(),
            partitions=slurm.partitions(),
            qos=qos,
            exempt_time=exempt if (exempt := config.get("PreemptExemptTime", "")) not in _NO_TIME else "",
            requires_time="require_timelimit" in config.get("JobSubmitPlugins", ""),
        )

    def preemptors(self, partition: Partition) -> tuple[Partition, ...]:
        """The partitions whose jobs preempt those of this one: a higher PriorityTier, and nodes in common."""
        own = {*partition.nodes}
        return tuple(p for p in self.partitions if p.priority_tier > partition.priority_tier and own & {*p.nodes})

    def preemptible(self) -> tuple[str, ...]:
        """The partitions, or QOS, in which boosters may be."""
        if self.type == BY_QOS:
            return _preempted(self.qos or ())
        if self.type != BY_PARTITION:
            return ()
        return tuple(p.name for p in self.partitions if ends_jobs(p.preempt_mode) and self.preemptors(p))

    def problems(self, boosters: Boosters) -> Iterator[tuple[str, str]]:
        """Why boosters cannot use this partition or QOS; the keys are "partition" and "qos"."""
        known = {p.name: p for p in self.partitions}
        base = [known[name] for name in boosters.base_partitions if name in known]
        named = (boosters.partition or "").split(",") if boosters.partition else []
        unknown = [name for name in named if name not in known]
        for name in unknown:
            yield "partition", f"got {name!r}, and Slurm has no such partition; {_near(name, known)}"
        if boosters.qos and self.qos is not None and boosters.qos not in (names := {each.name for each in self.qos}):
            yield "qos", f"got {boosters.qos!r}, and Slurm has no such QOS; {_near(boosters.qos, names)}"
        elif self.type == BY_QOS:
            yield from self._problems_of_qos(boosters)
        elif self.type == BY_PARTITION and not unknown:
            for partition in [known[name] for name in named] or base:
                yield from self._problems_of_partition(partition, base)
        elif self.type and self.type not in (BY_QOS, BY_PARTITION):
            yield "partition", f"Slurm preempts no job here (PreemptType={self.type}); {_ADVICE}"
        yield from self._problems_of_time(boosters, [known[name] for name in named if name in known] or base)

    def _problems_of_time(self, boosters: Boosters, partitions: list[Partition]) -> Iterator[tuple[str, str]]:
        """A booster with a limit above that of its partition waits for ever, or is refused."""
        limits_s = [each.max_time_s for each in partitions]
        longest_s = None if None in limits_s else max((each for each in limits_s if each is not None), default=None)
        if self.requires_time and not boosters.has_time:
            yield "time", "missing, and this cluster refuses jobs without a time limit; expected for example 12:00:00"
        elif longest_s is not None and boosters.has_time:
            asked_s = math.inf if boosters.time_min is None else boosters.time_min * 60.0
            if asked_s > longest_s:
                name, asked = partitions[0].name, "no limit" if asked_s == math.inf else f"{boosters.time_min} minutes"
                yield "time", f"got {asked}, expected {longest_s / 60:g} minutes at most, MaxTime of partition {name}"

    def _problems_of_partition(self, partition: Partition, base: list[Partition]) -> Iterator[tuple[str, str]]:
        name, tier = partition.name, partition.priority_tier
        lowest = min(base, key=lambda each: each.priority_tier, default=partition)
        choice = f"expected one of {', '.join(self.preemptible())}" if self.preemptible() else _ADVICE
        if not ends_jobs(partition.preempt_mode):
            yield "partition", f"got {name!r}, whose PreemptMode is {partition.preempt_mode}; {choice}"
        elif tier > lowest.priority_tier:
            yield (
                "partition",
                (
                    f"got {name!r} of PriorityTier {tier}, which outranks the job's own partition, {lowest.name}, of "
                    f"{lowest.priority_tier}; {choice}"
                ),
            )
        elif not self.preemptors(partition):
            yield "partition", f"got {name!r}, and no partition on its nodes is of a higher PriorityTier; {choice}"

    def _problems_of_qos(self, boosters: Boosters) -> Iterator[tuple[str, str]]:
        if self.qos is None:
            return
        known = {each.name: each for each in self.qos}
        preempted = _preempted(self.qos)
        choice = f"expected one of {', '.join(preempted)}" if preempted else _ADVICE
        if boosters.qos is None:
            yield "qos", f"missing, and Slurm preempts by QOS here (PreemptType={BY_QOS}); {choice}"
            return
        own, base = known[boosters.qos], known.get(boosters.base_qos or "")
        mode = self.mode if own.preempt_mode == "CLUSTER" else own.preempt_mode
        if own.name not in preempted:
            yield "qos", f"got {own.name!r}, which no QOS preempts; {choice}"
        elif not ends_jobs(mode):
            yield "qos", f"got {own.name!r}, whose PreemptMode is {mode}; expected REQUEUE or CANCEL"
        elif base and base.name in own.preempts:
            yield "qos", f"got {own.name!r}, which preempts the job's own QOS, {base.name}; {choice}"
        elif base and own.priority > base.priority:
            yield (
                "qos",
                (
                    f"got {own.name!r} of priority {own.priority}, which outranks the job's own QOS, {base.name}, of "
                    f"{base.priority}; {choice}"
                ),
            )


def _preempted(qos: Iterable[Qos]) -> tuple[str, ...]:
    """The QOS whose jobs are preempted for another's."""
    qos = tuple(qos)
    lists = {name for each in qos for name in each.preempts}
    return tuple(each.name for each in qos if each.name in lists)


def _near(name: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
