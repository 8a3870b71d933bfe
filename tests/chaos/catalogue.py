"""The faults of a chaos campaign. A fault says how it is injected, how it is undone, and what it may cost.

To add one, write a function from an `Injection` to an undo (or None) and register it with `@fault`. The campaign then
draws it. Each fault leaves the job able to go on, unless `ends` names the outcome that must follow.

No fault sets a clock wrong. The nodes share one kernel, and time namespaces shift CLOCK_MONOTONIC and CLOCK_BOOTTIME
alone: CLOCK_REALTIME is the machine's. libfaketime, the other way, breaks torch elastic.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broken_job import BrokenJob
from slurm_kit import job_state
from verdict import MEMORY_DAMAGED, READ_ONLY

from launcher.leadership.terms import newest
from slurm import command
from slurm.hostlist import expand

Undo = Callable[[], object] | None
Inject = Callable[["Injection"], Undo]

PROCESSES = {  # a process of a job -> what pgrep -f finds on its node
    "runner": r"^[^ ]*python[^ ]*( -P)? -m launcher\.runner$",
    "agent": r"^[^ ]*python[^ ]*( -P)? -m ckpt\.agent$",
    "srun": r"^srun .*launcher\.runner",
    "srun of agents": r"^srun .*ckpt\.agent",
    "slurmstepd": r"^slurmstepd: ",
    "batch script": r"launcher[.]submission[.]batch",
}
READ_ONLY_TRIES_S = 10.0
SIGNALS = ("KILL", "STOP", "TERM", "INT", "HUP")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One entry of the catalogue.

    Attributes:
        name: as the table of a campaign has it.
        kind: the group it is counted in.
        inject: does it; returns what undoes it.
        nodes: nodes whose memory it may take.
        ends: the outcome that must follow; None where the job must go on.
        needs: what the job or the cluster must have: "s3", "checkpoint", "spares".
        only_last: whether nothing can be injected after it.
        strands: whether the job's memory may stay on the node: Slurm ends the whole job there and calls no hook, or
            the supervisor cannot reach it as the job ends, and there are no hooks. It is freed before the user's next
            job, or when a hook finds it due.
    """

    name: str
    kind: str
    inject: Inject
    nodes: int = 0
    ends: str | None = None
    needs: frozenset[str] = frozenset()
    only_last: bool = False
    strands: bool = False


@dataclass
class Injection:
    """Where and how one fault is injected: all choices come from `random`, so a seed repeats them."""

    job: BrokenJob
    random: random.Random
    share: Path
    folder: Path
    s3: Any = None
    notes: list[str] = field(default_factory=list)

    @property
    def cluster(self) -> Any:
        return self.job.cluster

    @property
    def nodes(self) -> list[str]:
        """The nodes of the newest attempt, spares last."""
        return [*self.job.attempt["nodes"], *self.job.attempt["spares"]]

    def node(self, *, training: bool | None = None) -> str:
        """A node of the job; with `training`, one that trains, or one that does not where there is one."""
        choice = self.nodes
        if training is not None:
            choice = self.job.attempt["nodes" if training else "spares"] or self.nodes
        chosen = self.random.choice(choice)
        self.notes.append(chosen)
        return chosen

    def run(self, node: str, *argv: str) -> str:
        """A program as root on a node; a program that fails there is no fault of the campaign."""
        return str(self.cluster.run_on_node(node, list(argv), check=False).stdout)

    def host_of(self, process: str) -> str:
        """A node that has this process."""
        term = newest(self.job.watch.job_dir)
        if process in ("srun", "srun of agents", "batch script") and term is not None and term.node is not None:
            self.notes.append(term.node)
            return term.node
        return self.node(training=True)


class NotInjected(Exception):
    """The fault is impossible at this moment."""


CATALOGUE: dict[str, Fault] = {}


