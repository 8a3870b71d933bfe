"""How often to save to each tier: Young's and Daly's interval on several levels, and the training time that is left.

A failure is restored from the nearest level that survives it. It costs the work since the last save that had reached
that level, and the restart. A save costs the time for which it holds training up. With failures that come at random,
the interval that loses least is about sqrt(2 * cost / rate) [1]; Daly's form [2] also fits costs that are not small
against the time between failures. The levels are independent to first order, so each has its own interval [3].

[1] J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17 (1974).
[2] J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22 (2006).
[3] S. Di et al., Optimization of a multilevel checkpoint model with uncertain execution scales, SC 2014.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DAY_S = 86_400.0
LONGEST_S = 6 * 3600.0  # between two saves: a rate of failures that nobody has measured may be far too low
FLUSH_SLACK = 1.25  # a flush takes at most 1 / this of the time until the next one
MEMORY_SLACK = 2.0  # the same for a save to memory, whose slots are needed again
NEXT_SURVIVES = 0.9  # of failures that a lower level does not survive, the share that the next one does: an assumption


@dataclass(frozen=True, kw_only=True)
class Source:
    """A published rate of failures.

    Attributes:
        gpu_hours: of GPU time for one unexpected interruption.
        beyond: the share of failures that memory with redundancy does not survive: switches, power, the whole job.
        nodes: the share of failures that cost a node's memory.
    """

    text: str
    gpu_hours: float
    beyond: float = 0.1  # an assumption: no report gives it
    nodes: float = 0.78  # Llama 3: 78 % of the interruptions were of hardware


SOURCES: Mapping[str, Source] = {
    "llama3": Source(
        text="Llama 3 (arXiv 2407.21783): 419 unexpected interruptions in 54 days on 16,384 GPUs",
        gpu_hours=54 * 24 * 16_384 / 419,
    ),
    "meta": Source(
        text="Meta's research clusters (arXiv 2410.21680): a mean time to failure of 7.9 h for jobs of 1,024 GPUs",
        gpu_hours=7.9 * 1024,
    ),
}


@dataclass(frozen=True, kw_only=True)
class SaveLevel:
    """Saves in memory, or in one lower tier.

    Attributes:
        cost_s: for how long one save holds training up.
        rate_hz: failures per second that are restored from here.
        delay_s: from a save's step until it counts here: its commit.
        restart_s: from a failure to the next step, without the work that is done again.
        slack: the least interval, in units of `delay_s`.
    """

    name: str
    cost_s: float
    rate_hz: float
    delay_s: float = 0.0
    restart_s: float = 0.0
    slack: float = FLUSH_SLACK

    @property
    def floor_s(self) -> float:
        """The least time between two saves: one must have ended before the next begins."""
        return self.delay_s * self.slack

    def loss_s(self, every_s: float) -> float:
        """What one failure costs on average."""
        return every_s / 2 + self.delay_s + self.restart_s


def interval_s(level: SaveLevel) -> float:
    """The time between two saves that loses least, between `floor_s` and `LONGEST_S`."""
    if level.rate_hz <= 0:
        return max(level.floor_s, LONGEST_S)
    return min(max(_daly(level.cost_s, 1 / level.rate_hz), level.floor_s), max(level.floor_s, LONGEST_S))


def interval_steps(level: SaveLevel, step_s: float) -> int:
    """The number of steps between two saves that loses least; at least 1."""
    return max(1, round(interval_s(level) / step_s)) if step_s > 0 else 1


def training_ratio(levels: Sequence[SaveLevel], every_s: Sequence[float]) -> float:
    """The share of time that is training which was kept (ETTR); 0 if nothing gets ahead."""
    lost = sum(level.rate_hz * level.loss_s(each) for level, each in zip(levels, every_s, strict=True))
    held_up = sum(level.cost_s / each for level, each in zip(levels, every_s, strict=True) if each > 0)
    return max(0.0, 1 - lost) / (1 + held_up)


def shares(tiers: int, beyond: float) -> list[float]:
    """The share of failures that is restored from memory, and from each tier below, nearest first.

    Without a lower tier all are: what memory does not survive begins at step 0, which no interval changes.
    """
    found, left = [1 - beyond if tiers else 1.0], beyond
    for tier in range(tiers):
        found.append(left * NEXT_SURVIVES if tier < tiers - 1 else left)
        left -= found[-1]
    return found


def observed_rate_hz(prior_hz: float, faults: int, elapsed_s: float) -> float:
    """The rate of failures of a job by what it has seen. The published rate counts as much as one failure.

    So a job without a failure lowers its rate slowly, and one with many soon has its own.
    """
    return (1 + faults) / (1 / prior_hz + elapsed_s) if prior_hz > 0 else faults / max(elapsed_s, 1.0)


def _daly(cost_s: float, mean_s: float) -> float:
    """Daly's higher order estimate; for a cost of more than twice the time between failures, that time."""
    if cost_s >= 2 * mean_s:
        return mean_s
    part = cost_s / (2 * mean_s)
    return math.sqrt(2 * cost_s * mean_s) * (1 + math.sqrt(part) / 3 + part / 9) - cost_s
