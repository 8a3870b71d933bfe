"""Seconds from a fault to the end of the next step: Holdfast beside torchrun, ft_launcher and torchft.

    python benchmarks/recovery_peers.py [--json] [--rounds 3] [--only NAME ...] [--python PYTHON]

Four nodes with one worker each; each node is a launcher of its own on this machine. All systems train the same model at
the same pace, and all but torchft save every fifth step. In every run first a worker is killed, then a node: its
launcher and its worker at once, never the node with the rendezvous or the lighthouse. Timed is the first step that
began after the fault, by the worker that finishes it first.

Each peer has two rows: as its documentation starts it, and with the time-outs shortened that it lets its users set.

Holdfast     3 nodes and a spare. State in the agents' memory, with a partner's copy.
torchrun     --nnodes=3:4: all four train, and training goes on with three. State in a file in /dev/shm. The file
             outlives the lost node here, as one in a shared file system would.
ft_launcher  The same. Version 0.4.1 fixes the heartbeat of its rendezvous at 5 s, lost after three.
torchft      3 replicas and a spare whose gradients do not count. State from the memory of a live replica.

torchrun comes with torch. The others go into an environment of their own, without Holdfast:

    python -m venv peers && peers/bin/pip install torch==VERSION_OF_THIS_ONE nvidia-resiliency-ext torchft-nightly
    python benchmarks/recovery_peers.py --python peers/bin/python
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from recovery import ROOT, kill_node
from recovery_peers_train import SAVE_EVERY_STEPS, TRAINING_NODES
from rich.console import Console
from rich.table import Table

from holdfast.base.processes import pids_with_environment
from launcher import Executor, JobSpec

SCRIPT = ROOT / "benchmarks" / "recovery_peers_train.py"
FAULTS = ("worker killed", "node lost")
HOLDFAST = "Holdfast"
NODES = tuple(f"node{index}" for index in range(TRAINING_NODES + 1))

_START_TIMEOUT_S, _RECOVERY_TIMEOUT_S, _END_TIMEOUT_S = 180.0, 120.0, 30.0
_SETTLED_STEPS, _SETTLED_S = 40, 8.0  # before a fault: steps since the last one; that long for the spare to come back
_POLL_S = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recovery:
    """What one fault cost."""

    next_step_s: float
    steps_lost: int


class Failed(Exception):
    """A system did not train or did not recover in time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    node: str
    pid: int
    number: int
    begun_s: float
    ended_s: float