def fault(name: str, kind: str, **properties: Any) -> Callable[[Inject], Inject]:
    """Registers an injection."""

    def register(inject: Inject) -> Inject:
        if name in CATALOGUE:
            raise ValueError(f"two faults are called {name!r}")
        needs = frozenset(properties.pop("needs", ()))
        CATALOGUE[name] = Fault(name=name, kind=kind, inject=inject, needs=needs, **properties)
        return inject

    return register


def _signal_process(process: str, signal: str) -> Inject:
    def inject(at: Injection) -> Undo:
        node = at.host_of(process)
        argv = ["pkill", f"-{signal}", "-f", PROCESSES[process]]
        if at.cluster.run_on_node(node, argv, check=False).returncode:
            at.notes.append("no such process there")
        if signal != "STOP":
            return None
        return lambda: at.run(node, "pkill", "-CONT", "-f", PROCESSES[process])

    return inject


def _signal_worker(signal: str) -> Inject:
    def inject(at: Injection) -> Undo:
        rank = at.random.randrange(len(at.job.attempt["nodes"]) * at.job.workers_per_node)
        node = at.job.node_of(rank)
        try:
            pid = at.job.pid_of(rank)
        except (AssertionError, FileNotFoundError):
            raise NotInjected(f"rank {rank} is just being started") from None
        at.notes.append(f"rank {rank} on {node}")
        at.run(node, "kill", f"-{signal}", pid)
        return (lambda: at.run(node, "kill", "-CONT", pid)) if signal == "STOP" else None

    return inject


def _signal_supervisor(signal: str) -> Inject:
    def inject(at: Injection) -> Undo:
        term = newest(at.job.watch.job_dir)
        if term is None or term.node is None:
            return None
        node, pid = term.node, str(term.pid)
        at.notes.append(node)
        at.run(node, "kill", f"-{signal}", pid)
        return (lambda: at.run(node, "kill", "-CONT", pid)) if signal == "STOP" else None

    return inject


for _signal in SIGNALS:
    fault(f"worker SIG{_signal}", "process")(_signal_worker(_signal))
    # A SIGTERM or SIGINT at the supervisor is Slurm's order to stop; a second one would cancel.
    if _signal in ("KILL", "STOP"):
        fault(f"supervisor SIG{_signal}", "process")(_signal_supervisor(_signal))
    for _process in PROCESSES:
        if _process == "batch script" and _signal not in ("KILL", "STOP"):
            continue
        takes = 1 if _process in ("runner", "slurmstepd") else 0
        fault(f"{_process} SIG{_signal}", "process", nodes=takes)(_signal_process(_process, _signal))


@fault("node crashed", "node", nodes=1)
def crash(at: Injection) -> Undo:
    node = at.node()
    at.cluster.crash_node(node)
    return lambda: at.cluster.restart_node(node)


@fault("node rebooted at once", "node", nodes=1)
def reboot(at: Injection) -> Undo:
    node = at.node()
    at.cluster.crash_node(node)
    at.cluster.restart_node(node)
    return None


@fault("node frozen", "node", nodes=1)
def freeze(at: Injection) -> Undo:
    node = at.node()
    at.run(node, "sh", "-c", "kill -STOP -1")
    return lambda: at.run(node, "sh", "-c", "kill -CONT -1")


@fault("node cut off", "network", nodes=1)
def cut(at: Injection) -> Undo:
    node = at.node()
    at.cluster.node_down(node)
    return lambda: at.cluster.node_up(node)


@fault("two nodes cut off", "network", nodes=2)
def cut_two(at: Injection) -> Undo:
    first, second = at.random.sample(at.nodes, 2)
    at.notes += [first, second]
    for node in (first, second):
        at.cluster.node_down(node)

    def undo() -> None:
        for node in (first, second):
            at.cluster.node_up(node)

    return undo


@fault("all nodes cut off", "network")
def cut_all(at: Injection) -> Undo:
    nodes = at.nodes
    for node in nodes:
        at.cluster.node_down(node)

    def undo() -> None:
        for node in nodes:
            at.cluster.node_up(node)

    return undo


