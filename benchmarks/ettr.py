"""Effective training time ratio of a large job by its number of spares and the cadence of its saves, simulated.

The simulator of tests/simulation runs the real decision core for `--days` of a job of `--nodes` nodes. Failures come at
the rate of Llama 3's training (419 interruptions in 54 days on 16,384 GPUs, so 2,048 nodes), split as its authors do:
about three in four cost a node, the others a process. Every so often a switch takes `SWITCH_NODES` nodes at once. A
node is repaired after some hours and is Slurm's again. ETTR is the time of the steps that were kept over all time.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

from plot import line_chart
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]  # tests/launcher would stand for launcher otherwise

from simulation.schedule import Fault, Schedule, Setup  # noqa: E402
from simulation.training import CHUNK_STEPS  # noqa: E402
from simulation.world import World  # noqa: E402

DAY_S = 86_400.0
INTERRUPTIONS_A_NODE_S = 419 / (54 * DAY_S * 2048)
NODE_SHARE = 0.75
SWITCH_EVERY_S = 30 * DAY_S  # of the whole job
SWITCH_NODES = 16
REPAIR_S = 4 * 3600.0
NEVER_DONE = 10**7


def main() -> int:
    parser = argparse.ArgumentParser(prog="ettr", description=__doc__)
    parser.add_argument("--nodes", type=int, default=2048)
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--spares", type=int, nargs="+", default=[0, 4, 16, 32])
    parser.add_argument("--cadence", type=float, nargs="+", default=[60.0, 300.0, 1800.0], help="seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.svg", help="draw ETTR by cadence, a line for each number of spares"
    )
    given = parser.parse_args()
    lines: dict[str, list[tuple[float, float]]] = {}
    table = Table(title=f"ETTR of {given.nodes} nodes over {given.days:g} days")
    for name in ("spares", "cadence s", "failures", "requeues", "committed steps lost s", "ETTR", "run s"):
        table.add_column(name, justify="right")
    for spares in given.spares:
        for cadence_s in given.cadence:
            ettr, row = _row(given.nodes, given.days, spares, cadence_s, given.seed)
            table.add_row(*row)
            lines.setdefault(f"{spares} spares", []).append((cadence_s, ettr))
            print(*row, flush=True)
    Console().print(table)
    if given.plot is not None:
        title = f"{given.nodes} nodes, {given.days:g} days, Llama 3's rate of failures"
        line_chart(given.plot, lines, title=title, x_label="seconds between saves", y_label="ETTR", is_log_x=True)
    return 0


def _row(nodes: int, days: float, spares: int, cadence_s: float, seed: int) -> tuple[float, list[str]]:
    begun_s = time.monotonic()
    schedule = failures(nodes, days, spares, cadence_s, seed)
    world = World(schedule, checks=False)
    world.start()
    end_s = days * DAY_S
    world.clock.run(end_s, lambda: world.outcome is not None)
    if world.outcome is not None:
        raise SystemExit(f"the job ended at {world.clock.now:.0f} s: {world.outcome}")
    kept_s = world.invariants.newest_step / CHUNK_STEPS * cadence_s
    requeues = world.rungs["requeue"]
    ettr = kept_s / end_s
    row = [
        str(spares),
        f"{cadence_s:g}",
        str(len(world.injected)),
        str(requeues),
        f"{world.lost_steps / CHUNK_STEPS * cadence_s:.0f}",
        f"{ettr:.4f}",
        f"{time.monotonic() - begun_s:.0f}",
    ]
    return ettr, row


def failures(nodes: int, days: float, spares: int, cadence_s: float, seed: int) -> Schedule:
    """Failures from rates."""
    rng = random.Random(seed)
    faults: list[Fault] = []
    for rate, draw in ((INTERRUPTIONS_A_NODE_S * nodes, _one), (1 / SWITCH_EVERY_S, _switch)):
        at_s = rng.expovariate(rate)
        while at_s < days * DAY_S:
            faults += draw(rng, round(at_s, 2), nodes + spares)
            at_s += rng.expovariate(rate)
    setup = Setup(
        seed=seed,
        nodes=nodes,
        spares=spares,
        least=nodes,
        extra=max(64, nodes // 8),
        chunks=NEVER_DONE,
        chunk_s=cadence_s,
        jitter=0.0,
        shared_every=max(1, round(1800.0 / cadence_s)),
        reports=1,
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


if __name__ == "__main__":
    sys.exit(main())
