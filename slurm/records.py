"""Jobs, nodes and partitions, parsed from `scontrol show ... --oneliner`.

Slurm adds fields with every release and leaves out those that do not apply. Only the few fields used here are parsed.

Some fields have text that a person wrote (JobName, Comment, SubmitLine, Features, a node's Reason). Slurm quotes
nothing, so such text may look like other fields. Therefore only the part of a record between the first and the last
field that Slurm itself writes is parsed. If one of these fields is there twice, or out of Slurm's order, the record is
refused.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from slurm.errors import SlurmError
from slurm.hostlist import expand

T = TypeVar("T")

_FIELD = re.compile(r"(?:^|(?<=\s))([A-Za-z][A-Za-z0-9_:/]*)=")
# A node's reason ends with who gave it and when; what people may write follows it.
_AFTER_REASON = r"\s+(?:Comment|Extra|Instance\w+|ReservationName|TLS\w+|Topology|Parameters)="
_REASON = re.compile(rf"\sReason=(.*?\s\[[^\s@\]]+@[^\]]*\]|.*?)(?=\s*\Z|{_AFTER_REASON})", re.DOTALL)
_DURATION = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d\d?):(\d\d)")
# What Slurm says in place of RUNNING for a moment: each of its flags hides the state below it. A job that is preempted
# gets a SIGCONT before its SIGTERM, and is SIGNALING until every node has answered to that.
_STILL_RUNNING = frozenset(("RESIZING", "SIGNALING", "STOPPED"))
# Flags of a node that can begin a job now: how it was added to the cluster, and that a pending job is to get it later.
_STILL_AVAILABLE = frozenset(("CLOUD", "DYNAMIC_FUTURE", "DYNAMIC_NORM", "PLANNED"))
_CANNOT_WRITE = "0:53"  # slurmstepd's code for it, in the place of a signal
# NonZeroExitCode where a shell outlived what it ran. Of a script that a signal ended, releases since 23.02 say
# RaisedSignal:9(Killed).
_SCRIPT_LOST = ("JobLaunchFailure", "NonZeroExitCode", "RaisedSignal")
_TRES = re.compile(r"\s(?:Alloc)?TRES=(\S*)")
_ASKED = re.compile(r"\s(?:Req)?TRES=(\S*)")  # ReqTRES since 23.11
_RESOURCE = re.compile(r"(?:^|,)(cpu|mem|node)=([0-9]+(?:\.[0-9]+)?)([KMGTP]?)")
_UNIT = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_ENDED = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT")
)

_QUEUE_COLUMNS = ("JobArrayID", "UserID", "State", "Reason", "NumNodes", "STDOUT", "WorkDir")
_SEPARATOR = "\x1f"
QUEUE_FORMAT = ",".join(f"{column}:{_SEPARATOR}" for column in _QUEUE_COLUMNS)  # squeue's --Format for a QueuedJob
DRAINED_FORMAT = "%N|%u|%E"  # sinfo's --format for a DrainedNode; the reason may have the separator


class RecordError(SlurmError):
    """Slurm printed something that cannot be parsed as a record.

    Attributes:
        text: the line.
    """

    def __init__(self, text: str, problem: str) -> None:
        self.text = text
        super().__init__(
            f"scontrol printed {text[:120]!r}: {problem}; is this Slurm older than 22.05 or newer than 26.05?"
        )


def read_all(text: str, first: str, parse: Callable[[str], T]) -> tuple[tuple[T, ...], tuple[SlurmError, ...]]:
    """Parses a listing. Records that cannot be parsed are left out.

    Args:
        text: output of, for example, `scontrol show node --oneliner`.
        first: the field with which each record begins. When several records have one name, all of them are refused,
            because a person's text with line breaks may imitate a record.
        parse: parses one record.

    Returns:
        The records, and an error for each of the others.

    Raises:
        SlurmError: none of the records can be parsed.
    """
    records = [record for record in re.split(rf"^(?={first}=)", text, flags=re.MULTILINE) if record.strip()]
    names = [record.split(maxsplit=1)[0] for record in records]
    times = Counter(names)
    read: list[T] = []
    errors: list[SlurmError] = []
    for name, record in zip(names, records, strict=True):
        try:
            if times[name] > 1:
                raise RecordError(record, f"{name} stands there {times[name]} times")
            read.append(parse(record))
        except SlurmError as error:
            errors.append(error)
    if errors and not read:
        raise errors[0]
    return tuple(read), tuple(errors)


def state_below(word: str) -> str:
    """A job's state as Slurm prints it; RUNNING if Slurm prints a short-lived flag, such as SIGNALING, in its place."""
    return "RUNNING" if word in _STILL_RUNNING else word