def _blackhole(at: Injection, node: str, targets: list[str]) -> Callable[[], object]:
    """What `node` sends to the targets is lost; what they send arrives."""
    addresses = {entry["name"]: entry["address"] for entry in at.cluster.status()["nodes"]}
    for target in targets:
        at.run(node, "ip", "route", "replace", "blackhole", f"{addresses[target]}/32")

    def undo() -> None:
        for target in targets:
            at.run(node, "ip", "route", "del", "blackhole", f"{addresses[target]}/32")

    return undo


@fault("node can receive only", "network", nodes=1)
def cut_sending(at: Injection) -> Undo:
    node = at.node()
    return _blackhole(at, node, [other for other in at.cluster.nodes if other != node])


@fault("node can send only", "network", nodes=1)
def cut_receiving(at: Injection) -> Undo:
    node = at.node()
    undos = [_blackhole(at, other, [node]) for other in at.cluster.nodes if other != node]
    return lambda: [undo() for undo in undos]


@fault("two nodes cannot talk to each other", "network", nodes=1, strands=True)
def cut_pair(at: Injection) -> Undo:
    first, second = at.random.sample(at.nodes, 2)
    at.notes += [first, second]
    undos = [_blackhole(at, first, [second]), _blackhole(at, second, [first])]
    return lambda: [undo() for undo in undos]


@fault("job folder full", "storage")
def fill_share(at: Injection) -> Undo:
    filler = at.share / "filler"
    at.notes.append(str(_fill(filler)))
    return filler.unlink


@fault(READ_ONLY, "storage")
def share_read_only(at: Injection) -> Undo:
    """The kernel refuses it while a file is open for writing."""
    deadline = time.monotonic() + READ_ONLY_TRIES_S
    while True:
        try:
            _on_host("mount", "-o", "remount,ro", str(at.share))
            break
        except command.CommandError as error:
            if time.monotonic() > deadline:
                raise NotInjected(str(error)) from error
    return lambda: _on_host("mount", "-o", "remount,rw", str(at.share))


@fault("job folder hangs", "storage")
def share_hangs(at: Injection) -> Undo:
    _on_host("fsfreeze", "--freeze", str(at.share))
    return lambda: _on_host("fsfreeze", "--unfreeze", str(at.share))


def flip_bits(path: Path, random: random.Random) -> None:
    with path.open("r+b") as file:
        offset = random.randrange(path.stat().st_size)
        (byte,) = os.pread(file.fileno(), 1, offset)
        os.pwrite(file.fileno(), bytes([byte ^ random.randrange(1, 256)]), offset)


def truncate(path: Path, random: random.Random) -> None:
    os.truncate(path, random.randrange(path.stat().st_size))


def delete(path: Path, random: random.Random) -> None:
    path.unlink()


def damage(root: Path, random: random.Random, how: Callable[[Path, random.Random], None]) -> list[str]:
    """Damages up to three files below a folder; returns their names. One that has gone meanwhile needs no damage."""
    found = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    chosen = random.sample(found, min(3, len(found)))
    for path in chosen:
        with contextlib.suppress(FileNotFoundError):
            how(path, random)
    return [path.name for path in chosen]


@fault("shared tier damaged", "storage", needs=["checkpoint"])
def shared_damaged(at: Injection) -> Undo:
    at.notes += damage(at.folder / "checkpoints", at.random, flip_bits)
    return None


def _damage_s3(how: Callable[[Path, random.Random], None]) -> Inject:
    """The server reads the folder at each request: the next one sees the damage."""

    def inject(at: Injection) -> Undo:
        at.notes += damage(at.s3.folder, at.random, how)
        return None

    return inject


fault("S3 objects with flipped bits", "storage", needs=["s3"])(_damage_s3(flip_bits))
fault("S3 objects truncated", "storage", needs=["s3"])(_damage_s3(truncate))
fault("S3 objects deleted", "storage", needs=["s3"])(_damage_s3(delete))


