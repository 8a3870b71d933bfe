"""Three elastic jobs of two teams fight for seven nodes of a real Slurm, among urgent jobs and faults; with a verdict.

    python tests/chaos/elastic_fight.py [--minutes 10] [--seed 1]

Each job's weights are compared with those of an undisturbed run. Only if a node or a process was killed shortly before,
a stop may lose its save, and a fault may be of another kind than expected. No base is ever preempted. At the end idle
nodes are used, and no booster is left. Exit code 1 if something is wrong; then the jobs' folders and the cluster's logs
are kept. Needs root and Slurm.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "flows"))

from broken_job import SCRIPT
from elastic_job import ElasticJob, urgent
from main_job import Event
from site_conf import site_conf
from slurm_kit import HOLDFAST, scheduler_view

from slurm.command import CommandError
from slurm.testbed import TestCluster

PARTITIONS = "\nPartitionName=".join(
    (
        "DEFAULT  PreemptMode=OFF",
        "vision   Nodes=n[1-4] PriorityTier=10",
        "language Nodes=n[5-7] PriorityTier=10",
        "train    Nodes=ALL Default=YES PriorityTier=5",
        "boost    Nodes=ALL PriorityTier=0 PreemptMode=REQUEUE GraceTime=30",
    )
)
EXPECTED_FAULTS = {"node_lost", "runner_lost", "preempted", "process_exit", "start_timeout", "booster_start"}
UNSAVED = "ranks ended in the stop without the save"
EXCUSED_S = 60.0  # after a kill: a node that crashed has to boot, and its job to be requeued
CALM_S = 240.0  # in which idle nodes are used again
MOST_IDLE = 1  # Slurm keeps one for a booster of two nodes


class Fight:
    """The jobs, what is done to them, and what has to be undone.

    Args:
        cluster: seven nodes, in partitions of two teams.
        seed: of all choices.
    """

    def __init__(self, cluster: Any, seed: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.kills_s: list[float] = []
        self.down: set[str] = set()
        self.undo: list[tuple[float, Callable[[], object]]] = []
        self.jobs = {
            "va": self._job("va", "vision", nodes=2, min_nodes=1, max_nodes=4),
            "vb": self._job("vb", "vision", nodes=1, min_nodes=1, max_nodes=3),
            "lc": self._job("lc", "language", nodes=1, min_nodes=1, max_nodes=3, sizes=[1, 3]),
        }
        self.actions: dict[Callable[[], bool], int] = {
            self.send_urgent: 10,
            self.scale: 5,
            self.end_booster: 3,
            self.requeue: 2,
            self.drain: 1,
            self.crash: 1,
            self.kill_controller: 1,
            self.close_boost: 1,
        }

    def _job(self, name: str, partition: str, **elastic: Any) -> ElasticJob:
        nodes = elastic.pop("nodes")
        return ElasticJob(
            self.cluster,
            self.cluster.home / name,
            nodes=nodes,
            slurm={"partition": partition},
            args=("--pace-s", "0.15"),
            scaling_timeout_s=3,
            scale_up_snooze_s=5,
            **elastic,
        )

    def run(self, seconds: float) -> None:
        """Act at random until the time is over, then undo everything."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            action = self.rng.choices([*self.actions], [*self.actions.values()])[0]
            try:
                if action():
                    self.done[action.__name__] += 1
            except CommandError as error:  # a controller that was killed, or a job that has just ended
                print(f"{action.__name__}: {error}", file=sys.stderr)
            time.sleep(self.rng.uniform(2.0, 9.0))
            self._undo_due(time.monotonic())
        self._undo_due(float("inf"))

    def _undo_due(self, now_s: float) -> None:
        due = [each for each in self.undo if each[0] <= now_s]
        self.undo = [each for each in self.undo if each[0] > now_s]
        for _, action in due:
            action()

    def _later(self, least_s: float, most_s: float, action: Callable[[], object]) -> None:
        self.undo.append((time.monotonic() + self.rng.uniform(least_s, most_s), action))

    def _slurm(self, *argv: str) -> str:
        return str(self.cluster.run_on_node(self._a_node(), list(argv), check=False).stdout)

    def _a_node(self) -> str:
        """A node that is up; commands of the controller's user run there."""
        return next(node for node in self.cluster.nodes if node not in self.down)

    # What is done

    def send_urgent(self) -> bool:
        partition, most = self.rng.choice((("vision", 2), ("language", 2)))
        number = urgent(self.cluster, self.rng.randint(1, most), partition=partition)
        self._later(4.0, 25.0, lambda: self.cluster.run_as_user(["scancel", number], check=False))
        return True

    def scale(self) -> bool:
        name, sizes = self.rng.choice((("va", "1234"), ("vb", "123"), ("lc", "13")))
        size = self.rng.choice((*sizes, "auto", "auto"))
        self.cluster.run_as_user([*HOLDFAST, "scale", self.jobs[name].job_id, size], timeout_s=60)
        return True

    def end_booster(self) -> bool:
        running = [number for job in self.jobs.values() for number in job.boosters("RUNNING")]
        if not running:
            return False
        signal = self.rng.choice(([], ["--signal=KILL"]))
        self.kills_s.append(time.time())
        self.cluster.run_as_user(["scancel", *signal, self.rng.choice(running)], check=False)
        return True

    def requeue(self) -> bool:
        job = self.rng.choice([*self.jobs.values()])
        self.cluster.run_as_user(["scontrol", "requeue", job.job_id], check=False)
        return True

    def drain(self) -> bool:
        node = self.rng.choice(self.cluster.nodes)
        self._slurm("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=fight")
        self._later(5.0, 15.0, lambda: self._slurm("scontrol", "update", f"NodeName={node}", "State=RESUME"))
        return True

    def crash(self) -> bool:
        if self.down:
            return False
        node = self.rng.choice(self.cluster.nodes)
        self.kills_s.append(time.time())
        self.cluster.crash_node(node)
        self.down = {node}

        def restart() -> None:
            self.cluster.restart_node(node)
            self.down = set()

        self._later(5.0, 15.0, restart)
        return True

    def kill_controller(self) -> bool:
        self.cluster.kill_daemon("ctl")
        self.cluster.start_daemon("ctl")
        return True

    def close_boost(self) -> bool:
        self._slurm("scontrol", "update", "PartitionName=boost", "State=DOWN")
        self._later(5.0, 20.0, lambda: self._slurm("scontrol", "update", "PartitionName=boost", "State=UP"))
        return True

    # The verdict

    def wrongs(self, reference: Any) -> Iterator[str]:
        """What went wrong. Ends the jobs."""
        idle = self._idle_after_calm()
        if idle > MOST_IDLE:
            yield f"{idle} nodes were idle {CALM_S:g} s after the fight, and boosters waited"
        for name, job in self.jobs.items():
            yield from (f"{name}: {wrong}" for wrong in self._wrongs_of(job.watch.events()))
            try:
                job.finish(reference)
                job.watch.until(lambda job=job: None if job.boosters() else True, 60, "end of its boosters")
            except (AssertionError, pytest.fail.Exception) as error:
                yield f"{name}: {str(error)[:2000]}"

    def _idle_after_calm(self) -> int:
        deadline_s, idle = time.monotonic() + CALM_S, len(self.cluster.nodes)
        for job in self.jobs.values():
            self.cluster.run_as_user([*HOLDFAST, "scale", job.job_id, "auto"], timeout_s=60)
        while idle > MOST_IDLE and time.monotonic() < deadline_s:
            time.sleep(1.0)
            said = self._slurm("sinfo", "-h", "-N", "-p", "train", "-t", "idle", "-o", "%N")
            idle = len(said.split())
        return idle

    def _wrongs_of(self, events: list[Event]) -> Iterator[str]:
        for event in events:
            is_odd = event["event"] == "fault" and event["kind"] not in EXPECTED_FAULTS
            if is_odd and not self._is_excused(event):
                yield f"fault {event['kind']}: {event.get('reason')}"
            elif event["event"] == "stop_requested" and event.get("reason") == "preempted":
                yield "its base was preempted"
            elif event["event"] == "problem" and event["what"].startswith(UNSAVED) and not self._is_excused(event):
                yield f"{event['what']} at {event['time']}"
            elif event["event"] == "job_end":
                yield f"it ended: {event.get('outcome')}: {event.get('reason')}"

    def _is_excused(self, event: Event) -> bool:
        return any(0.0 <= event["time"] - killed_s <= EXCUSED_S for killed_s in self.kills_s)

    def table(self) -> Table:
        table = Table(title=", ".join(f"{count} {name}" for name, count in sorted(self.done.items())))
        for heading in ("job", "step", "attempts", "resizes", "boosters", "starts", "faults", "unsaved stops"):
            table.add_column(heading)
        for name, job in self.jobs.items():
            events = job.watch.events()
            count = Counter(event["event"] for event in events)
            faults = Counter(event["kind"] for event in events if event["event"] == "fault")
            unsaved = sum(event["event"] == "problem" and event["what"].startswith(UNSAVED) for event in events)
            step = max((event["step"] for event in events if event["event"] == "commit"), default=0)
            shown = ", ".join(f"{number} {kind}" for kind, number in faults.items())
            numbers = (step, *(count[kind] for kind in ("attempt_start", "resize", "booster_asked", "job_start")))
            table.add_row(name, *map(str, numbers), shown, str(unsaved))
        return table


