"""The cause of an attempt's end, from what its failed ranks and their nodes left behind."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.diagnosis.match import rule_for
from launcher.diagnosis.rules import UNKNOWN, Domain, FaultClass, Rule

_WORDS_CHARS = 500
_PROOF_CHARS = 300
_SHELL = 128  # a shell exits with this number and that of the signal that ended its program
_ABORTS = (-signal.SIGABRT, _SHELL + signal.SIGABRT)
# consequences after causes: what ranks say when another one, or the fabric to it, has gone
_AFTER: Mapping[FaultClass, int] = {
    FaultClass.CUDA: 1,
    FaultClass.HANG: 2,
    FaultClass.PEER: 3,
}
_SECONDARY = 3
# what a rank says of these is a symptom: its node, its log and the scheduler may know more
_SYMPTOMS = frozenset({
    FaultClass.PEER, FaultClass.HANG, FaultClass.CUDA, FaultClass.KILLED, FaultClass.CRASH, FaultClass.UNKNOWN,
})  # fmt: skip


# what ends a job from outside, and the programs of Slurm that write why
_OF_SLURM = (
    FaultClass.HOST_MEMORY, FaultClass.TIME_LIMIT, FaultClass.PREEMPTION, FaultClass.NODE_LOST, FaultClass.CANCELLED,
)  # fmt: skip
_SLURMS = re.compile(r"(?:slurmstepd|srun)[\w.-]*: ")


@dataclass(frozen=True, kw_only=True)
class WorkerFailure:
    """A worker with an exit code other than 0 (-N: ended by signal N). The time is in seconds since the epoch.

    `error` and `traceback` are those of an exception; `last_words` are the last lines of its stderr. `log`: the last
    lines of its log that a rule knows, which libraries may have written. `rule`, `action`: the rule of the job file's
    `log_rules` that the end of its log meets, and what follows.
    """

    node: str
    rank: int
    exit_code: int
    time_s: float
    error: str | None = None
    traceback: str | None = None
    last_words: str | None = None
    log: tuple[str, ...] = ()
    rule: str | None = None
    action: str | None = None

    @classmethod
    def from_report(cls, node: str, report: Mapping[str, Any]) -> WorkerFailure:
        """Parses an item of `failures` in a runner's message "ended"."""
        return cls(
            node=node,
            rank=report["rank"],
            exit_code=report["exit_code"],
            time_s=report["time"],
            error=report["error"],
            traceback=report["traceback"],
            last_words=report["last_words"],
            log=tuple(report["log"]),
            rule=report["rule"],
            action=report["action"],
        )

    @property
    def words(self) -> str | None:
        """The script's own message about its end, in one line; None if a signal ended it."""
        if self.error is not None or self.last_words is None or self.exit_code < 0:
            return self.error
        return self.last_words.splitlines()[-1].strip()[:_WORDS_CHARS]

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        if self.exit_code >= 0:
            return f"exited with code {self.exit_code}"
        return f"was ended by {_signal_name(-self.exit_code)}"

    @property
    def lines(self) -> tuple[str, ...]:
        """What it said itself, oldest first."""
        texts = (self.last_words, self.traceback, self.error)
        lines = [line for text in texts if text for line in text.splitlines()]
        number = -self.exit_code if self.exit_code < 0 else self.exit_code - _SHELL
        if number > 0:
            lines.append(f"ended by {_signal_name(number)}")
        return tuple(lines)


@dataclass(frozen=True, kw_only=True)
class NodeEvidence:
    """What a node saw during an attempt.

    Attributes:
        kernel: messages of its kernel about GPUs, memory and disks.
        oom_kills: processes that the kernel killed in the node's cgroup because memory was short.
    """

    kernel: tuple[str, ...] = ()
    oom_kills: int = 0

    @property
    def lines(self) -> tuple[str, ...]:
        kills = (f"the kernel killed {self.oom_kills} of the node's processes, because memory was short",)
        return (*self.kernel, *(kills if self.oom_kills else ()))


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What a fault is.

    Attributes:
        fault_class, domain: what kind of failure, and whose.
        proof: the line that proves it; "" if no line does.
        advice: the next step.
        is_certain: whether another attempt fails in the same way.
        nodes: the nodes whose ranks failed with the same class.
        alike: number of other ranks that failed with the same class.
        others: further causes of the same end, of other classes, in words.
        consequences: number of the remaining failed ranks: what they report follows from this.
    """

    fault_class: FaultClass
    domain: Domain
    advice: str
    proof: str = ""
    is_certain: bool = False
    nodes: frozenset[str] = frozenset()
    alike: int = 0
    others: tuple[str, ...] = ()
    consequences: int = 0


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The cause of an attempt's end.

    Attributes:
        failure: the rank at fault.
        diagnosis: what it is.
        is_secondary: whether all ranks report consequences, so that the cause itself left nothing behind.
    """

    failure: WorkerFailure
    diagnosis: Diagnosis
    is_secondary: bool

    @property
    def is_users(self) -> bool:
        """Whether the script itself ended with an error that is not of the node, the cluster or another rank."""
        is_elsewhere = self.diagnosis.domain in (Domain.NODE, Domain.CLUSTER)
        return self.failure.words is not None and not self.is_secondary and not is_elsewhere