@fault("memory full", "storage")
def memory_full(at: Injection) -> Undo:
    node = at.node(training=True)
    fill = (
        "cd /dev/shm; for i in $(seq 64); do fallocate -l 64M filler.$i 2>/dev/null || break; done;"
        " dd if=/dev/zero of=filler.rest bs=1M count=64 2>/dev/null"
    )
    at.run(node, "sh", "-c", fill)
    return lambda: at.run(node, "sh", "-c", "rm -f /dev/shm/filler.*")


@fault(MEMORY_DAMAGED, "storage", nodes=1, needs=["checkpoint"])
def memory_damaged(at: Injection) -> Undo:
    node = at.node(training=True)
    damage = (
        "for f in /dev/shm/holdfast-*/*/*; do [ -f $f ] && [ -s $f ] &&"
        " printf '\\377\\000\\377' | dd of=$f bs=1 seek=4096 conv=notrunc 2>/dev/null; done"
    )
    at.run(node, "sh", "-c", damage)
    return None


@fault("memory directory removed", "storage", nodes=1, needs=["checkpoint"])
def memory_removed(at: Injection) -> Undo:
    node = at.node(training=True)
    at.run(node, "sh", "-c", f"rm -rf /dev/shm/holdfast-*/*-{at.job.job_id}")
    return None


@fault("S3 killed", "storage", needs=["s3"])
def s3_killed(at: Injection) -> Undo:
    at.s3.stop()
    return at.s3.start


@fault("S3 hangs", "storage", needs=["s3"])
def s3_hangs(at: Injection) -> Undo:
    at.s3.freeze()
    return at.s3.thaw


@fault("slurmctld killed", "slurm")
def controller_killed(at: Injection) -> Undo:
    at.cluster.kill_daemon("ctl")
    return lambda: at.cluster.start_daemon("ctl")


@fault("slurmctld hangs", "slurm")
def controller_hangs(at: Injection) -> Undo:
    at.cluster.freeze_daemon("ctl")
    return lambda: at.cluster.thaw_daemon("ctl")


@fault("slurmd killed", "slurm")
def slurmd_killed(at: Injection) -> Undo:
    node = at.node()
    at.cluster.kill_daemon(node)
    return lambda: at.cluster.start_daemon(node)


@fault("slurmd hangs", "slurm")
def slurmd_hangs(at: Injection) -> Undo:
    node = at.node()
    at.cluster.freeze_daemon(node)
    return lambda: at.cluster.thaw_daemon(node)


def _as_root(at: Injection, *argv: str) -> None:
    at.run(at.cluster.nodes[0], *argv)


@fault("requeue", "slurm")
def requeue(at: Injection) -> Undo:
    at.cluster.run_as_user(["scontrol", "requeue", at.job.job_id], check=False)
    return None


@fault("requeue and hold", "slurm")
def hold(at: Injection) -> Undo:
    at.cluster.run_as_user(["scontrol", "requeuehold", at.job.job_id], check=False)
    return lambda: at.cluster.run_as_user(["scontrol", "release", at.job.job_id], check=False)


@fault("preempted by an urgent job", "slurm")
def preempt(at: Injection) -> Undo:
    """An urgent job takes all nodes that Slurm has not drained."""
    states = at.cluster.run_as_user(["sinfo", "--noheader", "--Node", "--partition=urgent", "--format=%t"], check=False)
    nodes = sum(state.rstrip("*") in ("idle", "alloc", "mix", "comp") for state in states.stdout.split())
    argv = ["sbatch", "--parsable", "--partition=urgent", "--exclusive", f"--nodes={nodes}", "--wrap"]
    urgent = at.cluster.run_as_user([*argv, "sleep 60", "--output=/dev/null"], check=False).stdout.strip()
    at.job.watch.until(lambda: job_state(at.cluster, urgent) != "PENDING" or None, 60, "start of the urgent job")
    return lambda: at.cluster.run_as_user(["scancel", urgent], check=False)


