"""What a job's checkpoints will do: the cadence of each tier, the training time that is left, traffic and cost.

`ckpt.cadence` has the formulas, `ckpt.capacity` the sizes. Values that nobody has measured or given are assumptions,
and each is named in `assumed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich.filesize import decimal

from ckpt.cadence import (
    FLUSH_SLACK,
    MEMORY_SLACK,
    SOURCES,
    SaveLevel,
    interval_s,
    interval_steps,
    shares,
    training_ratio,
)
from ckpt.capacity import CapacityPlan, FlushEstimate
from ckpt.config import CheckpointConfig
from ckpt.sections import AUTO, MemorySection, TierSection
from ckpt.tiers.bucket import part_bytes_of

MONTH_S = 30 * 86_400.0
# Assumptions, for what is neither measured nor given
STEP_S = 10.0
COPY_BYTES_S = 10e9  # from a GPU's or a process's memory into a node's
RESTART_S = 60.0  # from a failure to the next step, from memory: detection, and the script's own start
REQUEUE_S = 120.0  # more from a lower tier: Slurm's own wait before it starts a requeued job
TIER_BYTES_S = {"nvme": 2e9, "shared": 50e9, "s3": 20e9}  # of each node; of all nodes together
SLOWDOWN = 0.02  # of training while a flush runs
# List prices of S3 Standard in us-east-1, in dollars
PUT_USD, GET_USD, GB_MONTH_USD = 0.005 / 1000, 0.0004 / 1000, 0.023
CLAIM_S = 10.0  # one read and one write of the claim in this time


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What is known of a job and its machines. None: not known.

    Attributes:
        step_s: of one step, without saves.
        stall_s: for how long a save holds training up.
        commit_s: from a save to its commit, by tier: "memory" and the lower ones.
        restart_s: from a failure to the next step, restored from memory.
        node_hours: of one node until it, or a process on it, fails; None: that of `source`.
        faults_from: where `node_hours` comes from, for people.
        node_memory_bytes: of each node, for checkpoints.
    """

    step_s: float | None = None
    stall_s: float | None = None
    commit_s: Mapping[str, float] = field(default_factory=dict)
    restart_s: float | None = None
    node_hours: float | None = None
    faults_from: str = ""
    source: str = "llama3"
    node_memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class TierOutlook:
    """One tier: the cadence that loses least, and that of the job file."""

    tier: str
    best_every_s: float
    best_every_steps: int
    every_steps: int  # of the job file; with `auto`, the best one
    is_auto: bool
    commit_s: float
    failures_per_month: float  # that are restored from here
    bytes_per_month: float  # written by all nodes, at the cadence of the job file


