"""Simulates the throughput of an elastic job and of jobs of fixed size on a cluster that other users share.

    python benchmarks/elastic_throughput.py [--days 7] [--costs FILE.json] [--plot FILE.svg]

A job owns `--base` nodes. On `--shared` further nodes, other users' jobs have priority and preempt this job. Their jobs
arrive at random (Poisson). Each takes between one node and half of the shared nodes (log-uniform), for a log-normal
time with a median of 20 minutes. The arrival rate is set so that they ask for a given part of the shared nodes: the
load.

The elastic job is the real decision core in the simulator of simulation: boosters of two nodes, the default
timeouts, 30 seconds of grace. A fixed job of N nodes is preemptible, because it needs shared nodes. It starts once
enough nodes are free, and is requeued as a whole when others need one of its nodes. "Best fixed" is the N with the
highest throughput at that load. Throughput is proportional to the number of nodes that train. Each resize, and each
cold start of a fixed job, takes as long as benchmarks/resize.py has measured: `--costs` reads the output of its
`--json`. Graceful stops lose no step.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plot import line_chart
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from simulation.clock import EPOCH_S, Clock  # noqa: E402
from simulation.schedule import Schedule, Setup  # noqa: E402
from simulation.shared_cluster import Pool, Urgent, pooled  # noqa: E402
from simulation.world import World  # noqa: E402

DAY_S = 86_400.0
BOOSTER_NODES = 2
MEDIAN_S, SIGMA = 1200.0, 1.0
COMMIT_S = 60.0
NEVER_DONE = 10**7


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds without training.

    Attributes:
        grow, shrink: for a resize.
        cold: for a start with a restore from the shared directory.
    """

    grow: float = 2.3
    shrink: float = 2.0
    cold: float = 25.2

    @classmethod
    def read(cls, path: Path) -> Costs:
        """Read the output of `benchmarks/resize.py --json`."""
        rows = json.loads(path.read_text())
        return cls(grow=rows["grow"]["value"], shrink=rows["shrink"]["value"], cold=rows["grow"]["peer"]["cold_start"])


@dataclass(frozen=True, kw_only=True)
class Row:
    """The results at one load. The unit of throughput is nodes.

    Attributes:
        load: part of the shared nodes that others ask for.
        free: nodes that others do not use, with the base nodes. No job can use more.
        elastic: the elastic job's throughput.
        resizes: number of its resizes.
        fixed: throughput of the fixed job, by its size.
        starts: number of starts of the fixed job, by its size.
    """

    load: float
    free: float
    elastic: float
    resizes: int
    fixed: dict[int, float]
    starts: dict[int, int]

    @property
    def best(self) -> int:
        return max(self.fixed, key=lambda size: self.fixed[size])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=int, default=4, help="nodes that the job owns")
    parser.add_argument("--shared", type=int, default=12, help="nodes that others may take; a multiple of 4")
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--costs", type=Path, metavar="FILE.json", help="output of benchmarks/resize.py --json")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the curves")
    given = parser.parse_args()
    costs = Costs() if given.costs is None else Costs.read(given.costs)
    rows = [row(given.base, given.shared, given.days * DAY_S, load, given.seed, costs) for load in given.loads]
    Console(width=120).print(table(rows, given.base, given.shared, given.days, costs))
    if given.plot is not None:
        whole = given.base + given.shared
        lines = {
            "free nodes": [(each.load, each.free) for each in rows],
            "elastic": [(each.load, each.elastic) for each in rows],
            "best fixed": [(each.load, each.fixed[each.best]) for each in rows],
            f"fixed, {whole}": [(each.load, each.fixed[whole]) for each in rows],
            f"fixed, {given.base}": [(each.load, float(given.base)) for each in rows],
        }
        title = f"Useful throughput of a job with {given.base} nodes of its own and {given.shared} shared ones"
        x_label = "part of the shared nodes that others ask for"
        line_chart(given.plot, lines, title=title, x_label=x_label, y_label="nodes")
    return 0


def row(base: int, shared: int, length_s: float, load: float, seed: int, costs: Costs) -> Row:
    others = list(arrivals(shared, length_s, load, seed))
    elastic, resizes = elastic_job(base, shared, length_s, others, seed, costs)
    left = list(free_nodes(shared, length_s, others))
    fixed, starts = {base: float(base)}, {base: 1}
    for size in range(base + BOOSTER_NODES, base + shared + 1, BOOSTER_NODES):
        fixed[size], starts[size] = fixed_job(size - base, size, length_s, left, costs)
    free = base + sum(nodes * (until_s - since_s) for since_s, until_s, nodes in left) / length_s
    return Row(load=load, free=free, elastic=elastic, resizes=resizes, fixed=fixed, starts=starts)


def arrivals(shared: int, length_s: float, load: float, seed: int) -> Iterator[tuple[float, int, float]]:
    """The jobs of others, each with its time of submission, its number of nodes and its duration in seconds."""
    rng, most = random.Random(seed), shared / 2
    mean_nodes = sum(_size(random.Random(draw), most) for draw in range(2000)) / 2000
    mean_s = MEDIAN_S * math.exp(SIGMA**2 / 2)
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(load * shared / (mean_nodes * mean_s))) < length_s:
        yield at_s, _size(rng, most), rng.lognormvariate(math.log(MEDIAN_S), SIGMA)