@fault("shrunk by Slurm", "slurm", nodes=1, needs=["spares"])
def shrink(at: Injection) -> Undo:
    """One node leaves the allocation. Nodes that are out stay in it: the job still frees their memory at its end."""
    taken = at.random.choice(at.nodes[1:])
    at.notes.append(taken)
    of_job = at.cluster.run_as_user(["squeue", "--noheader", f"--jobs={at.job.job_id}", "--format=%N"], check=False)
    kept = [node for node in expand(of_job.stdout.strip()) if node != taken]
    update = ["scontrol", "update", f"JobId={at.job.job_id}", f"NodeList={','.join(kept)}"]
    at.cluster.run_as_user(update, check=False)
    return None


@fault("node drained", "slurm")
def drain(at: Injection) -> Undo:
    node = at.node()
    _as_root(at, "scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=chaos Port=1 State=DOWN")
    return lambda: _as_root(at, "scontrol", "update", f"NodeName={node}", "State=RESUME")


@fault("node set DOWN", "slurm", nodes=1, strands=True)
def set_down(at: Injection) -> Undo:
    node = at.node()
    _as_root(at, "scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=chaos")
    return lambda: _as_root(at, "scontrol", "update", f"NodeName={node}", "State=RESUME")


@fault("time limit near", "slurm")
def time_limit(at: Injection) -> Undo:
    _as_root(at, "scontrol", "update", f"JobId={at.job.job_id}", "TimeLimit=3:00")
    return lambda: _as_root(at, "scontrol", "update", f"JobId={at.job.job_id}", "TimeLimit=120:00")


@fault("scancel the runners' step", "slurm")
def cancel_step(at: Injection) -> Undo:
    at.cluster.run_as_user(["scancel", f"{at.job.job_id}.0"], check=False)
    return None


def _scancel_signal(signal: str) -> Inject:
    def inject(at: Injection) -> Undo:
        try:
            at.cluster.run_as_user(["scancel", f"--signal={signal}", at.job.job_id], check=False)
        except command.CommandError as error:  # scancel tries again for more than a minute while the job is completing
            raise NotInjected from error
        return None

    return inject


for _signal in ("TERM", "INT", "HUP", "USR1", "USR2"):
    fault(f"scancel --signal={_signal}", "slurm")(_scancel_signal(_signal))


@fault("scancel", "slurm", ends="cancelled", only_last=True)
def scancel(at: Injection) -> Undo:
    at.cluster.run_as_user(["scancel", at.job.job_id], check=False)
    return None


def _limit(process: str, resource: str, value: str) -> Inject:
    def inject(at: Injection) -> Undo:
        node = at.node(training=True)
        limit = f"for p in $(pgrep -f '{PROCESSES[process]}'); do prlimit --pid $p --{resource}={value}; done"
        at.run(node, "sh", "-c", limit)
        restore = limit.replace(f"={value}", "=1048576" if resource == "nofile" else "=unlimited")
        return lambda: at.run(node, "sh", "-c", restore)

    return inject


fault("runner without descriptors", "limits")(_limit("runner", "nofile", "16:1048576"))
fault("agent without descriptors", "limits")(_limit("agent", "nofile", "16:1048576"))
fault("agent without memory", "limits")(_limit("agent", "as", "1000000:unlimited"))
fault("agent with a file size limit", "limits")(_limit("agent", "fsize", "4096:unlimited"))


@fault("environment gone on a node", "environment")
def environment_gone(at: Injection) -> Undo:
    node = at.node()
    site = str(Path(sys.prefix) / "lib")
    at.run(node, "mount", "-t", "tmpfs", "tmpfs", site)
    return lambda: at.run(node, "umount", "--lazy", site)


def _fill(path: Path) -> int:
    written = 0
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                written += file.write(bytes(1 << 20))
        except OSError:  # no space left: that is the fault
            return written


def _on_host(*argv: str) -> None:
    command.run(argv, timeout_s=60)


def drawable(has: Mapping[str, bool], last: bool) -> list[Fault]:
    """The faults that this job can be given."""
    usable = (entry for entry in CATALOGUE.values() if all(has.get(need) for need in entry.needs))
    return [entry for entry in usable if last or not entry.only_last]