class Run:
    """A training run of one system.

    Args:
        steps_dir: where the script logs its steps.
        kill_node: ends all processes of a node.
        nodes_logging: the number of nodes whose workers log steps while all are well.
    """

    def __init__(
        self, steps_dir: Path, kill_node: Callable[[str], object], nodes_logging: int = TRAINING_NODES
    ) -> None:
        self._steps_dir, self._kill_node, self._nodes_logging = steps_dir, kill_node, nodes_logging

    def break_it(self, found: dict[str, Recovery]) -> None:
        """Breaks the run in each way, in turn; fills in what each fault cost.

        Raises:
            Failed: it did not start, or not recover from a fault.
        """
        since_s, timeout_s = time.time(), _START_TIMEOUT_S
        for fault in FAULTS:
            victim = self._wait(partial(self._victim, since_s), timeout_s, f"training before: {fault}")
            broken_s = time.time()
            if fault == FAULTS[0]:
                os.kill(victim.pid, signal.SIGKILL)
            else:
                self._kill_node(victim.node)
            first = self._wait(partial(self._first_since, broken_s), _RECOVERY_TIMEOUT_S, fault)
            reached = max(step.number for step in self._steps() if step.begun_s < broken_s)
            lost = max(reached - first.number + 1, 0)
            found[fault] = Recovery(next_step_s=first.ended_s - broken_s, steps_lost=lost)
            since_s, timeout_s = first.ended_s, _RECOVERY_TIMEOUT_S

    def _victim(self, since_s: float) -> Step | None:
        """A worker's last step, once training has gone on for a while on all nodes."""
        steps = [step for step in self._steps() if step.begun_s > since_s]
        if not steps or time.time() < min(step.ended_s for step in steps) + _SETTLED_S:
            return None
        newest = {step.node: step for step in sorted(steps, key=lambda step: step.ended_s)}
        live = [step for step in newest.values() if step.ended_s > time.time() - 1]
        numbers = [step.number for step in steps]
        if len(live) < self._nodes_logging or max(numbers) - min(numbers) < _SETTLED_STEPS:
            return None
        return min((step for step in live if step.node != NODES[0]), key=lambda step: step.node)

    def _first_since(self, broken_s: float) -> Step | None:
        return min(
            (step for step in self._steps() if step.begun_s > broken_s), key=lambda step: step.ended_s, default=None
        )

    def _steps(self) -> list[Step]:
        found = []
        for log in self._steps_dir.iterdir():
            node, pid = log.name.split("-")
            for line in log.read_text().split("\n")[:-1]:
                number, begun_s, ended_s = line.split()
                step = Step(node=node, pid=int(pid), number=int(number), begun_s=float(begun_s), ended_s=float(ended_s))
                found.append(step)
        return found

    def _wait(self, found: Callable[[], Step | None], timeout_s: float, what: str) -> Step:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if (step := found()) is not None:
                return step
            time.sleep(_POLL_S)
        raise Failed(f"{what}: nothing after {timeout_s:.0f} s")


@dataclasses.dataclass(frozen=True, kw_only=True)
class System:
    """A row of the table: how a system is started; why it cannot be, if it cannot."""

    name: str
    start: Callable[[Path], contextlib.AbstractContextManager[Run]]
    missing: str = ""


def systems(python: str) -> list[System]:
    """Holdfast, and each peer twice. PYTHON has those that torch does not bring."""
    nvrx = "" if has(python, "nvidia_resiliency_ext") else "nvidia-resiliency-ext is not installed"
    torchft = "" if has(python, "torchft") else "torchft-nightly is not installed"
    torchrun_argv = [sys.executable, "-m", "torch.distributed.run"]
    nvrx_argv = [str(Path(python).parent / "ft_launcher"), "--ignore-missing-fault-tol-cfg"]
    # By default torch 2.13 gives the workers of all rounds one store, in which those of the second round find the first
    # round's addresses: gloo's connectFullMesh is refused, and none of them makes a step.
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    last_call = ["last_call_timeout=1"]
    keep_alive = [
        "keep_alive_interval=1",
        "keep_alive_max_attempt=3",
        *last_call,
    ]  # whole seconds; three is the default
    stop = ["--term-timeout=1", "--workers-stop-timeout=1"]
    return [
        System(name=HOLDFAST, start=holdfast),
        System(name="torchrun", start=lambda folder: elastic(folder, torchrun_argv, environment=own_store)),
        System(name="torchrun, shortened", start=lambda folder: elastic(folder, torchrun_argv, keep_alive, own_store)),
        System(name="ft_launcher", start=lambda folder: elastic(folder, nvrx_argv), missing=nvrx),
        System(
            name="ft_launcher, shortened",
            start=lambda folder: elastic(folder, nvrx_argv + stop, last_call),
            missing=nvrx,
        ),
        System(name="torchft", start=lambda folder: replicas(folder, python, []), missing=torchft),
        System(
            name="torchft, shortened",
            start=lambda folder: replicas(folder, python, ["--heartbeat_timeout_ms=1000"]),
            missing=torchft,
        ),
    ]


