"""`make simulate N=1000000 [SEED=0]`: schedules on all cores, a table of what they met, and each failure explained."""

from __future__ import annotations

import argparse
import os
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from simulation.campaign import Tally, explain, run_on_all_cores, run_one
from simulation.schedule import draw

SHOWN = 3  # failures of each rule


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=20_000, help="how many schedules")
    parser.add_argument("--seed", type=int, default=0, help="the first schedule's seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument(
        "--trace", type=int, metavar="SEED", help="show what happens in one schedule, shrunk if it fails"
    )
    given = parser.parse_args()
    if given.trace is not None:
        return _trace(given.trace)
    tally = _run(given.count, given.seed, given.jobs)
    for failure in _shown(tally):
        print(f"\n{'=' * 100}\n{explain(failure)}")
    return 1 if tally.failures else 0


def _run(count: int, seed: int, jobs: int) -> Tally:
    tally, begun_s = Tally(), time.monotonic()
    console = Console(stderr=True)
    columns = (
        TextColumn("schedules"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[found]}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=count, found="nothing found")
        for done in run_on_all_cores(count, seed, jobs):
            tally.add(done)
            found = f"{len(tally.failures)} failed" if tally.failures else "nothing found"
            progress.update(task, completed=tally.schedules, found=found)
    _print(tally, time.monotonic() - begun_s, seed)
    return tally


def _print(tally: Tally, took_s: float, seed: int) -> None:
    table = Table(title=f"{tally.schedules} schedules from seed {seed}")
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("schedules a second", f"{tally.schedules / took_s:.0f}")
    table.add_row("decisions", str(tally.decisions))
    table.add_row("worst recovery, simulated", f"{tally.worst_recovery_s:.0f} s (seed {tally.worst_seed})")
    for title, counts in (("rung", tally.rungs), ("outcome", tally.outcomes), ("fault", tally.faults)):
        table.add_section()
        for name, number in counts.most_common():
            table.add_row(f"{title} {name}", str(number))
    table.add_section()
    table.add_row("failed", str(len(tally.failures)))
    Console().print(table)


def _shown(tally: Tally) -> list:
    shown: dict[str, list] = {}
    for failure in sorted(tally.failures, key=lambda failure: len(failure.schedule.faults)):
        shown.setdefault(failure.rule, []).append(failure)
    for rule, failures in shown.items():
        print(f"{len(failures)} x {rule}: seeds {', '.join(str(failure.seed) for failure in failures[:20])}")
    return [failure for failures in shown.values() for failure in failures[:SHOWN]]


def _trace(seed: int) -> int:
    from simulation.trace import Trace

    schedule, trace = draw(seed), Trace()
    failure = run_one(schedule, trace=trace, seed=seed)
    print(f"{schedule}\n\n{trace}" if failure is None else explain(failure))
    return 0 if failure is None else 1


if __name__ == "__main__":
    sys.exit(main())
