"""One node with its own agent, for one benchmark."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from ckpt.agent.process.launch import command
from ckpt.agent.rpc.client import Monitor
from ckpt.checkpointer import Checkpointer
from ckpt.config import CheckpointConfig, Place, environment_of
from ckpt.errors import AgentError
from ckpt.worker.slots import GROW_THREAD

_ANSWER_S = 120.0
_LOOKS, _BETWEEN_LOOKS_S = 20, 0.05
FLUSH_EVERY = 1_000_000  # steps between flushes; benchmarks that measure no flush save no such step


class BenchNode:
    """Starts an agent and a Checkpointer for each attempt. The memory directory stays between attempts, as in a job."""

    def __init__(self, ram_dir: Path, storage: Path) -> None:
        """
        Args:
            ram_dir: the memory directory.
            storage: the directory for the tier below memory.
        """
        self._ram_dir = ram_dir
        self._storage = storage
        self._attempt = -1
        self._agent: subprocess.Popen[bytes] | None = None
        self._checkpointer: Checkpointer | None = None
        self._monitor: Monitor | None = None

    def start(self, tier: str = "shared") -> Checkpointer:
        """Start a new attempt with one tier below memory: "shared" or "nvme"."""
        self.close()
        self._attempt += 1
        place = Place(
            run_id="bench", attempt=self._attempt, node="bench", nodes=("bench",), ranks_per_node=1,
            ram_dir=self._ram_dir,
        )  # fmt: skip
        section = {
            "namespace": "bench", "memory": {"every_steps": 1},
            tier: {"path": str(self._storage / tier), "every_steps": FLUSH_EVERY, "keep": 1},
        }  # fmt: skip
        environment = os.environ | environment_of(place, CheckpointConfig.from_mapping(section))
        with open(self._ram_dir.parent / "agent.log", "ab") as output:
            self._agent = subprocess.Popen(command(), env=environment, stderr=output)
        self._monitor = Monitor.connect(self._ram_dir, self._attempt, _ANSWER_S)
        self._checkpointer = Checkpointer.from_env(environment | {"RANK": "0", "LOCAL_RANK": "0"})
        return self._checkpointer

    def wait_for(self, tier: str, step: int) -> dict[str, Any]:
        """Wait until a step is committed in a tier; returns the agent's event. Raises AgentError at the deadline."""
        deadline = time.monotonic() + _ANSWER_S
        while self._monitor and (event := self._monitor.receive(max(0.0, deadline - time.monotonic()))) is not None:
            if event["event"] == "problem":
                raise AgentError(f"benchmark: {event['what']}: {event['detail']}")
            if event["event"] == "commit" and (event["tier"], event["step"]) == (tier, step):
                return event
        raise AgentError(f"benchmark: step {step} has not reached {tier} within {_ANSWER_S:g} s")

    def wait_for_memory(self) -> None:
        """Wait until the slots that a load prepares in the background are ready."""
        for thread in threading.enumerate():
            if thread.name == GROW_THREAD:
                thread.join(_ANSWER_S)

    def footprint(self) -> dict[str, tuple[float, str]]:
        """Memory and descriptors of this process, the agent and the memory directory, each with its unit."""
        found: dict[str, tuple[float, str]] = {}
        for name, pid in (("worker", os.getpid()), ("agent", self._agent.pid if self._agent else 0)):
            found[f"{name}, own memory"] = _private_mib(pid), "MiB"
            found[f"{name}, descriptors"] = _lasting_descriptors(pid), ""
        files = (path.stat() for path in self._ram_dir.iterdir() if path.is_file())
        return {**found, "memory directory": (sum(status.st_blocks for status in files) / 2048, "MiB")}

    def close(self) -> None:
        """End the attempt. The memory directory stays."""
        if self._checkpointer:
            self._checkpointer.close()
            self._checkpointer = None
        if self._monitor:
            self._monitor.shutdown()
            self._monitor.close()
            self._monitor = None
        if self._agent:
            self._agent.wait(_ANSWER_S)
            self._agent = None


def _lasting_descriptors(pid: int) -> int:
    """How many descriptors a process has open at each of some looks. A commit that has just been reported may still
    have others open for a moment."""
    looks = [{*os.listdir(f"/proc/{pid}/fd")}]
    while len(looks) < _LOOKS:
        time.sleep(_BETWEEN_LOOKS_S)
        looks.append({*os.listdir(f"/proc/{pid}/fd")})
    return len(set.intersection(*looks))


def _private_mib(pid: int) -> float:
    """Resident memory without the shared slots, which the memory directory counts."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssFile")) / 1024
