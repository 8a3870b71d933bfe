"""Slows one rank of some down by a fifth, again and again, and shows whether it is named, as what, and how soon.

    chrt -f 5 python benchmarks/stragglers.py [--rounds 100] [--quiet-steps 10000] [--step-ms 50]
    python benchmarks/stragglers.py --ranks 4 --burn 0.2 --kinds quota nice stream    (as root)
    unshare -n chrt -f 5 python benchmarks/stragglers.py --kinds network --quiet-steps 0    (as root)

`chrt` (root) lets them run in time where other work fills the machine. Quotas and niceness have no effect on such
processes; where they are tried, a cgroup lets the ranks go before other work.

The ranks are real processes on gloo, measured and read as in a job. They sleep for most of a step, so that eight of
them fit on two cores: 60 % of the step in compute, 20 % in a DataLoader, the rest in all_reduces. The slowdowns are
those of benchmarks/slowdowns.py. Then steps without a slowdown count false alarms, and one process shows the cost of
the measurement.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from slowdowns import KINDS, NEED_GROUPS, PARTS, UNNAMED, Controls, CpuGroups, Slowdowns, prepare_network, sent_bytes

from launcher.diagnosis.slow_rank import FIRST, SlowNetwork, SlowRanks, Straggler
from launcher.runner.port import free_port
from launcher.runner.step_times import StepReader

FACTOR, STEPS = 1.1, 50  # the job file's defaults
SLOWER = 1.2
LIMIT = 50  # steps within which the rank is to be named
_POLL_S = 0.05


def train(rank: int, step_s: float, burnt_s: float, controls: Controls) -> None:
    """One rank: steps until it is killed."""
    from launcher.runner.step_hooks import measure_steps

    measure_steps()
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, IterableDataset

    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    class Samples(IterableDataset):
        def __iter__(self) -> Iterator[torch.Tensor]:
            while True:
                time.sleep(0.2 * step_s + controls.get(rank)[0])
                yield torch.ones(64)

    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in DataLoader(Samples()):
        time.sleep(0.6 * step_s - burnt_s + controls.get(rank)[1])
        until_s = time.thread_time() + burnt_s
        while time.thread_time() < until_s:
            pass
        model(batch).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()


class Job:
    """The ranks, read as the runner and the supervisor do."""

    def __init__(self, folder: Path, ranks: int, step_s: float, burn: float, *, has_groups: bool) -> None:
        controls = Controls(folder / "controls", ranks)
        self.ranks = ranks
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
        common |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
        self.processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    __file__,
                    "--rank",
                    str(rank),
                    "--folder",
                    str(folder),
                    "--step-ms",
                    f"{1e3 * step_s}",
                    "--burn",
                    str(burn),
                ],
                env=os.environ | common | {"RANK": str(rank)},
            )
            for rank in range(ranks)
        ]
        self._groups = CpuGroups(ranks) if has_groups else None
        pids = [process.pid for process in self.processes]
        if self._groups is not None:
            for rank, pid in enumerate(pids):
                self._groups.add(rank, pid)
        self.slowdowns = Slowdowns(controls, self._groups, pids, burn * step_s, 0.8 * step_s)
        self._readers = [StepReader(rank, process.pid, 5) for rank, process in enumerate(self.processes)]
        self._slow_ranks = SlowRanks(factor=FACTOR, steps=STEPS)
        self.step = 0
        self.work_s: dict[int, list[float]] = {rank: [] for rank in range(ranks)}  # of each rank's steps, by reports

    def passes(self, until: Callable[[list[Straggler], list[str]], bool], steps: int) -> bool:
        """Follows the ranks until something is found. False after this number of steps of rank 0 without it."""
        last = self.step + steps
        while self.step < last:
            if any(process.poll() is not None for process in self.processes):
                raise RuntimeError("a rank has ended; its error is above")
            for rank, reader in enumerate(self._readers):
                if (times := reader.take()) is not None:
                    self._slow_ranks.add(f"n{rank}", times, time.monotonic())
                    self.step += times.steps if rank == 0 else 0
                    self.work_s[rank].append(times.work_s)
            if until(*self._slow_ranks.look()):
                return True
            time.sleep(_POLL_S)
        return False

    @property
    def network(self) -> SlowNetwork | None:
        return self._slow_ranks.network

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        if self._groups is not None:
            self._groups.close()


def rounds(job: Job, count: int, kinds: list[str]) -> None:
    """Prints the table of the slowdowns."""
    results = defaultdict[str, list[tuple[bool, bool, int, float, float]]](list)
    job.passes(lambda *_: False, 2 * STEPS)
    if "network" in kinds:
        begun, before_bytes, begun_s = job.step, sent_bytes(), time.monotonic()
        job.passes(lambda *_: False, (FIRST + 1) * STEPS)  # the first steps, with which later ones are compared
        passed, work_s = job.step - begun, median(median(each) for each in job.work_s.values())
        job.slowdowns.bytes_a_step = (sent_bytes() - before_bytes) / passed
        job.slowdowns.exchange_s = (time.monotonic() - begun_s) / passed - work_s
    for number in range(count):
        kind, rank = kinds[number % len(kinds)], number * 5 % job.ranks
        found: list[Straggler] = []

        def named(new: list[Straggler], over: list[str], found: list[Straggler] = found) -> bool:
            found += new
            return bool(found or job.network)

        begun = job.step
        all_s = median(median(each[-5:]) for each in job.work_s.values())
        before = {each: len(reports) for each, reports in job.work_s.items()}
        end = job.slowdowns.begin(kind, rank, all_s, (SLOWER - 1.0) * all_s)
        job.passes(named, LIMIT)
        now = {each: median(reports[before[each] :] or reports) for each, reports in job.work_s.items()}
        slower = now.pop(rank) / median(now.values())
        end()
        took = job.step - begun
        right = not found if kind in UNNAMED else bool(found) and found[0].rank == rank
        right = right and (job.network is not None) is (kind == "network")
        part = bool(found) and right and found[0].part == PARTS.get(kind, "compute")
        told = found[0].factor if found else job.network.factor if job.network else 0.0
        results[kind].append((right, part, took, told if right else 0.0, slower))
        job.passes(lambda new, over, rank=rank: f"n{rank}" in over, 2 * STEPS)  # type: ignore[misc]
        job.passes(lambda *_: False, STEPS)  # until no step of this round is looked at any more
        named_s = f"{found[:1]} {job.network or ''}"
        print(f"# {number} {kind} rank {rank}: {named_s} after {took} steps", file=sys.stderr)
    print("| slowdown | slower, median | rounds | right | part right | steps, median | steps, most | factor, median |")
    print("|---|---|---|---|---|---|---|---|")
    for kind, each in results.items():
        good = [row for row in each if row[0]]
        _, parts, steps, factors, _ = zip(*(good or [(False, False, 0, 0.0, 0.0)]), strict=True)
        slower = median(row[4] for row in each)
        cells = [kind, f"{slower:.2f}", len(each), len(good), sum(parts)]
        cells += [f"{median(steps):.0f}", max(steps), f"{median(factors):.2f}"]
        print(f"| {' | '.join(map(str, cells))} |")


def quiet(job: Job, steps: int) -> None:
    """Counts alarms in steps without a slowdown."""
    alarms: list[Straggler | SlowNetwork] = []

    def note(new: list[Straggler], over: list[str]) -> bool:
        alarms.extend([*new, *filter(None, [job.network])])
        return False

    job.passes(note, steps)
    print(f"\nfalse alarms in {steps} steps without a slowdown: {len(alarms)} {alarms}")


def overhead(collectives: int = 20, steps: int = 2000) -> None:
    """Prints the processor time of a step, with and without the measurement."""
    import torch
    import torch.distributed as dist

    from holdfast.base import sections
    from launcher.runner.step_hooks import measure_steps

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group("gloo")
    model, value = torch.nn.Linear(4, 4), torch.ones(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step_us() -> float:
        begun_s = time.thread_time()
        for _ in range(steps):
            model(value).sum().backward()
            for _ in range(collectives):
                dist.all_reduce(value)
            optimizer.step()
        return (time.thread_time() - begun_s) / steps * 1e6

    def section_us() -> float:
        section = sections.by_name["data"]
        begun_s = time.thread_time()
        for _ in range(100_000):
            with section:
                pass
        return (time.thread_time() - begun_s) / 100_000 * 1e6

    step_us()
    unused_us, without_us = min(section_us() for _ in range(3)), min(step_us() for _ in range(3))
    measure_steps()
    used_us, with_us = min(section_us() for _ in range(3)), min(step_us() for _ in range(3))
    more_us = with_us - without_us
    print(f"\na step with {collectives} collectives: {more_us:.0f} us more, {more_us / 1e5:.3%} of 100 ms")
    print(f"a section: {unused_us:.2f} us if nothing is measured, {used_us:.2f} us else")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--quiet-steps", type=int, default=10_000)
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--burn", type=float, default=0.02, help="share of a step on the processor")
    parser.add_argument("--kinds", nargs="+", default=["loader", "compute"], choices=KINDS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        step_s = args.step_ms / 1e3
        return train(args.rank, step_s, args.burn * step_s, Controls(args.folder / "controls", args.ranks))
    if "network" in args.kinds:
        prepare_network()
    with tempfile.TemporaryDirectory() as folder:
        has_groups = any(kind in NEED_GROUPS for kind in args.kinds)
        job = Job(Path(folder), args.ranks, args.step_ms / 1e3, args.burn, has_groups=has_groups)
        try:
            if args.rounds:
                rounds(job, args.rounds, args.kinds)
            if args.quiet_steps:
                quiet(job, args.quiet_steps)
        finally:
            job.close()
    overhead()


if __name__ == "__main__":
    main()