def _size(rng: random.Random, most: float) -> int:
    return max(1, round(most ** rng.random()))


Stretch = tuple[float, float, int]  # start, end, nodes


def free_nodes(shared: int, length_s: float, others: Sequence[tuple[float, int, float]]) -> Iterator[Stretch]:
    """The nodes that others do not use, in order of time. Their jobs start in the order of submission."""
    ends: list[tuple[float, int]] = []  # of running jobs
    since_s, free = 0.0, shared

    def until(time_s: float, nodes: int) -> Iterator[Stretch]:
        nonlocal since_s, free
        if time_s > since_s and since_s < length_s:
            yield since_s, min(time_s, length_s), free
        since_s, free = time_s, free + nodes

    for submitted_s, size, lasts_s in others:
        while ends and (ends[0][0] <= max(submitted_s, since_s) or free < size):
            yield from until(*heapq.heappop(ends))
        yield from until(max(submitted_s, since_s), -size)
        heapq.heappush(ends, (since_s + lasts_s, size))
    while ends:
        yield from until(*heapq.heappop(ends))
    yield from until(length_s, 0)


def fixed_job(needs: int, size: int, length_s: float, left: Sequence[Stretch], costs: Costs) -> tuple[float, int]:
    """The throughput of a preemptible job that needs shared nodes, and the number of its starts."""
    node_s, starts, runs_s = 0.0, 0, 0.0
    for since_s, until_s, free in [*left, (length_s, length_s, -1)]:
        if free >= needs:
            runs_s += until_s - since_s
        elif runs_s:
            node_s += size * max(0.0, runs_s - costs.cold)
            starts, runs_s = starts + 1, 0.0
    return node_s / length_s, starts


def elastic_job(
    base: int, shared: int, length_s: float, others: Sequence[tuple[float, int, float]], seed: int, costs: Costs
) -> tuple[float, int]:
    """The throughput and the number of resizes of the elastic job, whose decisions the real core makes."""
    clock = Clock()
    pool = Pool(clock, [f"p{index}" for index in range(shared)])
    setup = Setup(
        seed=seed, nodes=base, spares=0, least=base, extra=0, chunks=NEVER_DONE, chunk_s=COMMIT_S, jitter=0.0,
        reports=1, boosters=shared // BOOSTER_NODES, booster_nodes=BOOSTER_NODES, settle_s=60.0, snooze_s=300.0,
    )  # fmt: skip
    world = World(Schedule(setup), checks=False, clock=clock, make_booster=pooled(pool, 0))
    world.start()
    for at_s, size, lasts_s in others:
        clock.at(at_s, pool.submit_urgent, Urgent(at_s=at_s, size=size, lasts_s=lasts_s))
    clock.run(length_s, lambda: world.outcome is not None)
    if world.outcome is not None:
        raise SystemExit(f"the job ended at {clock.now:.0f} s: {world.outcome}")
    return _trained(world.folder.events, length_s, costs)


def _trained(events: Sequence[dict[str, Any]], length_s: float, costs: Costs) -> tuple[float, int]:
    """Throughput and number of resizes, from the job's events. Steps that a fault loses do not count.

    An attempt begins at the end of the one before, because the costs contain the time between them.
    """
    cost_s = {"grow": costs.grow, "shrink": costs.shrink}
    node_s, resizes, size, since_s, committed_s, rung = 0.0, 0, 0, 0.0, 0.0, ""
    for event in [*events, {"event": "attempt_end", "time": EPOCH_S + length_s}]:
        time_s = event["time"] - EPOCH_S
        if event["event"] == "attempt_start":
            size, rung = len(event["nodes"]), event["rung"]
            resizes += rung in cost_s
        elif event["event"] == "commit":
            committed_s = time_s
        elif event["event"] == "attempt_end":
            trained_s = committed_s if event.get("outcome") == "fault" else time_s
            node_s += size * max(0.0, trained_s - since_s - cost_s.get(rung, costs.cold))
            since_s = time_s
    return node_s / length_s, resizes


def table(rows: Sequence[Row], base: int, shared: int, days: float, costs: Costs) -> Table:
    whole = base + shared
    shown = Table(
        title=f"Useful throughput in nodes over {days:g} days: {base} own nodes, {shared} shared",
        caption=f"seconds lost: {costs.grow:g} to grow, {costs.shrink:g} to shrink, {costs.cold:g} in a cold start",
    )
    for column in ("others ask for", "free nodes", "elastic", "of free", "resizes", "best fixed", "its nodes", "starts",
                   f"fixed, {whole}", "starts"):  # fmt: skip
        shown.add_column(column, justify="right")
    for each in rows:
        shown.add_row(
            f"{each.load:.0%}", f"{each.free:.2f}", f"{each.elastic:.2f}", f"{each.elastic / each.free:.0%}",
            str(each.resizes), f"{each.fixed[each.best]:.2f}", str(each.best), str(each.starts[each.best]),
            f"{each.fixed[whole]:.2f}", str(each.starts[whole]),
        )  # fmt: skip
    return shown


if __name__ == "__main__":
    sys.exit(main())