@contextmanager
def reference_run() -> Iterator[Any]:
    """Step -> digest of the weights in a run that nothing interrupts."""
    from conftest import Reference

    argv = [sys.executable, str(SCRIPT), "--reference"]
    pipe, env = subprocess.PIPE, os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=env) as run:
        try:
            yield Reference(run)
        finally:
            run.terminate()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    console = Console()
    cluster = TestCluster.up(f"fight-{os.getpid()}", nodes=7)
    try:
        with site_conf(cluster, PartitionName=PARTITIONS), reference_run() as reference:
            fight = Fight(cluster, given.seed)
            fight.run(given.minutes * 60.0)
            wrongs = [*fight.wrongs(reference)]
            console.print(fight.table())
            for wrong in wrongs:
                console.print(f"wrong: {wrong}", markup=False)
            if wrongs:
                kept = Path(tempfile.mkdtemp(prefix="holdfast-fight-"))
                shutil.copytree(cluster.home, kept / "home", symlinks=True, ignore_dangling_symlinks=True)
                shutil.copytree(cluster.log_dir, kept / "logs")
                console.print(f"kept in {kept}\n{scheduler_view(cluster)}")
            return 1 if wrongs else 0
    finally:
        cluster.down()


if __name__ == "__main__":
    sys.exit(main())
