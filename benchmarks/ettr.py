"""Simulates the effective training time ratio (ETTR) of a large job, by number of spares and cadence of saves.

The simulator of simulation runs the real decision core for `--days` of a job of `--nodes` nodes. The failure rate
is that of Llama 3's training: 419 interruptions in 54 days on 16,384 GPUs, which are 2,048 nodes. As in that report,
about three of four failures cost a node, the others a process. Once in `SWITCH_EVERY_S` on average, a switch fails with
`SWITCH_NODES` nodes. A node is repaired after some hours, and Slurm may use it again. ETTR is the time of all steps
that were kept, divided by the total time. The second table has the seconds from the fault to the next step, for each
rung of the recovery ladder. With `PACE` the simulated delays are as long as on the real Slurm of docs/measurements.md.
`--start` is the time that a model of this size adds to each start of the script: imports, NCCL, data.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from plot import line_chart
from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from launcher.core.commands import Command  # noqa: E402
from launcher.core.decision import begin_with  # noqa: E402
from launcher.core.gains import Event  # noqa: E402
from launcher.core.replay import History, replay  # noqa: E402
from launcher.core.state import JobFacts, State  # noqa: E402
from simulation.schedule import Fault, Schedule, Setup  # noqa: E402
from simulation.training import CHUNK_STEPS  # noqa: E402
from simulation.world import World  # noqa: E402

DAY_S = 86_400.0
INTERRUPTIONS_A_NODE_S = 419 / (54 * DAY_S * 2048)
NODE_SHARE = 0.75
SWITCH_EVERY_S = 30 * DAY_S  # in the whole job
SWITCH_NODES = 16
REPAIR_S = 4 * 3600.0
NEVER_DONE = 10**7
PACE = 0.25  # factor of the simulated delays, of which the longest of 2,048 nodes counts


@dataclass(frozen=True, kw_only=True)
class Case:
    """One simulated run.

    Attributes:
        cadence_s: seconds of training between two saves.
        stall_s: seconds that training waits in a save.
        start_s: seconds that a large model adds to each start, from the start of workers to the first step.
    """

    nodes: int
    days: float
    spares: int
    cadence_s: float
    stall_s: float
    start_s: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a simulated run.

    Attributes:
        costs_s: for each rung, the seconds from each fault to the next step.
        given_up_s: seconds of training whose committed steps were lost.
    """

    case: Case
    faults: int
    costs_s: dict[str, list[float]]
    given_up_s: float
    ettr: float
    took_s: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="ettr", description=__doc__)
    parser.add_argument("--nodes", type=int, default=2048)
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--spares", type=int, nargs="+", default=[0, 4, 16, 32])
    parser.add_argument("--cadence", type=float, nargs="+", default=[60.0, 300.0, 1800.0], help="seconds between saves")
    parser.add_argument("--stall", type=float, default=0.1, help="seconds for which training waits in each save")
    parser.add_argument("--start", type=float, default=30.0, help="seconds that the model adds to each start")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=None, help="number of processes; by default that of the cores")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.svg", help="draw ETTR by cadence, a line for each number of spares"
    )
    given = parser.parse_args()
    cases = [
        Case(
            nodes=given.nodes,
            days=given.days,
            spares=spares,
            cadence_s=cadence,
            stall_s=given.stall,
            start_s=given.start,
            seed=given.seed,
        )
        for spares in given.spares
        for cadence in given.cadence
    ]
    with ProcessPoolExecutor(given.jobs) as pool:
        results = list(track(pool.map(run, cases), "runs", len(cases), console=Console(stderr=True)))
    _print(results)
    if given.plot is not None:
        lines: dict[str, list[tuple[float, float]]] = {}
        for result in results:
            lines.setdefault(f"{result.case.spares} spares", []).append((result.case.cadence_s, result.ettr))
        title = f"{given.nodes} nodes, {given.days:g} days, Llama 3's rate of failures"
        line_chart(given.plot, lines, title=title, x_label="seconds between saves", y_label="ETTR", is_log_x=True)
    return 0


