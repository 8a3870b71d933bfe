"""The `elastic` section of a job file: the sizes of a job that shrinks and grows, and its boosters.

HyperPod's names of the keys are accepted as aliases.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.settings.keys import key
from launcher.job.sbatch_options import Options
from slurm import SlurmError
from slurm.time_limit import NOTATIONS, time_limit_min

MAX_NODES = 1 << 16  # Slurm's maximum in one cluster

# The sbatch options that describe nodes. Boosters get them from the job, so that all nodes are alike.
_OF_THE_NODES = frozenset(
    ("account", "wckey", "constraint", "exclusive", "gres", "mem", "mem-per-cpu", "mem-per-gpu", "tmp", "mincpus",
     "cpus-per-task", "cpus-per-gpu", "sockets-per-node", "cores-per-socket", "threads-per-core", "hint", "network")
)  # fmt: skip
_SIZES_SHOWN = 8

# sbatch options that `elastic.booster.slurm` cannot have: the job file has a key for them, or Holdfast sets them.
BOOSTER_OPTIONS = {
    **{name: f"set `elastic.booster.{name}` in the job file" for name in ("partition", "qos", "time", "account")},
    "nodes": "`elastic` decides the size of a booster",
    "exclude": "the nodes of the job, and those that failed, are excluded",
    "requeue": "a booster that ends is submitted again",
    "no-requeue": "set for every booster",
    "dependency": "boosters are submitted while the job runs",
}


def of_the_nodes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those sbatch options of a job that describe nodes. Its boosters get them as well."""
    return {name: value for name, value in options.items() if name in _OF_THE_NODES}