@dataclass(frozen=True, kw_only=True)
class BucketRequests:
    """What a bucket is asked in a month, and what it costs there at list prices."""

    puts: float
    gets: float
    stored_bytes: float
    usd: float


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The whole outlook of a job."""

    mean_s_between_failures: float
    failures: str  # their source
    step_s: float
    stall_s: float
    ratio: float  # of training that is kept, at the cadence of the job file
    best_ratio: float
    tiers: tuple[TierOutlook, ...]
    s3: BucketRequests | None
    assumed: tuple[str, ...]
    cannot_work: tuple[str, ...]
    watch: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def make_outlook(config: CheckpointConfig, plan: CapacityPlan, given: Conditions) -> Outlook:
    """Computes the outlook of a job whose sizes are planned."""
    source, assumed = SOURCES[given.source], list[str]()
    node_s = (given.node_hours or source.gpu_hours / plan.ranks_per_node) * 3600
    rate_hz = plan.nodes / node_s
    step_s = _known(given.step_s, STEP_S, "a step takes {:g} s (--step-s)", assumed)
    stall_s = _known(
        given.stall_s, plan.shard_bytes / COPY_BYTES_S, "a save holds training up for {:.2g} s (--stall-s)", assumed
    )
    restart_s = _known(given.restart_s, RESTART_S, "the next step is {:g} s after a failure (--restart-s)", assumed)
    beyond = source.beyond if plan.scheme != "none" else source.nodes
    assumed.append(f"memory does not survive {beyond:.0%} of the failures")
    parts = shares(len(plan.flushes), beyond)
    levels = [_memory(plan, given, rate_hz * parts[0], stall_s, restart_s)]
    for flush, part in zip(plan.flushes, parts[1:], strict=True):
        levels.append(_lower(flush, plan.nodes, given, rate_hz * part, restart_s, assumed))
    tiers, best_s, every_s = list[TierOutlook](), list[float](), list[float]()
    sections: list[MemorySection | TierSection] = [config.memory, *config.lower.values()]
    for level, section in zip(levels, sections, strict=True):
        best_steps = max(interval_steps(level, step_s), *(tier.best_every_steps for tier in tiers[:1]), 1)
        steps = best_steps if section.every_steps == AUTO else int(section.every_steps)
        best_s.append(best_steps * step_s)
        every_s.append(_every_s(section, steps, step_s))
        written = 0 if level.name == "memory" else plan.nodes * plan.ranks_per_node * plan.shard_bytes
        tiers.append(
            TierOutlook(
                tier=level.name,
                best_every_s=interval_s(level),
                best_every_steps=best_steps,
                every_steps=steps,
                is_auto=section.every_steps == AUTO,
                commit_s=level.delay_s,
                failures_per_month=level.rate_hz * MONTH_S,
                bytes_per_month=written * MONTH_S / every_s[-1],
            )
        )
    outlook = Outlook(
        mean_s_between_failures=1 / rate_hz, failures=given.faults_from or source.text, step_s=step_s, stall_s=stall_s,
        ratio=training_ratio(levels, every_s), best_ratio=training_ratio(levels, best_s), tiers=tuple(tiers),
        s3=_requests(plan, every_s[-1]) if config.s3 else None, assumed=tuple(assumed), cannot_work=(), watch=(),
    )  # fmt: skip
    problems = _problems(config, plan, given, outlook, levels, every_s)
    watch = _watch(config, plan, step_s)
    return replace(outlook, cannot_work=tuple(problems), watch=tuple(watch))


def _known(value: float | None, assumption: float, what: str, assumed: list[str]) -> float:
    if value is None:
        assumed.append(what.format(assumption))
    return assumption if value is None else value


def _memory(plan: CapacityPlan, given: Conditions, rate_hz: float, stall_s: float, restart_s: float) -> SaveLevel:
    delay_s = given.commit_s.get("memory", stall_s + (plan.protect_s or 0.0))
    return SaveLevel(
        name="memory", cost_s=stall_s, rate_hz=rate_hz, delay_s=delay_s, restart_s=restart_s, slack=MEMORY_SLACK
    )


def _lower(
    flush: FlushEstimate, nodes: int, given: Conditions, rate_hz: float, restart_s: float, assumed: list[str]
) -> SaveLevel:
    seconds = given.commit_s.get(flush.tier, flush.seconds)
    if seconds is None:
        rate = TIER_BYTES_S[flush.tier]
        seconds = flush.node_bytes * (1 if flush.tier == "nvme" else nodes) / rate
        assumed.append(f"{flush.tier} takes {rate / 1e9:g} GB/s (--{flush.tier}-gb-s)")
    return SaveLevel(
        name=flush.tier, cost_s=SLOWDOWN * seconds, rate_hz=rate_hz, delay_s=seconds,
        restart_s=restart_s + REQUEUE_S + seconds, slack=FLUSH_SLACK,
    )  # fmt: skip


def _every_s(section: MemorySection | TierSection, steps: int, step_s: float) -> float:
    by_time = section.every_s if isinstance(section, TierSection) else None
    return min(steps * step_s, by_time) if by_time else steps * step_s


def _requests(plan: CapacityPlan, every_s: float) -> BucketRequests:
    """BucketRequests of a bucket: parts of each node's object, the manifest, the claim, and what retention reads."""
    flush = next(one for one in plan.flushes if one.tier == "s3")
    saves = MONTH_S / every_s
    parts = -(-flush.node_bytes // part_bytes_of(flush.node_bytes))
    puts = saves * (plan.nodes * (parts + 2 if parts > 1 else 1) + 6) + MONTH_S / CLAIM_S
    gets = saves * (flush.keep + 4) + MONTH_S / CLAIM_S
    stored = float(flush.held_bytes)
    usd = puts * PUT_USD + gets * GET_USD + stored / 1e9 * GB_MONTH_USD
    return BucketRequests(puts=puts, gets=gets, stored_bytes=stored, usd=usd)


def _problems(
    config: CheckpointConfig, plan: CapacityPlan, given: Conditions, outlook: Outlook, levels: Sequence[SaveLevel],
    every_s: Sequence[float],
) -> Iterator[str]:  # fmt: skip
    """What cannot work, in plain words, with what to change."""
    need, have = plan.memory.total_bytes, given.node_memory_bytes
    if have is not None and need > have:
        yield (
            f"memory: each node needs {decimal(need)} for checkpoints and has {decimal(have)}: saves are dropped; use "
            "more nodes, a lower memory.keep, or scheme xor or rs instead of partner"
        )
    for level, tier, every in zip(levels, outlook.tiers, every_s, strict=True):
        if level.delay_s > every:
            what = "save takes" if level.name == "memory" else "flush takes"
            yield (
                f"{level.name}: a {what} {level.delay_s:,.0f} s and one is due every {every:,.0f} s: "
                f"{'saves are dropped' if level.name == 'memory' else 'due steps are left out'}; set every_steps to "
                f"{max(tier.best_every_steps, 1)} or more, or auto"
            )
    if not plan.flushes:
        loss = "every lost node loses" if plan.scheme == "none" else "a loss beyond the redundancy loses"
        yield f"no tier below memory: {loss} the whole training; add shared or s3"
    elif plan.scheme != "none" and plan.nodes == 1:
        yield "redundancy: one node has no other to hold its copies; only the lower tiers survive its loss"
    if outlook.best_ratio <= 0:
        yield (
            f"failures: one comes every {outlook.mean_s_between_failures:,.0f} s and costs more than that, so training "
            "gets nowhere; start faster (--restart-s), or use fewer nodes"
        )


def _watch(config: CheckpointConfig, plan: CapacityPlan, step_s: float) -> Iterator[str]:
    """What works and needs a look from time to time."""
    for name, section in config.lower.items():
        if section.keep_every_steps:
            size = plan.nodes * plan.ranks_per_node * plan.shard_bytes
            month = size * MONTH_S / (section.keep_every_steps * step_s)
            yield f"{name}: milestones add {decimal(int(month))} a month and nothing removes them"
