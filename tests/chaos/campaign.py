"""A chaos campaign: random faults into jobs on a real Slurm, and a verdict for each.

    python tests/chaos/campaign.py [--rounds 50] [--seed 1] [--hooks] [--load N] [--only NAME] [--json]

Every round starts a job on a 6-node cluster, injects 2 to 7 faults of the catalogue, lets the job end, and compares
its weights with those of an undisturbed run. A seed repeats all choices; `--round K` repeats one round of it. A round
that is not ok leaves its job folder and the cluster's logs. Exit code 1 where a round is wrong. Needs root and Slurm.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "flows"))

from broken_job import EVERY, SCRIPT, BrokenJob
from catalogue import CATALOGUE, Injection, NotInjected, drawable
from jobs import JOBS, Kind
from s3_on_cluster import ClusterS3
from verdict import OK, WRONG, Cost, Injected, Round, away_at_cancel, costs

from slurm.hostlist import expand
from slurm.testbed import TestbedError, TestCluster

NODES = 6  # a job asks for five at most: Slurm itself may drain one
# Slurm takes up to two minutes for a requeue; torch is loaded in two where other campaigns keep the cores busy
SETTLE_S = 360.0
KEEP_S = 60.0  # for which hooks keep memory for a requeue: longer than one takes
LEFTOVER_S = KEEP_S + 30.0
SHARE_MIB = 512


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--round", type=int, help="only this round of the seed")
    parser.add_argument("--hooks", action="store_true", help="Slurm calls the project's hooks")
    parser.add_argument("--load", type=int, default=0, metavar="N", help="N processes that only compute")
    parser.add_argument("--only", action="append", metavar="FAULT", help="only this fault; may be given again")
    parser.add_argument("--job", choices=sorted(JOBS), help="only this kind of job")
    parser.add_argument(
        "--keep", type=Path, default=Path("chaos-failures"), help="where failed rounds leave their logs"
    )
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each round")
    args = parser.parse_args()
    if unknown := set(args.only or ()) - set(CATALOGUE):
        parser.error(f"--only: no fault {', '.join(sorted(unknown))}; there are: {'; '.join(CATALOGUE)}")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what it started ends with it
    try:
        with share() as path, load(args.load):
            return run(args, path)
    except TestbedError as error:
        print(f"chaos: needs a real Slurm: {error}", file=sys.stderr)
        return 1


def run(args: argparse.Namespace, path: Path) -> int:
    """All rounds; returns the exit code."""
    cluster = TestCluster.up(f"chaos-{os.getpid()}", nodes=NODES, hooks=args.hooks)
    for node in cluster.nodes if args.hooks else ():
        cluster.set_hooks(node, keep_memory_s=KEEP_S)
    counts: dict[str, int] = defaultdict(int)
    found: list[Cost] = []
    try:
        with reference() as digests:
            for number in [args.round] if args.round is not None else range(args.rounds):
                done, name = one_round(cluster, path, args, number, digests)
                verdict, reason = done.verdict
                counts[verdict] += 1
                of_round = costs(done.events, done.injected)
                found += of_round
                report(args, number, name, done, of_round)
                if verdict != OK:
                    leave(args, cluster, path, number, done, reason)
                shutil.rmtree(path / f"round-{number}", ignore_errors=True)
    finally:
        cluster.down()
        if not args.json:
            Console(width=130).print(table(found, f"seed {args.seed}: {dict(counts)}"))
    return 1 if counts[WRONG] else 0


def one_round(cluster: Any, path: Path, args: argparse.Namespace, number: int, digests: Any) -> tuple[Round, str]:
    """One job, its faults, its end."""
    choose = random.Random(f"{args.seed}/{number}")
    name = args.job or choose.choice(sorted(JOBS))
    kind = JOBS[name]
    cluster.restore(timeout_s=180)
    with contextlib.ExitStack() as stack:
        s3 = stack.enter_context(ClusterS3.running(cluster)) if kind.s3 else None
        folder = path / f"round-{number}"
        job = BrokenJob(cluster, folder, **kind.changes(folder, s3))
        injected: list[Injected] = []
        stood_still = None
        try:
            inject_all(Injection(job=job, random=choose, share=path, folder=folder, s3=s3), kind, args, injected)
            stood_still = ended(job)
        except (Exception, pytest.fail.Exception) as error:
            stood_still = str(error).splitlines()[0] if str(error) else type(error).__name__
        refused = not job.is_over and has_refused_log(job)
        over = job.is_over or refused
        stranded = {note for fault in injected if CATALOGUE[fault.name].strands for note in fault.notes}
        if not args.hooks:
            stranded |= outside(job) | away_at_cancel(job.watch.events())
        left = leftovers(job, stranded) if over else []
        wrong = [step for step, digest in all_digests(job).items() if digests[step] != digest]
        done = Round(
            injected=injected,
            events=job.watch.events(),
            tolerance=kind.tolerance,
            wrong_digests=wrong,
            leftovers=left,
            stood_still=stood_still,
            log_refused=refused,
        )
        return done, name


def inject_all(at: Injection, kind: Kind, args: argparse.Namespace, injected: list[Injected]) -> None:
    """Faults one after another, most of them into a job that trains, some into one that is on its way back."""
    count = at.random.randint(2, 7)
    if kind.redundancy is None:
        at.job.watch.until(lambda: trains(at.job), SETTLE_S, "first step")
    else:
        at.job.settle(SETTLE_S)
    for index in range(count):
        choice = drawable(kind.has, last=index == count - 1)
        if args.only:
            choice = [fault for fault in choice if fault.name in args.only] or choice
        fault = at.random.choice(choice)
        if at.random.random() < 0.7:
            at.job.watch.until(lambda: at.job.is_over or trains(at.job), SETTLE_S, "training before the next fault")
        else:
            time.sleep(at.random.uniform(0.0, 3.0))  # the moment itself is random: nothing is waited for
        if at.job.is_over:
            return
        at.notes.clear()
        begun = time.time()
        try:
            undo = fault.inject(at)
        except NotInjected:
            continue
        entry = Injected(
            name=fault.name,
            kind=fault.kind,
            nodes=fault.nodes,
            ends=fault.ends,
            time=begun,
            until=time.time(),
            notes=tuple(at.notes),
        )
        injected.append(entry)
        if undo is not None:
            time.sleep(at.random.uniform(1.0, 15.0))  # how long the fault lasts
            undo()
            injected[-1] = replace(entry, undone=time.time(), notes=tuple(at.notes))


def trains(job: BrokenJob) -> bool | None:
    """Whether the newest attempt has made steps of its own, by what its script prints: some jobs report no step."""
    events = [event for event in job.watch.events() if event["event"] in ("attempt_start", "attempt_end")]
    if not events or events[-1]["event"] == "attempt_end":
        return None
    log = job.watch.job_dir / "log" / f"attempt-{events[-1]['attempt']}" / "rank-0.log"
    return (log.exists() and " digest " in log.read_text(errors="replace")) or None


def ended(job: BrokenJob) -> str | None:
    """Has the job end; what was waited for in vain, if anything."""
    if not job.is_over:
        job.tell("finish")
        job.watch.wait_for("job_end", SETTLE_S + 60)
    return None


def has_refused_log(job: BrokenJob) -> bool:
    """Whether Slurm has failed the job because it could not open its log."""
    shown = job.cluster.run_as_user(["scontrol", "show", "job", job.job_id], check=False).stdout
    return "JobState=FAILED" in shown and "ExitCode=0:53" in shown


def outside(job: BrokenJob) -> set[str]:
    """Nodes outside of the job's last allocation. After a requeue to other nodes it cannot free its memory there."""
    shown = job.cluster.run_as_user(["scontrol", "show", "job", job.job_id], check=False).stdout
    found = re.search(r"\bNodeList=(n\S+)", shown)
    return set(job.cluster.nodes) - set(expand(found[1])) if found else set()