@dataclass(frozen=True, kw_only=True)
class BoosterSection:
    """Boosters, which supply the nodes above `nodes`: further Slurm jobs, which Slurm may preempt one by one."""

    partition: str | None = key(
        "Partition of the boosters. It must be preemptible, with a lower PriorityTier than the job's. Or set `qos`.",
        default=None,
        derived="the job's",
        example="boost",
    )
    qos: str | None = key(
        "QOS of the boosters. The QOS of more urgent jobs must preempt it.",
        default=None,
        derived="the partition's",
        example="scavenger",
    )
    time: str | None = key(
        "Time limit of each booster, in the notation of sbatch's --time. A booster that ends is submitted again.",
        default=None,
        expected=NOTATIONS,
        derived="the partition's",
        unit="minutes",
        example="4:00:00",
    )
    account: str | None = key(
        "Slurm account of the boosters.", default=None, derived="the job's `slurm.account`", example="team"
    )
    slurm: Mapping[str, str | Literal[True]] = key(
        "Further sbatch options of boosters by long name. Boosters already get those options of `slurm` that describe "
        "nodes, such as mem, constraint, gres and exclusive.",
        default={},
        expected="a string, a number or true",
        example="{nice: 100}",
    )

    def _time_is_slurms(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        try:
            time_limit_min(self.time or "0")
        except SlurmError as error:
            yield "time", str(error)

    rules = (_time_is_slurms,)

    def options(self, slurm: Mapping[str, str | Literal[True]]) -> Options:
        """The sbatch options of a booster, by long name.

        Args:
            slurm: the options of the job itself.
        """
        own = {"partition": self.partition, "qos": self.qos, "time": self.time, "account": self.account}
        return {
            **of_the_nodes(slurm),
            **{name: value for name, value in own.items() if value is not None},
            **self.slurm,
        }


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """The sizes between which a job shrinks and grows. It shrinks if nodes are lost and no spare is left, or if Slurm
    takes nodes back. It grows when further nodes are free, if it has a size above `nodes`."""

    min_nodes: int | None = key(
        "Smallest number of nodes.",
        default=None,
        ge=1,
        le=MAX_NODES,
        derived="the smallest of `sizes`; required without `sizes`",
        unit="nodes",
        example=2,
        also_named="minReplicas",
    )
    max_nodes: int | None = key(
        "Largest number of nodes.",
        default=None,
        ge=1,
        le=MAX_NODES,
        derived="the largest of `sizes`, else the job's `nodes`",
        unit="nodes",
        example=8,
        also_named="maxReplicas",
    )
    step: int | None = key(
        "The sizes are min_nodes, min_nodes + step, ... up to max_nodes (2 for a model that is split over two nodes).",
        default=None,
        ge=1,
        le=MAX_NODES,
        derived="1",
        unit="nodes",
        example=2,
        also_named="replicaIncrementStep",
    )
    sizes: tuple[int, ...] = key(
        "All allowed sizes, instead of min_nodes, max_nodes and step.",
        default=(),
        unit="nodes",
        expected=f"a whole number, from 1 to {MAX_NODES}",
        example="[2, 4, 8]",
        also_named="replicaDiscreteValues",
    )
    scaling_timeout_s: float = key(
        "The job grows only after its nodes have not changed for this time.",
        default=60,
        ge=0,
        allow_inf_nan=False,
        unit="s",
        example=30,
        also_named="scalingTimeoutInSeconds",
    )
    graceful_shutdown_timeout_s: float = key(
        "Time for all ranks to reach an agreed step and to save before the size changes. After it they are killed.",
        default=600,
        gt=0,
        allow_inf_nan=False,
        unit="s",
        example=120,
        also_named="gracefulShutdownTimeoutInSeconds",
    )
    faulty_scale_down_timeout_s: float = key(
        "After a loss, time to wait for a new node before the job shrinks.",
        default=30,
        ge=0,
        allow_inf_nan=False,
        unit="s",
        example=10,
        also_named="faultyScaleDownTimeoutInSeconds",
    )
    scale_up_snooze_s: float = key(
        "Time from the end of a booster to the submission of the next.",
        default=300,
        ge=0,
        allow_inf_nan=False,
        unit="s",
        example=60,
        also_named="scaleUpSnoozeTimeInSeconds",
    )
    booster: BoosterSection | None = key(
        "Options of the boosters, which supply the nodes above `nodes`. Required on Slurm to grow.", default=None
    )
    scale: Mapping[str, Mapping[str, int | float | str | bool]] = key(
        "Settings of each size, for the script: batch sizes, learning rate.",
        default={},
        expected="a mapping of numbers and text",
        example="{2: {lr: 3e-4, micro_batch: 8}}",
    )

    def _fits_itself(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if all_sizes_are_numbers(given):
            yield from contradictions(self)

    rules = (_fits_itself,)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Elastic:
        """Make the section from the JSON of its dataclasses.asdict(). The data are not validated again.

        Raises:
            TypeError, KeyError: the data are not from asdict().
        """
        booster = data["booster"]
        return cls(
            **{**data, "sizes": tuple(data["sizes"]), "booster": None if booster is None else BoosterSection(**booster)}
        )


def sizes_of(elastic: Any, nodes: int) -> tuple[int, ...]:
    """The numbers of nodes that a job may train on, the largest first.

    Args:
        elastic: the section; or None.
        nodes: the job's `nodes`.
    """
    if elastic is None:
        return (nodes,)
    if elastic.sizes:
        return tuple(sorted({*elastic.sizes}, reverse=True))
    most = nodes if elastic.max_nodes is None else elastic.max_nodes
    return tuple(range(elastic.min_nodes, most + 1, elastic.step or 1))[::-1]


def booster_nodes_of(sizes: Iterable[int], nodes: int) -> int:
    """The number of nodes of each booster, with which every size above `nodes` can be reached; 0 if there is none."""
    return math.gcd(*(size - nodes for size in sizes if size > nodes))


def all_sizes_are_numbers(given: Mapping[str, Any]) -> bool:
    """Whether all items of `sizes` are valid. If one is not, rules about the job's sizes are skipped."""
    return all(isinstance(size, int) and not isinstance(size, bool) for size in given.get("sizes", ()))


def contradictions(elastic: Any) -> Iterator[tuple[str, str]]:
    """The problems of the section by itself, each as (key, problem)."""
    low, high, step, sizes = elastic.min_nodes, elastic.max_nodes, elastic.step, elastic.sizes
    for size in sizes:
        if not 1 <= size <= MAX_NODES:
            yield "sizes", f"got {size}, expected whole numbers, from 1 to {MAX_NODES}"
            return
    if sizes:
        if step is not None:
            yield "step", "sizes is given too; leave one of them out"
        if low not in (None, min(sizes)):
            yield "min_nodes", f"got {low}, expected {min(sizes)}, the smallest of sizes; or leave it out"
        if high not in (None, max(sizes)):
            yield "max_nodes", f"got {high}, expected {max(sizes)}, the largest of sizes; or leave it out"
    elif low is None:
        yield "min_nodes", "missing, expected a whole number, at least 1; or give sizes"
    elif high is not None and high < low:
        yield "max_nodes", f"got {high}, expected at least {low}, the value of min_nodes"
    elif high is not None and (high - low) % (step or 1):
        yield "step", f"got {step}, expected a divisor of max_nodes - min_nodes = {high - low}"


def problems_in_job(elastic: Any, nodes: int) -> Iterator[tuple[str, str]]:
    """The problems of a valid section in a job with this number of `nodes`, each as (key of the job, problem)."""
    low, step = elastic.min_nodes, elastic.step or 1
    if not elastic.sizes and elastic.max_nodes is None:
        if low > nodes:
            yield "elastic.min_nodes", f"got {low}, expected at most {nodes}, the job's nodes; or give max_nodes too"
            return
        if (nodes - low) % step:
            yield "elastic.step", f"got {step}, expected a divisor of nodes - min_nodes = {nodes - low}"
            return
    sizes = sizes_of(elastic, nodes)
    if nodes not in sizes:
        yield "nodes", f"got {nodes}, expected one of elastic's sizes: {_shown(sizes)}"
    for size in elastic.scale:
        if size not in map(str, sizes):
            yield f"elastic.scale.{size}", f"not a size of the job; expected one of {_shown(sizes)}"


def _shown(sizes: tuple[int, ...]) -> str:
    ascending = [str(size) for size in reversed(sizes)]
    if len(ascending) > _SIZES_SHOWN:
        ascending[_SIZES_SHOWN - 1 : -1] = ["..."]
    return ", ".join(ascending)