def has(python: str, module: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", code], check=False, timeout=60).returncode == 0


@contextlib.contextmanager
def holdfast(folder: Path) -> Iterator[Run]:
    """A job on the local cluster."""
    job_file = {
        "name": "recovery-peers",
        "script": str(SCRIPT),
        "args": ["holdfast", str(steps_dir(folder))],
        "nodes": TRAINING_NODES,
        "spares": 1,
        "checkpoint": {"memory": {"every_steps": SAVE_EVERY_STEPS, "keep": 2}, "redundancy": {"scheme": "partner"}},
    }
    job = Executor(folder=folder / "%j", cluster="local").submit(JobSpec.from_mapping(job_file, ROOT, "benchmark"))
    try:
        yield Run(steps_dir(folder), lambda node: kill_node(job.paths.folder, node))
    finally:
        job.cancel()
        job.exception()


@contextlib.contextmanager
def elastic(
    folder: Path,
    launcher: list[str],
    rendezvous: list[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Run]:
    """A torchrun, or what takes its options, on each node. The first one holds the rendezvous."""
    nodes = Launchers(folder)
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir="/dev/shm") as memory, nodes:
        for node in NODES:
            conf = ",".join([*(rendezvous or []), f"is_host={int(node == NODES[0])}"])
            options = [
                f"--nnodes={TRAINING_NODES}:{len(NODES)}",
                "--nproc-per-node=1",
                "--max-restarts=100",
                "--rdzv-backend=c10d",
            ]
            options += [f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=bench", f"--rdzv-conf={conf}"]
            options += ["--local-addr=127.0.0.1", f"--log-dir={folder}/log"]
            script = [str(SCRIPT), "files", str(steps_dir(folder)), f"{memory}/state.pt"]
            nodes.start(node, [*launcher, *options, *script], **(environment or {}))
            if node == NODES[0]:
                wait_for_port(port)
        yield Run(steps_dir(folder), nodes.kill, nodes_logging=len(NODES))


@contextlib.contextmanager
def replicas(folder: Path, python: str, lighthouse: list[str]) -> Iterator[Run]:
    """A lighthouse, and a torchrun for each replica group of one worker."""
    nodes = Launchers(folder)
    port = free_port()
    with nodes:
        options = [f"--min_replicas={TRAINING_NODES}", "--quorum_tick_ms=100", "--join_timeout_ms=10000", *lighthouse]
        nodes.start("lighthouse", [str(Path(python).parent / "torchft_lighthouse"), f"--bind=[::]:{port}", *options])
        wait_for_port(port)
        for node in NODES:
            argv = [python, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=1", "--max-restarts=100"]
            argv += [
                f"--master-port={free_port()}",
                f"--log-dir={folder}/log",
                str(SCRIPT),
                "torchft",
                str(steps_dir(folder)),
            ]
            nodes.start(node, argv, TORCHFT_LIGHTHOUSE=f"http://localhost:{port}")
        yield Run(steps_dir(folder), nodes.kill, nodes_logging=len(NODES))


class Launchers:
    """One launcher for each node; the processes of a node are those with its environment. Ends them all on exit."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run = {"HOLDFAST_BENCH_RUN": uuid.uuid4().hex}
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Launchers:
        return self

    def start(self, node: str, argv: list[str], **environment: str) -> None:
        own = {**self._run, "HOLDFAST_NODE": node, "OMP_NUM_THREADS": "1", **environment}
        with (self._folder / f"{node}.log").open("wb") as log:
            self._started[node] = subprocess.Popen(
                argv, env={**os.environ, **own}, cwd=self._folder, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self, node: str) -> None:
        _kill({**self._run, "HOLDFAST_NODE": node})
        self._started[node].wait(_END_TIMEOUT_S)

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + _END_TIMEOUT_S
        while _kill(self._run) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        for process in self._started.values():
            process.wait(_END_TIMEOUT_S)


def _kill(environment: dict[str, str]) -> bool:
    """SIGKILLs all processes with that environment; whether there were any."""
    pids = pids_with_environment(environment)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(pids)


def steps_dir(folder: Path) -> Path:
    (folder / "steps").mkdir(exist_ok=True)
    return folder / "steps"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_port(port: int) -> None:
    """Raises: Failed: nothing listens in time."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(_POLL_S)
    raise Failed(f"nothing listens on port {port} after {_START_TIMEOUT_S:.0f} s")


def measure(system: System) -> tuple[dict[str, Recovery], str]:
    """One run: what each fault cost, and why it ended early, if it did."""
    found: dict[str, Recovery] = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        try:
            with system.start(folder) as run:
                run.break_it(found)
        except Failed as error:
            for log in sorted(folder.rglob("*.log")):
                lines = log.read_text(errors="replace").splitlines()[-15:]
                print(f"--- {system.name}: {log.name}", *lines, sep="\n", file=sys.stderr)
            return found, str(error)
    return found, ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """All rounds of one system; why some or all of them failed."""

    name: str
    rounds: list[dict[str, Recovery]]
    reason: str

    def next_step_s(self, fault: str) -> float | None:
        values = [recovery.next_step_s for recovery in self.of(fault)]
        return statistics.median(values) if values else None

    def of(self, fault: str) -> list[Recovery]:
        return [found[fault] for found in self.rounds if fault in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print {name: {value, unit, peer, ratio}}")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each system; they alternate")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these peers, by the first word of a row")
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter that has the peers (default: this one)"
    )
    args = parser.parse_args()

    chosen = [
        s for s in systems(args.python) if s.name == HOLDFAST or not args.only or s.name.split(",")[0] in args.only
    ]
    rows = {s.name: Row(name=s.name, rounds=[], reason=s.missing) for s in chosen}
    for _ in range(args.rounds):
        for system in chosen:
            row = rows[system.name]
            if not row.reason:
                found, reason = measure(system)
                rows[system.name] = dataclasses.replace(row, rounds=[*row.rounds, found], reason=reason)
    if args.json:
        print(json.dumps(to_mapping(list(rows.values())), indent=1))
    else:
        Console(width=130).print(table(list(rows.values()), args.rounds))
    return 0


def to_mapping(rows: list[Row]) -> dict[str, Any]:
    """Holdfast's seconds for each fault beside each peer's. The ratio is to the fastest peer."""
    found: dict[str, Any] = {}
    for fault in FAULTS:
        own = rows[0].next_step_s(fault)
        peers = {row.name: row.next_step_s(fault) for row in rows[1:]}
        best = min((value for value in peers.values() if value is not None), default=None)
        ratio = own / best if own is not None and best is not None else None
        found[fault] = {"value": own, "unit": "s", "peer": peers, "ratio": ratio}
        rounds = {row.name: [dataclasses.asdict(one) for one in row.of(fault)] for row in rows}
        found[f"{fault}, details"] = rounds | {f"{row.name}, not measured": row.reason for row in rows if row.reason}
    return found


def table(rows: list[Row], rounds: int) -> Table:
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    title = f"From the fault to the next step; medians of {rounds} ({len(NODES)} nodes,"
    shown = Table(title=f"{title} {os.cpu_count()} cores, load {load})")
    shown.add_column("fault")
    shown.add_column("system")
    for column in ("next step s", "range s", "Holdfast / it", "steps lost"):
        shown.add_column(column, justify="right")
    for fault in FAULTS:
        own = rows[0].next_step_s(fault)
        for row in rows:
            value = row.next_step_s(fault)
            if value is None:
                shown.add_row(fault, row.name, row.reason)
                continue
            found = row.of(fault)
            seconds = [recovery.next_step_s for recovery in found]
            ratio = f"{own / value:.2f}" if own is not None else ""
            lost = statistics.median(recovery.steps_lost for recovery in found)
            name = f"{row.name} ({row.reason})" if row.reason else row.name
            span = f"{min(seconds):.2f} to {max(seconds):.2f}"
            shown.add_row(fault, name, f"{value:.2f}", span, ratio, f"{lost:.0f}")
        shown.add_section()
    return shown


if __name__ == "__main__":
    sys.exit(main())