def leftovers(job: BrokenJob, stranded: Collection[str]) -> list[str]:
    """Processes of the user and memory of the job on the nodes, once they had time to go.

    Args:
        job: that has ended.
        stranded: nodes where its memory may stay.
    """
    processes = f"pgrep -a -u {job.cluster.user}"
    memory = f"ls -d /dev/shm/holdfast-*/*-{job.job_id} 2>/dev/null"
    deadline = time.monotonic() + LEFTOVER_S
    while True:
        job.cluster.run_as_user(["true"])
        found = []
        for node in job.cluster.nodes:
            look = processes if node in stranded else f"{processes}; {memory}"
            said = job.cluster.run_on_node(node, ["sh", "-c", look], check=False).stdout.strip()
            found += [f"{node}: {line[:120]}" for line in said.splitlines()]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


def all_digests(job: BrokenJob) -> dict[int, str]:
    """Step -> digest, as every attempt printed it; a digest that two attempts print differently is kept as printed."""
    found: dict[int, str] = {}
    for log in sorted((job.watch.job_dir / "log").glob("attempt-*/rank-0.log")):
        for line in log.read_text(errors="replace").splitlines():
            words = line.split()
            if len(words) == 4 and words[0] == "step" and words[2] == "digest" and len(words[3]) == 64:
                step = int(words[1])
                if step % EVERY == 0:
                    found[step] = words[3] if found.get(step, words[3]) == words[3] else "printed differently"
    return found


