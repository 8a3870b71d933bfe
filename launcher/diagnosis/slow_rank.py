"""Finds the ranks for which all others wait.

All ranks of synchronous training have the same step time, so that says nothing. The work does: the time of a step in
which a rank does not wait for others. The slow rank works longest, and the others wait for it in collectives.

Each rank reports the medians of some of its steps at a time. Its level is their median over the last `steps` steps, so
single long steps (a save, an evaluation, a garbage collection) do not count. A rank is slow if

- its level is `factor` times the median of the other ranks', or has grown since the first steps by `factor` more than
  theirs. The second finds a rank that has become slow where the work is unequal by design, as in a pipeline;
- that stands out among the other ranks: by OUTLIER times their spread (MAD);
- it stands out from the rank's own noise: by CERTAIN times the standard error of its level;
- it holds the step up: the excess is at least WORTH of the step.

It is slow no longer once less than half of that excess is left.

If no rank is slow and steps take `factor` times as long as the first ones because all ranks communicate longer, it is
the network. The rank that waits least for others says how long communication itself takes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, takewhile
from statistics import median
from typing import NamedTuple

OUTLIER = 5.0
CERTAIN = 5.0
WORTH = 0.02
WARM_UP = 10  # steps of an attempt that do not count: compilation, caches, the first batch
FIRST = 5  # times `steps`: the first steps, to which a rank's later ones are compared
FEWEST_REPORTS = 5  # that a level needs, however many steps each of them has

_SIGMA = 1.4826  # MAD of a normal distribution to its standard deviation
_MEDIAN = 1.2533  # standard error of a median to that of a mean
_FLOOR = 0.005  # the least spread among ranks, of the level
_SHARE = 0.75  # of a switch's nodes that are slow: then it is the switch
_PARTS = {"data": "data loading", "compute": "computation"}


@dataclass(frozen=True, slots=True)
class RankTimes:
    """The medians of some steps of a rank, in seconds of a step."""

    rank: int
    steps: int
    data_s: float
    compute_s: float
    communication_s: float

    @property
    def work_s(self) -> float:
        return self.data_s + self.compute_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Straggler:
    """A node with a slow rank.

    Attributes:
        rank: the slowest rank of the node.
        ranks: the number of slow ranks on it.
        factor: the time that the rank works in a step, as a multiple of the other ranks'; or of its own at first, if
            that is more.
        part: what takes longer: "data" or "compute".
        excess_s: by how much it makes each step longer.
        since_s: when it began, on the clock of the reports.
        switch: the leaf switch, if most of its nodes are slow, and nodes of others are not.
    """

    node: str
    rank: int
    ranks: int
    factor: float
    part: str
    excess_s: float
    since_s: float
    switch: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowNetwork:
    """Communication that takes longer on all ranks.

    Attributes:
        factor: the time of a step, as a multiple of that of the first steps.
        excess_s: by how much communication is longer in each step.
    """

    factor: float
    excess_s: float

    def __str__(self) -> str:
        return (
            f"steps take {self.factor:.2f} times as long as the first ones, because communication takes "
            f"{self.excess_s * 1e3:.0f} ms more on all ranks"
        )


def slow_words(rank: int, ranks: int, factor: float, part: str) -> str:
    """For example "rank 5 works 1.22 times as long as the others, longer in data loading"."""
    others = f" (and {ranks - 1} more)" if ranks > 1 else ""
    longer = f"longer in {_PARTS.get(part, part)}"
    return f"rank {rank}{others} works {factor:.2f} times as long as the others, {longer}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Level:
    """The time that a rank works in a step, over its last reports, and the relative standard error of that."""

    work_s: float
    error: float


class _Report(NamedTuple):
    time_s: float
    times: RankTimes


class _Waits(NamedTuple):
    """The time that a rank communicates in a step, over its last reports, and the standard error of that."""

    communication_s: float
    error_s: float


@dataclass(kw_only=True, slots=True)
class _Rank:
    """One rank.

    Attributes:
        reports: the last ones, of at least `steps` steps once that many were made.
        seen, steps: number of steps of all reports, and of the last ones.
        early: the first reports, until their steps are enough for the next two.
        first_s, first_parts: the level of its first steps, and their data_s and compute_s.
        first_waits: the communication in them.
        is_slow: whether it was slow at the last look.
    """

    node: str
    reports: deque[_Report] = field(default_factory=deque)
    seen: int = 0
    steps: int = 0
    early: list[_Report] = field(default_factory=list)
    first_s: float | None = None
    first_parts: tuple[float, float] = (0.0, 0.0)
    first_waits: _Waits | None = None
    is_slow: bool = False


class SlowRanks:
    """The ranks of one attempt.

    Args:
        factor: from which multiple of the other ranks' work on a rank is slow.
        steps: the number of steps that is looked at.
        switches: from node to leaf switch, where that is known.

    Attributes:
        network: what has become slow by the last look, where that is no rank.
    """

    def __init__(self, *, factor: float, steps: int, switches: Mapping[str, str] | None = None) -> None:
        self._factor = factor
        self._steps = steps
        self._switches = switches or {}
        self._ranks: dict[int, _Rank] = {}
        self._fresh = 0  # reports since the last look
        self._found: dict[str, Straggler] = {}
        self.network: SlowNetwork | None = None

    def add(self, node: str, times: RankTimes, now_s: float) -> None:
        """Adds the last steps of a rank."""
        known = self._ranks.get(times.rank)
        if known is None:
            known = self._ranks[times.rank] = _Rank(node=node)
        known.seen += times.steps
        if known.seen <= WARM_UP:
            return
        self._fresh += 1
        known.reports.append(_Report(now_s, times))
        if known.first_s is None:
            known.early.append(known.reports[-1])
        known.steps += times.steps
        while len(known.reports) > FEWEST_REPORTS and known.steps - known.reports[0].times.steps >= self._steps:
            known.steps -= known.reports.popleft().times.steps

    def look(self) -> tuple[list[Straggler], list[str]]:
        """The nodes that have become slow, and those that are slow no longer, since the last look.

        It does nothing until each rank has reported once more.
        """
        if self._fresh < len(self._ranks) or len(self._ranks) < 2 or not all(map(self._is_full, self._ranks.values())):
            return [], []
        self._fresh = 0
        levels = {rank: _level(known.reports) for rank, known in self._ranks.items()}
        slow = self._slow_ranks(levels)
        self.network = None if slow else self._slow_network(levels)
        found = self._with_switches(self._by_node(slow))
        new = [straggler for node, straggler in found.items() if node not in self._found]
        over = [node for node in self._found if node not in found]
        self._found = found
        return new, over

    def _is_full(self, known: _Rank) -> bool:
        return known.steps >= self._steps and len(known.reports) >= FEWEST_REPORTS

    def _slow_ranks(self, levels: Mapping[int, _Level]) -> dict[int, tuple[float, bool]]:
        """From slow rank to its factor, and whether that is the one to its own past."""
        works = _Among({rank: level.work_s for rank, level in levels.items()})
        usual = median(level.error for level in levels.values())  # the own one of few reports may be small by chance
        growths = self._growths(levels)
        waits_s = (known.reports[-1].times.communication_s for known in self._ranks.values())
        step_s = median(level.work_s for level in levels.values()) + median(waits_s)
        slow = {}
        for rank, known in self._ranks.items():
            work_s, error = levels[rank].work_s, max(levels[rank].error, usual)
            least = 1.0 + (self._factor - 1.0) / (2.0 if known.is_slow else 1.0)
            found = [
                (among.ratio(rank), among is growths)
                for among in (works, growths)
                if among and among.ratio(rank) >= least and (known.is_slow or among.stands_out(rank, error))
            ]
            known.is_slow = bool(found) and work_s * (1.0 - 1.0 / max(found)[0]) >= WORTH * step_s
            if known.is_slow:
                slow[rank] = max(found)
        return slow

    def _slow_network(self, levels: Mapping[int, _Level]) -> SlowNetwork | None:
        now, firsts = [], []
        for known in self._ranks.values():
            if known.first_waits is None:
                return None
            now.append(_waits(known.reports))
            firsts.append(known.first_waits)
        least, first = min(now), min(firsts)
        works_s = [known.first_s or 0.0 for known in self._ranks.values()]
        first_s = median(works_s) + median(wait.communication_s for wait in firsts)
        step_s = median(level.work_s for level in levels.values()) + median(wait.communication_s for wait in now)
        excess_s = least.communication_s - first.communication_s
        is_slow = self.network is not None
        due_s = (self._factor - 1.0) * first_s / (2.0 if is_slow else 1.0)
        is_certain = is_slow or excess_s >= CERTAIN * (least.error_s + first.error_s)
        if first_s <= 0.0 or min(excess_s, step_s - first_s) < due_s or not is_certain:
            return None
        return SlowNetwork(factor=step_s / first_s, excess_s=excess_s)

    def _growths(self, levels: Mapping[int, _Level]) -> _Among | None:
        """Each rank's level by that of its first steps; None before all have enough of these."""
        for known in self._ranks.values():
            if known.first_s is None and known.seen >= FIRST * self._steps:
                known.first_s, known.first_parts = _level(known.early).work_s, _parts(known.early)
                known.first_waits = _waits(known.early)
                known.early.clear()
        firsts = {rank: known.first_s for rank, known in self._ranks.items()}
        if not all(firsts.values()):
            return None
        return _Among({rank: level.work_s / (firsts[rank] or 1.0) for rank, level in levels.items()})

    def _by_node(self, slow: Mapping[int, tuple[float, bool]]) -> dict[str, Straggler]:
        of_node = defaultdict[str, list[int]](list)
        for rank in slow:
            of_node[self._ranks[rank].node].append(rank)
        return {node: self._straggler(node, ranks, slow) for node, ranks in of_node.items()}

    def _straggler(self, node: str, ranks: Sequence[int], slow: Mapping[int, tuple[float, bool]]) -> Straggler:
        rank = max(ranks, key=lambda each: slow[each])
        factor, of_past = slow[rank]
        known = self._ranks[rank]
        level_s = _level(known.reports).work_s
        normal_s = level_s / factor
        recent = _since(known.reports, (level_s + normal_s) / 2)
        data_s, compute_s = _parts(recent)
        normal = known.first_parts if of_past else self._normal_parts()
        return Straggler(
            node=node, rank=rank, ranks=len(ranks),
            factor=(data_s + compute_s) / normal_s, excess_s=data_s + compute_s - normal_s,
            part="data" if data_s - normal[0] > compute_s - normal[1] else "compute", since_s=recent[0].time_s,
        )  # fmt: skip

    def _normal_parts(self) -> tuple[float, float]:
        """The data_s and compute_s of the ranks that are not slow."""
        parts = [_parts(known.reports) for known in self._ranks.values() if not known.is_slow]
        data, compute = zip(*(parts or [_parts(known.reports) for known in self._ranks.values()]), strict=True)
        return median(data), median(compute)

    def _with_switches(self, found: dict[str, Straggler]) -> dict[str, Straggler]:
        """The same, where the switches are named of which most nodes are slow."""
        below = defaultdict[str, set[str]](set)
        for node in {known.node for known in self._ranks.values()} & self._switches.keys():
            below[self._switches[node]].add(node)
        slow = {switch: nodes & found.keys() for switch, nodes in below.items()}
        if all(slow.values()):  # none stands out
            return found
        named = {
            node: replace(found[node], switch=switch)
            for switch, nodes in slow.items()
            if len(nodes) >= max(2.0, _SHARE * len(below[switch]))
            for node in nodes
        }
        return found | named


