"""A job on a real Slurm that trains until it is told to end, to be broken in every way; and how it came back."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from main_job import Event
from slurm_kit import submit, write_job

from launcher.history.recovery import Recovery, recoveries

SCRIPT = Path(__file__).with_name("steady.py")
IN_PROTECT = Path(__file__).with_name("in_protect.py")
EVERY = 10  # steps between two saves in memory
HANG_S = 6.0
RECOVERY_S = 90.0  # longer than any recovery takes on a machine that does much else

Digests = Mapping[int, str]


@dataclass(frozen=True, kw_only=True)
class Comeback:
    """What followed a fault: the fault as recorded, the newest step committed in memory by then, and the way back."""

    fault: Event
    committed: int
    recovery: Recovery

    @property
    def lost_nothing_committed(self) -> bool:
        return self.committed <= (self.recovery.step_resumed or 0) <= self.recovery.step_lost


class BrokenJob:
    """A running job.

    Args:
        cluster: where it runs.
        folder: the user's own, on a file system that the nodes share; made anew.
        changes: of the job file: 2 nodes, 2 workers on each, 1 spare, partner copies every 10 steps. None leaves a
            key out.
        tiers: more tiers of its checkpoint.
        flags: further flags of `holdfast submit`.
    """

    def __init__(
        self, cluster: Any, folder: Path, *flags: str, tiers: Mapping[str, Any] | None = None, **changes: Any
    ) -> None:
        checkpoint = {
            "namespace": folder.name,
            "memory": {"every_steps": EVERY, "keep": 2},
            "redundancy": {"scheme": "partner"},
            "shared": {"path": "checkpoints", "every_steps": 50, "keep": 2},
        }
        job = {
            "name": folder.name,
            "script": str(SCRIPT),
            "nodes": 2,
            "spares": 1,
            "workers_per_node": 2,
            "restart": {"hang_timeout_s": HANG_S},
            "checkpoint": checkpoint | dict(tiers or {}),
        } | changes
        self.cluster = cluster
        self.workers_per_node = 2 if job["workers_per_node"] is None else job["workers_per_node"]
        job = {key: value for key, value in job.items() if value is not None}
        self.submitted_at = time.time()
        self.job_id, self.watch = submit(cluster, write_job(cluster, folder, job), *flags)

    @property
    def attempt(self) -> Event:
        """The newest attempt's start."""
        return self.watch.events("attempt_start")[-1]

    @property
    def is_over(self) -> bool:
        return bool(self.watch.events("job_end"))

    def settle(self, timeout_s: float = RECOVERY_S) -> int:
        """Waits until the newest attempt trains and has committed a step of its own; returns that step."""
        return self.watch.until(self._committed, timeout_s, "commit of the newest attempt")

    def recover(self, break_it: Callable[[], object]) -> Comeback:
        """Breaks the job and waits until it trains again."""
        before = len(self.watch.events())
        broken_at = time.time()
        break_it()
        self.watch.until(lambda: self._again(before), RECOVERY_S, "step after the fault")
        events = self.watch.events()
        index = next(i for i, event in enumerate(events) if event["event"] == "fault" and i >= before)
        commits = [
            event["step"] for event in events[:index] if event["event"] == "commit" and event["tier"] == "memory"
        ]
        (recovery, *_) = recoveries(events[before:], {events[index]["node"] or "": broken_at})
        return Comeback(fault=events[index], committed=max(commits), recovery=recovery)

    def node_of(self, rank: int) -> str:
        return self.attempt["nodes"][rank // self.workers_per_node]

    def pid_of(self, rank: int, what: str = "pid") -> str:
        """Pid of a rank of the newest attempt, or of its runner, in the pid namespace of its node."""
        log = self.watch.job_dir / "log" / f"attempt-{self.attempt['attempt']}" / f"rank-{rank}.log"
        found = re.search(rf"\b{what} (\d+)", log.read_text())
        assert found, self.watch.story()
        return found[1]

    def signal(self, name: str, *ranks: int) -> None:
        """Signals ranks of one node at once."""
        pids = [self.pid_of(rank) for rank in ranks]
        self.cluster.run_on_node(self.node_of(ranks[0]), ["kill", f"-{name}", *pids])

    def kill_runner(self, node: str) -> None:
        """Kills a node's runner alone: not srun, which names it too, nor the warm process, which the kernel ends."""
        self.cluster.run_on_node(node, ["pkill", "-KILL", "-f", r"^[^ ]*python[^ ]*( -P)? -m launcher\.runner$"])

    def lose_agent(self, node: str, *, in_protect: bool = False) -> int:
        """Kills a node's checkpoint agent, on demand in the middle of a save's redundancy.

        Returns:
            The first step that other agents, in its place, have committed.
        """
        attempt = self.attempt["attempt"]
        if in_protect:
            self.kill_agent_in_protect(node)
        else:
            self.cluster.run_on_node(node, ["pkill", "-KILL", "-f", r"^[^ ]*python[^ ]*( -P)? -m ckpt\.agent$"])
        back = self.watch.wait_for("agents_back", RECOVERY_S, attempt=attempt)
        last = max(event["step"] for event in self.watch.events("commit") if event["time"] <= back["time"])
        committed = lambda step: step > last  # noqa: E731
        return int(self.watch.wait_for("commit", RECOVERY_S, attempt=attempt, tier="memory", step=committed)["step"])

    def kill_agent_in_protect(self, node: str) -> None:
        """Kills a node's checkpoint agent in the middle of a save's redundancy."""
        (ram_dir,) = self.cluster.run_on_node(node, ["sh", "-c", f"echo {self._ram_dir}"]).stdout.split()
        pid = self.watch.until(lambda: self.agent_of(node, in_mpi=True), RECOVERY_S, f"agent on {node}")
        self.cluster.run_on_node(node, [sys.executable, str(IN_PROTECT), pid, ram_dir])

    @property
    def _ram_dir(self) -> str:
        """The job's memory directory on a node, as a shell finds it."""
        return f"/dev/shm/holdfast-*/*-{self.job_id}"

    @contextmanager
    def agent_held_back(self, node: str) -> Iterator[None]:
        """The next checkpoint agent of a node waits meanwhile, before it starts MPI: its memory is locked."""
        lock = f"{self._ram_dir}/agent.lock"
        hold = ["sh", "-c", f"flock --no-fork {lock} sleep 600 >/dev/null 2>&1 & echo $!"]
        pid = self.cluster.run_on_node(node, hold).stdout.strip()
        try:
            yield
        finally:
            self.cluster.run_on_node(node, ["kill", "-KILL", pid])

    def agent_of(self, node: str, *, in_mpi: bool) -> str | None:
        """Pid of the newest attempt's agent in the pid namespace of its node, once it runs; or has its memory
        directory, which is what it waits for before it starts MPI."""
        agents = r"pgrep -f '^[^ ]*python[^ ]*( -P)? -m ckpt\.agent$'"
        newest = f"grep -qzx HOLDFAST_ATTEMPT={self.attempt['attempt']} /proc/$pid/environ"
        locked = ' && grep -q "FLOCK .* $pid " /proc/locks' if in_mpi else ""
        look = f"for pid in $({agents}); do {newest}{locked} && echo $pid; done"
        return self.cluster.run_on_node(node, ["sh", "-c", look], check=False).stdout.strip() or None

    def wait_until_gone(self, node: str, pid: str) -> None:
        """Waits until a process of a node has ended."""
        look = ["test", "-d", f"/proc/{pid}"]
        gone = lambda: self.cluster.run_on_node(node, look, check=False).returncode != 0 or None  # noqa: E731
        self.watch.until(gone, 30, f"end of process {pid} on {node}")

    def saves(self, rank: int, times: int) -> None:
        """Waits for saves of a rank in its node's memory, by the records there: needs neither events nor logs."""
        records = f"cat {self._ram_dir}/own-{rank % self.workers_per_node}-*.json"

        def read() -> str:
            return self.cluster.run_on_node(self.node_of(rank), ["sh", "-c", records], check=False).stdout

        seen = {read()}
        self.watch.until(lambda: seen.add(read()) or len(seen) > times or None, RECOVERY_S, f"{times} saves")

    def tell(self, order: str) -> None:
        """Puts an order for the script into the job's folder."""
        (self.watch.job_dir / order).touch()

    def set_time_limit(self, limit_s: int) -> None:
        """As an admin: users can only lower it. Slurm refuses for a moment while it requeues the job."""
        update = ["scontrol", "update", f"JobId={self.job_id}", f"TimeLimit={limit_s // 60}:{limit_s % 60:02}"]
        on = self.attempt["nodes"][0]
        taken = lambda: self.cluster.run_on_node(on, update, check=False).returncode == 0 or None  # noqa: E731
        self.watch.until(taken, 30, f"time limit of {limit_s} s")

    def finish(self, reference: Digests) -> None:
        """Has the job end, and checks that it ended well and with the weights of a run that nothing interrupts."""
        self.tell("finish")
        self.watch.wait_for("job_end", RECOVERY_S)
        assert self.watch.events("job_end")[-1]["outcome"] == "done", self.watch.story()
        result = self.watch.job_dir / "result.json"
        self.watch.until(lambda: result.exists() or None, 10, "result")
        assert json.loads(result.read_text())["exit_code"] == 0
        self.check_digests(reference)

    def digests(self) -> dict[int, str]:
        """Step -> digest of the weights, as far as the newest attempt has come."""
        log = self.watch.job_dir / "log" / f"attempt-{self.attempt['attempt']}" / "rank-0.log"
        found = re.findall(r"^step (\d+) digest ([0-9a-f]{64})$", log.read_text(), re.MULTILINE)
        return {int(step): digest for step, digest in found}

    def trains_to(self, step: int) -> None:
        """Waits until the newest attempt has come that far, saved or not."""
        self.watch.until(lambda: max(self.digests(), default=0) >= step or None, RECOVERY_S, f"step {step}")

    def check_digests(self, reference: Digests) -> None:
        """Every digest that the newest attempt printed is that of a run that nothing interrupts."""
        found = self.digests()
        assert found, self.watch.story()
        wrong = [step for step, digest in found.items() if reference[step] != digest]
        assert not wrong, f"weights differ from the uninterrupted run's at steps {wrong[:5]}\n{self.watch.story()}"

    def _committed(self) -> int | None:
        events = self.watch.events()
        starts = [index for index, event in enumerate(events) if event["event"] == "attempt_start"]
        newest = events[starts[-1] :] if starts else []
        first = next((e["step"] for e in newest if e["event"] == "first_step"), None)
        if first is None:
            return None
        commits = (e["step"] for e in newest if e["event"] == "commit" and e["tier"] == "memory")
        return next((step for step in commits if step > first), None)

    def _again(self, before: int) -> bool | None:
        events = self.watch.events()[before:]
        faults = [index for index, event in enumerate(events) if event["event"] == "fault"]
        return True if faults and any(e["event"] == "first_step" for e in events[faults[0] :]) else None