@dataclass(frozen=True, kw_only=True)
class NamedJob:
    """A job as squeue lists it.

    Attributes:
        name: its name, which its user has chosen.
        state: as of a Job.
        reason: why it is pending or has ended; "" for none.
        is_preempted: whether Slurm has begun to end it for a more urgent one. It may run on for its GraceTime.
        time_left_s: seconds until its time limit; None without a limit.
        nodes: the nodes that it has or had.
    """

    state: str
    name: str = ""
    reason: str = ""
    is_preempted: bool = False
    time_left_s: float | None = None
    nodes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, state: str, preempt_time: str, time_left: str, nodes: str, reason: str, name: str) -> NamedJob:
        """Reads the columns State, PreemptTime, TimeLeft, NodeList, Reason and Name."""
        return cls(
            name=name,
            state=state_below(state),
            reason="" if reason == "None" else reason,
            is_preempted=preempt_time[:1].isdecimal(),
            time_left_s=_seconds(time_left),
            nodes=expand(nodes),
        )


@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """A job of any user as squeue lists it. Users choose the paths.

    Attributes:
        id: its number; of a task of an array "42_3".
        user: its user's numeric id.
        state: as of a Job.
        reason: why it is pending or has ended; "" for none.
        nodes: number of nodes that it has or asks for.
        stdout: the file of its output.
        directory: its working directory.
    """

    id: str
    user: int
    state: str
    reason: str
    nodes: int
    stdout: str
    directory: str

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended. A job that is requeued has not."""
        return self.state in _ENDED

    @classmethod
    def parse(cls, row: str) -> QueuedJob | None:
        """Reads a row with the columns of QUEUE_FORMAT; None if it is not one."""
        fields = [field.strip() for field in row.split(_SEPARATOR)]
        if len(fields) != len(_QUEUE_COLUMNS) + 1 or not (fields[1].isdecimal() and fields[4].isdecimal()):
            return None
        job_id, user, state, reason, nodes, stdout, directory, _ = fields
        return cls(
            id=job_id, user=int(user), state=state_below(state), reason="" if reason == "None" else reason,
            nodes=int(nodes), stdout=stdout, directory=directory,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job.

    Attributes:
        id: its number.
        user: name of its user.
        state: Slurm's word, for example PENDING, RUNNING, COMPLETING, COMPLETED, NODE_FAIL; see `state_below`.
        reason: why it is pending or why it ended; "" for none.
        partition: its partition; several, separated by commas, while it is pending.
        nodes: names of the nodes that are left in its allocation.
        excluded: nodes that it must not get (sbatch --exclude, and `Slurm.exclude`).
        time_left_s: seconds until its time limit; None without a limit.
        batch_host: the node of its batch script; None before it starts.
        restarts: number of requeues.
        exit_code: exit code of its script.
        cannot_write: whether it ended because Slurm could not open the files of its output.
        memory_per_node_bytes: allocated memory of a node, on average; None if Slurm does not count it.
        cpus_per_node: allocated processors of a node, on average, rounded up; None if Slurm does not count them.
        qos: its QOS; "" without one.
        account: the account that it is charged to; "" without one.
        asked: the resources that it asks for, for example "cpu=4,mem=250G,node=4,gres/gpu=8".
    """

    id: int
    user: str
    state: str
    reason: str
    partition: str
    nodes: tuple[str, ...]
    batch_host: str | None
    restarts: int
    exit_code: int
    cannot_write: bool = False
    excluded: tuple[str, ...] = ()
    time_left_s: float | None = None
    memory_per_node_bytes: int | None = None
    cpus_per_node: int | None = None
    qos: str = ""
    account: str = ""
    asked: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended. A job that is requeued has not."""
        return self.state in _ENDED

    @property
    def has_lost_its_script(self) -> bool:
        """Whether Slurm ends the job because its batch script was killed.

        Slurm itself kills the script on a batch host that was DOWN and is back. The steps get a SIGTERM and, KillWait
        later, a SIGKILL. The job can be requeued meanwhile and afterwards (on 22.05).
        """
        return self.state in ("COMPLETING", "FAILED") and self.reason.partition(":")[0] in _SCRIPT_LOST

    @classmethod
    def parse(cls, line: str) -> Job:
        """Parses the output of `scontrol show job --oneliner JOBID`: one line, unless the job's name has several."""
        fields = _Fields(line, "JobId", _OF_JOB)
        share = _share_of_a_node(fields.rest)
        return cls(
            id=fields.number("JobId"),
            user=fields.text("UserId").split("(")[0],
            state=state_below(fields.text("JobState")),
            reason=fields.optional("Reason"),
            partition=fields.text("Partition"),
            nodes=expand(fields.optional("NodeList")),
            batch_host=fields.optional("BatchHost") or None,
            restarts=fields.number("Restarts", 0),
            exit_code=int(fields.optional("ExitCode").split(":")[0] or 0),
            cannot_write=fields.optional("ExitCode") == _CANNOT_WRITE,
            excluded=expand(fields.optional("ExcNodeList")),
            time_left_s=_difference_s(fields.optional("TimeLimit"), fields.optional("RunTime")),
            memory_per_node_bytes=share.get("mem"),
            cpus_per_node=share.get("cpu"),
            qos=fields.optional("QOS"),
            account=fields.optional("Account"),
            asked=asked[1] if (asked := _ASKED.search(fields.rest)) else "",
        )


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node.

    Attributes:
        name: its name.
        address: its network address or host name.
        state: its base state, for example IDLE, MIXED, ALLOCATED, DOWN.
        flags: further states, for example DRAIN, NOT_RESPONDING, MAINTENANCE.
        reason: why it is down or drained, with user and time; "" for none.
        partitions: the partitions it is in.
        cpus: number of its CPUs.
        port: the port of its slurmd; None for the cluster's SlurmdPort.
        slurmd_started: when its slurmd last started, as Slurm prints it; "" where it never registered.
    """

    name: str
    address: str
    state: str
    flags: frozenset[str]
    reason: str
    partitions: tuple[str, ...]
    cpus: int
    port: int | None = None
    slurmd_started: str = ""

    @property
    def is_idle(self) -> bool:
        """Whether it responds, runs no job, and is available for one."""
        return self.state == "IDLE" and self.flags <= _STILL_AVAILABLE

    @property
    def responds(self) -> bool:
        """Whether its slurmd answers, according to the controller."""
        return not self.is_down and self.state != "UNKNOWN" and "NOT_RESPONDING" not in self.flags

    @property
    def is_down(self) -> bool:
        """Whether Slurm has set it DOWN, or does not run it yet. UNKNOWN is none of these: a controller that has just
        started calls each node so until its slurmd registers, and jobs run on there."""
        return self.state in ("DOWN", "FUTURE")

    @classmethod
    def parse(cls, line: str) -> Node:
        """Read one line of `scontrol show node --oneliner`."""
        fields = _Fields(line, "NodeName", _OF_NODE)
        state, *flags = fields.text("State").split("+")
        if state.endswith("*"):  # the short form of NOT_RESPONDING
            state, flags = state[:-1], [*flags, "NOT_RESPONDING"]
        return cls(
            name=fields.text("NodeName"),
            address=fields.optional("NodeAddr"),
            state=state,
            flags=frozenset(flag.rstrip("*") for flag in flags),
            reason=reason[1].strip() if (reason := _REASON.search(fields.rest)) else "",
            partitions=tuple(fields.optional("Partitions").split(",")) if fields.optional("Partitions") else (),
            cpus=fields.number("CPUTot"),
            port=fields.number("Port", 0) or None,
            slurmd_started=fields.optional("SlurmdStartTime"),
        )


@dataclass(frozen=True, kw_only=True)
class DrainedNode:
    """A node that gets no new job, because it is drained or set to FAIL.

    Attributes:
        user: who has done that.
        reason: why; "" if none was given.
    """

    name: str
    user: str
    reason: str

    @classmethod
    def parse(cls, row: str) -> DrainedNode | None:
        """Reads a row of sinfo with the columns of DRAINED_FORMAT; None if it is not one."""
        fields = row.rstrip().split("|", 2)
        if len(fields) != 3 or not fields[0]:
            return None
        name, user, reason = fields
        return cls(name=name, user=user, reason="" if reason == "none" else reason)


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A partition.

    Attributes:
        name: its name.
        state: UP, DOWN, DRAIN or INACTIVE.
        is_default: whether it is the default partition.
        nodes: names of its nodes.
        priority_tier: jobs of a higher tier are scheduled first, and may preempt those of a lower tier.
        preempt_mode: how its jobs are preempted: OFF, REQUEUE, CANCEL, or others, separated by commas.
        grace_time_s: seconds from the SIGTERM to the end of a preempted job.
        max_time_s: largest time limit of a job, seconds; None without a limit.
        qos: the QOS whose limits its jobs have beside those of their own; "" for none.
    """

    name: str
    state: str
    is_default: bool
    nodes: tuple[str, ...]
    priority_tier: int = 1
    preempt_mode: str = "OFF"
    grace_time_s: int = 0
    max_time_s: float | None = None
    qos: str = ""

    @classmethod
    def parse(cls, line: str) -> Partition:
        """Read one line of `scontrol show partition --oneliner`."""
        fields = _Fields(line, "PartitionName", _OF_PARTITION)
        return cls(
            name=fields.text("PartitionName"),
            state=fields.text("State"),
            is_default=fields.optional("Default") == "YES",
            nodes=expand(fields.optional("Nodes")),
            priority_tier=fields.number("PriorityTier", 1),
            preempt_mode=fields.optional("PreemptMode") or "OFF",
            grace_time_s=fields.number("GraceTime", 0),
            max_time_s=_seconds(fields.optional("MaxTime")),
            qos=fields.optional("QoS").replace("N/A", ""),
        )


