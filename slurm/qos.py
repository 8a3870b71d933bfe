"""A quality of service (QOS), as `sacctmgr show qos` prints it."""

from __future__ import annotations

from dataclasses import dataclass

from slurm.errors import SlurmError

QOS_COLUMNS = "format=Name,Priority,Preempt,PreemptMode"


@dataclass(frozen=True, kw_only=True)
class Qos:
    """A QOS.

    Attributes:
        name: its name.
        priority: the value that it adds to a job's priority.
        preempts: the QOS whose jobs its jobs preempt, with PreemptType=preempt/qos.
        preempt_mode: how its jobs are preempted, for example REQUEUE; CLUSTER for the cluster's PreemptMode.
    """

    name: str
    priority: int
    preempts: tuple[str, ...]
    preempt_mode: str

    @classmethod
    def parse(cls, line: str) -> Qos:
        """Read one line of `sacctmgr --parsable2 --noheader show qos`, asked in this module's format."""
        name, *rest = line.split("|")
        if len(rest) != 3 or not name or not (rest[0] or "0").isdecimal():
            raise SlurmError(f"sacctmgr printed {line[:120]!r}, expected Name|Priority|Preempt|PreemptMode")
        priority, preempts, mode = rest
        return cls(
            name=name,
            priority=int(priority or 0),
            preempts=tuple(each for each in preempts.split(",") if each),
            preempt_mode=mode.upper() or "CLUSTER",
        )