class _Among:
    """A value of each rank, compared with those of the other ranks."""

    def __init__(self, values: Mapping[int, float]) -> None:
        self._values = values
        self._ordered = sorted(values.values())

    def ratio(self, rank: int) -> float:
        """A rank's value by the median of the others; 1.0 if that is 0."""
        others = _median_without(self._ordered, self._values[rank])
        return self._values[rank] / others if others > 0 else 1.0

    def stands_out(self, rank: int, error: float) -> bool:
        """Whether a rank's value is far above the others', by their spread and by the relative error of its own."""
        others = [value for other, value in self._values.items() if other != rank]
        middle = median(others)
        spread = _SIGMA * median(abs(other / middle - 1.0) for other in others)
        return self.ratio(rank) - 1.0 >= max(OUTLIER * max(spread, _FLOOR), CERTAIN * error)


def _since(reports: Sequence[_Report], bound_s: float) -> list[_Report]:
    """The last reports in a row that are above a bound, oldest first; all if there are too few for a median."""
    above = list(takewhile(lambda report: report.times.work_s >= bound_s, reversed(reports)))
    return above[::-1] if len(above) >= FEWEST_REPORTS else list(reports)


def _level(reports: Iterable[_Report]) -> _Level:
    works = [(times.work_s, times.steps) for _, times in reports]
    work_s = _weighted_median(works)
    spread_s = _SIGMA * _weighted_median([(abs(work - work_s), steps) for work, steps in works])
    return _Level(work_s=work_s, error=_MEDIAN * spread_s / len(works) ** 0.5 / work_s if work_s else 0.0)


def _waits(reports: Iterable[_Report]) -> _Waits:
    found = [(times.communication_s, times.steps) for _, times in reports]
    wait_s = _weighted_median(found)
    spread_s = _SIGMA * _weighted_median([(abs(each - wait_s), steps) for each, steps in found])
    return _Waits(wait_s, _MEDIAN * spread_s / len(found) ** 0.5)


def _parts(reports: Iterable[_Report]) -> tuple[float, float]:
    """The data_s and compute_s of a step."""
    known = [times for _, times in reports]
    data_s = _weighted_median((times.data_s, times.steps) for times in known)
    return data_s, _weighted_median((times.compute_s, times.steps) for times in known)


def _median_without(ordered: Sequence[float], value: float) -> float:
    """The median of ordered values without one of them."""
    left, at = len(ordered) - 1, bisect_left(ordered, value)
    lower, upper = ((left - 1) // 2, left // 2)
    return (ordered[lower + (lower >= at)] + ordered[upper + (upper >= at)]) / 2


def _weighted_median(values: Iterable[tuple[float, int]]) -> float:
    ordered = sorted(values)
    weights = list(accumulate(weight for _, weight in ordered))
    return ordered[bisect_left(weights, weights[-1] / 2)][0]