def find_cause(failures: Iterable[WorkerFailure], nodes: Mapping[str, NodeEvidence] | None = None) -> Cause:
    """The first failure that is not the consequence of another one.

    Args:
        failures: the failed ranks, at least one.
        nodes: what their nodes saw.
    """
    known = nodes or {}
    read = [(failure, *_read(failure, known.get(failure.node, NodeEvidence()))) for failure in failures]
    first, rule, proof = min(read, key=lambda each: (_after(each[0], each[1]), each[0].time_s))
    alike = [failure for failure, other, _ in read if other.fault_class is rule.fault_class]
    others = {
        other.fault_class: f"{other.fault_class} on rank {failure.rank}, {failure.node}: {words[:_PROOF_CHARS]}"
        for failure, other, words in reversed(read)
        if other.fault_class not in (rule.fault_class, FaultClass.UNKNOWN) and not _after(failure, other)
    }
    follow = [1 for failure, other, _ in read if other.fault_class not in (rule.fault_class, *others)]
    return Cause(
        failure=first,
        diagnosis=Diagnosis(
            fault_class=rule.fault_class,
            domain=rule.domain,
            advice=rule.advice,
            proof=proof[:_PROOF_CHARS],
            is_certain=rule.certain,
            nodes=frozenset(failure.node for failure in alike),
            alike=len(alike) - 1,
            others=tuple(others.values()),
            consequences=len(follow),
        ),
        is_secondary=_after(first, rule) >= _AFTER[FaultClass.CUDA],
    )


def diagnose(text: str, otherwise: Diagnosis) -> Diagnosis:
    """What a reason in words says, if a rule knows a cause in it.

    Args:
        otherwise: what it is if none does.
    """
    rule, proof = rule_for(text.splitlines())
    if rule.fault_class in _SYMPTOMS:
        return otherwise
    return _diagnosis(rule, proof)


def find_slurms_cause(lines: Iterable[str], state: str = "") -> Diagnosis | None:
    """Why Slurm has ended a job, by its own lines in the batch job's log; None if no rule knows it.

    Args:
        lines: of that log, oldest first. A requeued job has those of its earlier starts, too.
        state: the job's state in Slurm, which is of its last start; "" if it is not known.
    """
    said = [line for line in lines if _SLURMS.match(line)]
    rule, proof = rule_for([f"Slurm's state of the job: {state}"])
    if rule.fault_class in _OF_SLURM:
        proof = next((line for line in reversed(said) if rule_for([line])[0] is rule), proof)
    else:
        rule, proof = rule_for(said)
    return _diagnosis(rule, proof) if rule.fault_class in _OF_SLURM else None


def _diagnosis(rule: Rule, proof: str) -> Diagnosis:
    return Diagnosis(
        fault_class=rule.fault_class, domain=rule.domain, advice=rule.advice, proof=proof[:_PROOF_CHARS],
        is_certain=rule.certain,
    )  # fmt: skip


def _read(failure: WorkerFailure, node: NodeEvidence) -> tuple[Rule, str]:
    own = failure.lines
    rule, proof = rule_for(own)
    if rule.fault_class in _SYMPTOMS:
        rule, proof = rule_for((*node.lines, *failure.log, *own))
    return (rule, proof) if proof else (UNKNOWN, "")


def _after(failure: WorkerFailure, rule: Rule) -> int:
    """0 for a cause; the larger, the likelier is a consequence."""
    if rule.fault_class is FaultClass.FABRIC and rule.domain is Domain.CLUSTER:
        return _AFTER[FaultClass.CUDA]  # the peer of a lost connection may have ended
    is_silent_abort = rule.fault_class is FaultClass.UNKNOWN and failure.exit_code in _ABORTS
    if is_silent_abort or failure.exit_code in (-signal.SIGTERM, _SHELL + signal.SIGTERM):
        return _SECONDARY if rule.fault_class in (FaultClass.UNKNOWN, FaultClass.KILLED) else 0
    return _AFTER.get(rule.fault_class, 0)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