# The fields that Slurm itself writes, as far as they are read here, in its order; the last is always there.
_OF_JOB = (
    *(
        "UserId",
        "Account",
        "QOS",
        "JobState",
        "Reason",
        "Restarts",
        "ExitCode",
        "RunTime",
        "TimeLimit",
        "Partition",
        "ExcNodeList",
    ),
    *("NodeList", "BatchHost", "NumNodes"),
)
_OF_NODE = ("CPUTot", "NodeAddr", "Port", "State", "Partitions", "SlurmdStartTime")
_OF_PARTITION = ("Default", "QoS", "GraceTime", "MaxTime", "Nodes", "PriorityTier", "PreemptMode", "State")


class _Fields:
    """The KEY=VALUE fields of a record. A value may hold spaces: it ends where the next key begins.

    Attributes:
        rest: the text after the last key of `keys`.
    """

    def __init__(self, line: str, first: str, keys: Sequence[str]) -> None:
        """
        Args:
            line: the record.
            first: the field with which it begins.
            keys: further fields to parse. Slurm itself writes them, in this order, and always the last one.

        Raises:
            RecordError: this is no such record, or a person's text in it looks like one of these fields.
        """
        self._line = line.strip()
        found = list(_FIELD.finditer(self._line))
        names = [key[1] for key in found]
        if names[:1] != [first] or found[0].start() or keys[0] not in names or keys[-1] not in names:
            raise RecordError(self._line, f"expected {first}= at its start, then {keys[0]}= and {keys[-1]}=")
        last = len(names) - 1 - names[::-1].index(keys[-1])
        own = [index for index in range(names.index(keys[0]), last + 1) if names[index] in keys]
        order = [keys.index(names[index]) for index in own]
        if order != sorted(set(order)):
            seen = " ".join(f"{names[index]}=" for index in own)
            raise RecordError(self._line, f"{seen} expected each once and in Slurm's order; a text looks like them")
        ends = [*(key.start() for key in found[1:]), len(self._line)]
        self._values = {names[index]: self._line[found[index].end() : ends[index]].strip() for index in (0, *own)}
        self.rest = self._line[found[last].end() :]

    def text(self, key: str) -> str:
        value = self.optional(key)
        if not value:
            raise RecordError(self._line, f"no {key}=")
        return value

    def optional(self, key: str) -> str:
        value = self._values.get(key, "")
        return "" if value in ("(null)", "None", "N/A") else value

    def number(self, key: str, default: int | None = None) -> int:
        value = self.optional(key)
        if not value and default is not None:
            return default
        if not re.fullmatch(r"[0-9]{1,18}", value):
            raise RecordError(self._line, f"{key}={value}, expected a number")
        return int(value)


def _share_of_a_node(rest: str) -> dict[str, int]:
    """A job's allocated resources of one node, by name, memory in bytes.

    They are parsed from the text between NumNodes and TRES= (AllocTRES= since 23.11), where Slurm prints no person's
    text.
    """
    found = _TRES.search(rest)
    if found is None:
        return {}
    whole: dict[str, float] = {}
    for name, count, unit in _RESOURCE.findall(found[1]):
        whole[name] = float(count) * _UNIT[unit or ("M" if name == "mem" else "")]
    nodes = whole.get("node") or 1.0
    return {name: math.ceil(amount / nodes) for name, amount in whole.items() if amount}


def _difference_s(limit: str, spent: str) -> float | None:
    """The difference of two durations; None if one of them is not a duration ("UNLIMITED")."""
    limit_s, spent_s = _seconds(limit), _seconds(spent)
    return None if limit_s is None or spent_s is None else limit_s - spent_s


def _seconds(duration: str) -> float | None:
    """Slurm's [[days-]hours:]minutes:seconds."""
    found = _DURATION.fullmatch(duration)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24.0 + hours) * 60 + minutes) * 60 + seconds
