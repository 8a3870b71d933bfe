"""What happens next in a job, its faults and its tiers, in words; and its speed as a sparkline."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.core.outcomes import FINAL
from launcher.history.recovery import Recovery
from launcher.history.status import JobStatus, TierState
from launcher.history.view import ending
from launcher.history.wording import plural
from launcher.scheduler import SCHEDULERS, scheduler

_BARS = "▁▂▃▄▅▆▇█"
_PLAIN_BARS = "_.-=+*%#"


def what_next(status: JobStatus, job: Mapping[str, Any], now_s: float) -> list[str]:
    """What happens next, the soonest first.

    Args:
        status: the job's status.
        job: the job's job.json; empty before it has started.
        now_s: the current time in seconds since the epoch.
    """
    if status.state in (*FINAL, "lost", "unreadable"):
        return [f"nothing: {ending(status)}"]
    soonest = [f"the job saves and ends {status.stop}"] if status.stop else []
    if status.waits_until_s is not None and status.waits_until_s > now_s:
        return [*soonest, f"the next attempt begins in {status.waits_until_s - now_s:.0f} s"]
    attempt = status.attempt if status.attempt is not None else 0
    match status.state:
        case "pending" | "requeued":
            return [*soonest, status.reason or "it starts when its nodes are there"]
        case "starting" if status.attempt is None:
            return [*soonest, "the first attempt begins when enough nodes are ready"]
        case "recovering" if status.recoveries and not status.recoveries[-1].rung:
            return [*soonest, f"attempt {attempt + 1} begins: {_who_replaces(status, job)}"]
        case "starting" | "recovering":
            return [*soonest, f"the workers of attempt {attempt} start, then the newest step is restored"]
        case "running":
            return [*soonest, f"attempt {attempt} finishes its first step"]
        case "resizing":
            return [*soonest, f"the job continues in another size: {status.reason}"]
        case "stopping":
            return [*soonest, "all ranks save at one step, then the attempt ends"]
    return [*soonest, *_saves(status), f"if a node fails: {_who_replaces(status, job)}"]


def _saves(status: JobStatus) -> list[str]:
    """The next save of each tier, by the distance of its last two."""
    found = []
    for name, tier in status.tiers.items():
        if tier.every is None:
            continue
        step = tier.step + tier.every * max(1, -(-(status.step + 1 - tier.step) // tier.every))
        left_s = (step - status.step) / status.steps_per_s if status.steps_per_s else None
        found.append((step, f"{name} step {step}{f' in {short(left_s)}' if left_s is not None else ''}"))
    return [f"saves: {', '.join(words for _, words in sorted(found))}"] if found else []


def _who_replaces(status: JobStatus, job: Mapping[str, Any]) -> str:
    """Which rung of the recovery ladder is next after the loss of a node."""
    warm = [node for node in status.spares if node not in status.out]
    if warm:
        return f"spare {warm[0]} takes over ({plural(len(warm), 'spare')} left)"
    if job.get("elastic"):
        return "no spare is left, the job continues on fewer nodes if its sizes allow it"
    if status.cluster in SCHEDULERS and scheduler(status.cluster).can_requeue:
        return "no spare is left, the job is requeued"
    return "no spare is left, the job ends with too_few_nodes"


def fault_line(recovery: Recovery, now_s: float) -> tuple[str, bool]:
    """A fault with its rung and the seconds until training continued, and whether it has."""
    clock = time.strftime("%H:%M:%S", time.localtime(recovery.fault_s))
    on = f" {recovery.node}" if recovery.node else ""
    head = f"{clock} {recovery.kind}{on}: "
    since = short(max(0.0, now_s - recovery.fault_s))
    if not recovery.rung:
        return f"{head}no attempt since, for {since}, at step {recovery.step_lost}", False
    if recovery.next_step_s is None:
        return f"{head}{recovery.rung}, under way for {since}, at step {recovery.step_lost}", False
    resumed = recovery.step_resumed or 0
    steps = f"step {recovery.step_lost} to {resumed}" if recovery.step_lost != resumed else f"at step {resumed}"
    source = f" from {recovery.restored_from}" if recovery.step_resumed else ""
    return f"{head}{recovery.rung}, {recovery.next_step_s:.1f} s, {steps}{source}", True


def tier_rows(tiers: Mapping[str, TierState], now_s: float) -> list[tuple[str, ...]]:
    """For each tier its name, newest step, age, speed, size and duration."""
    rows: list[tuple[str, ...]] = []
    for name, tier in tiers.items():
        speed = tier.bytes / tier.seconds if tier.bytes and tier.seconds else None
        rows.append(
            (
                name,
                f"step {tier.step}",
                f"{short(max(0.0, now_s - tier.time_s))} ago",
                f"{size(speed)}/s" if speed is not None else "",
                size(tier.bytes) if tier.bytes is not None else "",
                f"in {tier.seconds:.2f} s" if tier.seconds is not None else "",
            )
        )
    return rows


def sparkline(rates: Sequence[float], width: int, *, is_unicode: bool) -> str:
    """The rates as bars, in at most `width` characters; neighbours are averaged where they are more."""
    bars = _BARS if is_unicode else _PLAIN_BARS
    if len(rates) > width > 0:
        edges = [round(part * len(rates) / width) for part in range(width + 1)]
        rates = [sum(rates[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    highest = max(rates, default=0.0)
    if highest <= 0:
        return ""
    return "".join(" " if rate <= 0 else bars[min(len(bars) - 1, int(rate / highest * len(bars)))] for rate in rates)


def short(seconds: float) -> str:
    """For example "8 s", "3 min" or "2.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} d"


def size(count: float) -> str:
    """Bytes in a decimal unit, for example "68 MB"."""
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"
