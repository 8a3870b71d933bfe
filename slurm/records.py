"""What Slurm knows about a job, a node, a partition: read from `scontrol show ... --oneliner`.

Slurm adds fields with every release and leaves out those that do not apply; only the few used here are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from slurm.errors import SlurmError
from slurm.hostlist import expand

_FIELD = re.compile(r"(?:^|(?<=\s))([A-Za-z][A-Za-z0-9_:/]*)=")
_DURATION = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)")
# What Slurm says in place of RUNNING for a moment: each of its flags hides the state below it. A job that is preempted
# gets a SIGCONT before its SIGTERM, and is SIGNALING until every node has answered to that.
_STILL_RUNNING = frozenset(("RESIZING", "SIGNALING", "STOPPED"))
_SCRIPT_LOST = ("JobLaunchFailure", "NonZeroExitCode")  # the latter where a shell outlived what it ran
_ENDED = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT")
)


class RecordError(SlurmError):
    """Slurm printed something that cannot be read as a record.

    Attributes:
        text: the line.
    """

    def __init__(self, text: str, problem: str) -> None:
        self.text = text
        super().__init__(
            f"scontrol printed {text[:120]!r}: {problem}; is this Slurm older than 22.05 or newer than 25.11?"
        )


def state_below(word: str) -> str:
    """A job's state as Slurm prints it; RUNNING where that hides it behind something that passes."""
    return "RUNNING" if word in _STILL_RUNNING else word


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job.

    Attributes:
        id: its number.
        user: name of its user.
        state: Slurm's word, for example PENDING, RUNNING, COMPLETING, COMPLETED, NODE_FAIL; see `state_below`.
        reason: why it is pending or why it ended; "" for none.
        partition: the partition it is in; several, separated by commas, while it is pending in them.
        nodes: names of its nodes, those cut out of its allocation left out.
        excluded: nodes that it is not to be given (sbatch --exclude, and `Slurm.exclude`).
        time_left_s: seconds of its time limit that are left; None without a limit.
        batch_host: the node on which its script runs, None before it starts.
        restarts: how often it was requeued.
        exit_code: exit code of its script.
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
    excluded: tuple[str, ...] = ()
    time_left_s: float | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it is over; a job that is requeued is not."""
        return self.state in _ENDED

    @property
    def has_lost_its_script(self) -> bool:
        """Whether Slurm ends it because its batch script was killed: by somebody, or by Slurm itself on a batch host
        that was DOWN and is back, as that is not the job's any more. Its steps get a SIGTERM, and KillWait later a
        SIGKILL; until they are gone, and after, it can be requeued (on 22.05).
        """
        return self.state in ("COMPLETING", "FAILED") and self.reason in _SCRIPT_LOST

    @classmethod
    def parse(cls, line: str) -> Job:
        """Read all of `scontrol show job --oneliner JOBID`; one line, unless the job's name has several."""
        fields = _Fields(line)
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
            excluded=expand(fields.optional("ExcNodeList")),
            time_left_s=_difference_s(fields.optional("TimeLimit"), fields.optional("RunTime")),
        )


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node.

    Attributes:
        name: its name.
        address: how it is reached.
        state: its base state, for example IDLE, MIXED, ALLOCATED, DOWN.
        flags: what is said about it beside, for example DRAIN, NOT_RESPONDING, MAINTENANCE.
        reason: why it is down or drained, with who said so and when; "" for none.
        partitions: the partitions it is in.
        cpus: number of its CPUs.
        port: where its slurmd listens; None for the cluster's own SlurmdPort.
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
        """Whether it responds, runs nothing, and would be given a job."""
        return self.state == "IDLE" and not self.flags

    @property
    def responds(self) -> bool:
        """Whether its slurmd answers, as far as the controller knows."""
        return self.state not in ("DOWN", "UNKNOWN", "FUTURE") and "NOT_RESPONDING" not in self.flags

    @classmethod
    def parse(cls, line: str) -> Node:
        """Read one line of `scontrol show node --oneliner`."""
        fields = _Fields(line)
        state, *flags = fields.text("State").split("+")
        if state.endswith("*"):  # the short form of NOT_RESPONDING
            state, flags = state[:-1], [*flags, "NOT_RESPONDING"]
        return cls(
            name=fields.text("NodeName"),
            address=fields.optional("NodeAddr"),
            state=state,
            flags=frozenset(flag.rstrip("*") for flag in flags),
            reason=fields.optional("Reason"),
            partitions=tuple(fields.optional("Partitions").split(",")) if fields.optional("Partitions") else (),
            cpus=fields.number("CPUTot"),
            port=fields.number("Port", 0) or None,
            slurmd_started=fields.optional("SlurmdStartTime"),
        )


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A partition.

    Attributes:
        name: its name.
        state: UP, DOWN, DRAIN or INACTIVE.
        is_default: whether jobs that name none go there.
        nodes: names of its nodes.
    """

    name: str
    state: str
    is_default: bool
    nodes: tuple[str, ...]

    @classmethod
    def parse(cls, line: str) -> Partition:
        """Read one line of `scontrol show partition --oneliner`."""
        fields = _Fields(line)
        return cls(
            name=fields.text("PartitionName"),
            state=fields.text("State"),
            is_default=fields.optional("Default") == "YES",
            nodes=expand(fields.optional("Nodes")),
        )


class _Fields:
    """The KEY=VALUE fields of a line. Values may hold spaces, so a value ends where the next key begins.

    A job's name or comment is whatever its user wrote, perhaps `x JobState=COMPLETED`: a field that we read must
    stand there exactly once.
    """

    def __init__(self, line: str) -> None:
        self._line = line.strip()
        self._values: dict[str, list[str]] = {}
        for key, value in _pairs(self._line):
            self._values.setdefault(key, []).append(value)

    def text(self, key: str) -> str:
        value = self.optional(key)
        if not value:
            raise RecordError(self._line, f"no {key}=")
        return value

    def optional(self, key: str) -> str:
        values = self._values.get(key, [""])
        if len(values) > 1:
            raise RecordError(self._line, f"{key}= stands there {len(values)} times, once in a name or comment")
        return "" if values[0] in ("(null)", "None", "N/A") else values[0]

    def number(self, key: str, default: int | None = None) -> int:
        value = self.optional(key)
        if not value and default is not None:
            return default
        if not re.fullmatch(r"[0-9]{1,18}", value):
            raise RecordError(self._line, f"{key}={value}, expected a number")
        return int(value)


def _difference_s(limit: str, spent: str) -> float | None:
    """Of two durations; None if either is none ("UNLIMITED", say). Unlike times of day they depend on no clock here."""
    limit_s, spent_s = _seconds(limit), _seconds(spent)
    return None if limit_s is None or spent_s is None else limit_s - spent_s


def _seconds(duration: str) -> float | None:
    """Slurm's [days-]hours:minutes:seconds."""
    found = _DURATION.fullmatch(duration)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24.0 + hours) * 60 + minutes) * 60 + seconds


def _pairs(line: str) -> Iterator[tuple[str, str]]:
    keys = list(_FIELD.finditer(line))
    ends = [*(key.start() for key in keys[1:]), len(line)]
    for key, end in zip(keys, ends, strict=False):  # no key: one end too many
        yield key[1], line[key.end() : end].strip()