def report(args: argparse.Namespace, number: int, name: str, done: Round, of_round: list[Cost]) -> None:
    verdict, reason = done.verdict
    if args.json:
        faults = [
            {
                "fault": cost.fault.name,
                "kind": cost.fault.kind,
                "at": cost.fault.notes,
                "seconds": cost.seconds,
                "steps": cost.steps,
            }
            for cost in of_round
        ]
        row = {"round": number, "job": name, "verdict": verdict, "reason": reason, "faults": faults}
        print(json.dumps(row), flush=True)
        return
    listed = ", ".join(fault.name for fault in done.injected)
    print(f"round {number:3} {name:10} {verdict:9} {listed}{f'  -- {reason}' if reason else ''}", flush=True)


def leave(args: argparse.Namespace, cluster: Any, path: Path, number: int, done: Round, reason: str) -> None:
    """The job's folder, the machines' logs and the faults of a round that was not ok."""
    target = args.keep / f"seed-{args.seed}-round-{number}"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(path / f"round-{number}", target / "job", ignore=shutil.ignore_patterns("checkpoints"))
    shutil.copytree(cluster.log_dir, target / "cluster")
    facts = {"verdict": done.verdict, "reason": reason, "faults": [fault.__dict__ for fault in done.injected]}
    (target / "round.json").write_text(json.dumps(facts, indent=1, default=str))
    repeat = f"--seed {args.seed} --round {number}"
    print(f"          logs: {target}; again: python tests/chaos/campaign.py {repeat}", flush=True)


def table(found: list[Cost], title: str) -> Table:
    """What each fault cost."""
    rows = Table(
        "fault",
        "kind",
        "injected",
        "interrupted",
        "s to next step, median",
        "worst",
        "steps again, median",
        title=title,
    )
    by_name: dict[str, list[Cost]] = defaultdict(list)
    for cost in found:
        by_name[cost.fault.name].append(cost)
    for name in sorted(by_name, key=lambda name: (CATALOGUE[name].kind, name)):
        all_costs = by_name[name]
        seconds = sorted(cost.seconds for cost in all_costs if cost.seconds is not None)
        steps = sorted(cost.steps for cost in all_costs if cost.steps is not None)
        rows.add_row(
            name,
            CATALOGUE[name].kind,
            str(len(all_costs)),
            str(len(seconds)),
            f"{seconds[len(seconds) // 2]:.1f}" if seconds else "",
            f"{seconds[-1]:.1f}" if seconds else "",
            str(steps[len(steps) // 2]) if steps else "",
        )
    return rows


@contextlib.contextmanager
def share() -> Iterator[Path]:
    """A file system of its own for the job folders: it can be full, read-only or hang without harm to the machine."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-chaos-", dir="/var/tmp"))
    image = path.with_suffix(".img")
    subprocess.run(["truncate", f"--size={SHARE_MIB}M", image], check=True)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, path], check=True)
    path.chmod(0o1777)
    try:
        yield path
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", path], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["umount", "--lazy", path], check=True)
        image.unlink()
        path.rmdir()


@contextlib.contextmanager
def load(count: int) -> Iterator[None]:
    """Processes that only compute; each ends by itself after six hours."""
    argv = ["timeout", "21600", sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(argv) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.terminate()
            process.wait()


class _Reference(dict[int, str]):
    """Step -> digest of the weights of a run that nothing interrupts, as far as somebody has asked."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__()
        self._process = process

    def __missing__(self, step: int) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(step, file=self._process.stdin, flush=True)
        self[step] = self._process.stdout.readline().strip()
        return self[step]


@contextlib.contextmanager
def reference() -> Iterator[dict[int, str]]:
    argv = [sys.executable, str(SCRIPT), "--reference"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        yield _Reference(process)


if __name__ == "__main__":
    sys.exit(main())