def run(case: Case) -> Result:
    begun_s = time.monotonic()
    world = World(failures(case), begin=_Past().begin, checks=False, pace=PACE, first_step_s=case.start_s)
    world.start()
    end_s = case.days * DAY_S
    world.clock.run(end_s, lambda: world.outcome is not None)
    if world.outcome is not None:
        raise SystemExit(f"the job ended at {world.clock.now:.0f} s: {world.outcome}")
    costs_s: dict[str, list[float]] = {}
    for rung, cost_s in _recoveries(world.folder.events):
        costs_s.setdefault(rung, []).append(cost_s)
    return Result(
        case=case,
        faults=len(world.injected),
        costs_s=costs_s,
        given_up_s=world.lost_steps / CHUNK_STEPS * case.cadence_s,
        ettr=world.invariants.newest_step / CHUNK_STEPS * case.cadence_s / end_s,
        took_s=time.monotonic() - begun_s,
    )


class _Past:
    """Begins supervisors as the core does, but folds each event only once in all: hundreds begin in a run."""

    def __init__(self) -> None:
        self._history = History()
        self._folded = 0

    def begin(self, job: JobFacts, past: Sequence[Event], now_s: float) -> tuple[State, tuple[Command, ...]]:
        self._history = replay(past[self._folded :], self._history)
        self._folded = len(past)
        return begin_with(job, self._history, now_s)


def failures(case: Case) -> Schedule:
    """Random failures at the rates of the case."""
    rng = random.Random(case.seed)
    faults: list[Fault] = []
    nodes = case.nodes + case.spares
    for rate, draw in ((INTERRUPTIONS_A_NODE_S * case.nodes, _one), (1 / SWITCH_EVERY_S, _switch)):
        at_s = rng.expovariate(rate)
        while at_s < case.days * DAY_S:
            faults += draw(rng, round(at_s, 2), nodes)
            at_s += rng.expovariate(rate)
    setup = Setup(
        seed=case.seed,
        nodes=case.nodes,
        spares=case.spares,
        least=case.nodes,
        extra=max(64, case.nodes // 8),
        chunks=NEVER_DONE,
        chunk_s=case.cadence_s + case.stall_s,
        jitter=0.0,
        shared_every=max(1, round(1800.0 / case.cadence_s)),
        reports=1,
        hang_timeout_s=0.0,  # simulated workers report their steps only at saves
    )
    return Schedule(setup, tuple(faults))


def _one(rng: random.Random, at_s: float, nodes: int) -> list[Fault]:
    if rng.random() < NODE_SHARE:
        return [Fault("node_crashes", at_s, node=rng.randrange(nodes), lasts_s=REPAIR_S, flag=rng.choice((0, 1)))]
    return [Fault("worker_fails", at_s, node=rng.randrange(nodes), flag=1)]


def _switch(rng: random.Random, at_s: float, nodes: int) -> list[Fault]:
    first = rng.randrange(max(1, nodes - SWITCH_NODES))
    count = min(SWITCH_NODES, nodes)
    return [Fault("node_crashes", at_s, node=first + index, lasts_s=REPAIR_S, flag=1) for index in range(count)]


def _recoveries(events: list[dict]) -> Iterator[tuple[str, float]]:
    """The rung of each recovery, and the seconds from the fault to the next step."""
    fault_s, rung = None, ""
    for event in events:
        name = event["event"]
        if name == "fault" and fault_s is None:
            fault_s = event["time"] - (event.get("detect") or 0.0)
        elif name == "attempt_start":
            rung = event["rung"]
        elif name == "first_step" and fault_s is not None:
            yield rung, event["time"] - fault_s
            fault_s = None


def _print(results: list[Result]) -> None:
    case = results[0].case
    table = Table(title=f"ETTR of {case.nodes} nodes over {case.days:g} days")
    for name in ("spares", "cadence s", "failures", "requeues", "commits given up s", "ETTR", "run s"):
        table.add_column(name, justify="right")
    costs_s: dict[str, list[float]] = {}
    for result in results:
        table.add_row(
            str(result.case.spares),
            f"{result.case.cadence_s:g}",
            str(result.faults),
            str(len(result.costs_s.get("requeue", ()))),
            f"{result.given_up_s:.0f}",
            f"{result.ettr:.4f}",
            f"{result.took_s:.0f}",
        )
        for rung, found in result.costs_s.items():
            costs_s.setdefault(rung, []).extend(found)
    costs = Table(title="from the fault to the next step")
    for name in ("rung", "recoveries", "median s", "longest s"):
        costs.add_column(name, justify="right")
    for rung, found in sorted(costs_s.items()):
        costs.add_row(rung, str(len(found)), f"{median(found):.1f}", f"{max(found):.1f}")
    Console().print(table, costs)


if __name__ == "__main__":
    sys.exit(main())
