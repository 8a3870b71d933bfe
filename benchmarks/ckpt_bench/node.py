"""One node with an agent of its own, for one benchmark."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckpt.agent.process.launch import command
from ckpt.agent.rpc.client import Monitor
from ckpt.checkpointer import Checkpointer
from ckpt.config import Place
from ckpt.errors import AgentError
from ckpt.worker.session import GROW_THREAD

_ANSWER_S = 120.0
FLUSH_EVERY = 1_000_000  # no step of the other parts is a multiple


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What a process and the memory directory hold at one moment."""

    worker_mib: float
    worker_descriptors: int
    agent_mib: float
    agent_descriptors: int
    shm_mib: float


class BenchNode:
    """Starts an agent and a Checkpointer for each attempt; memory stays from one to the next, as in a real run."""

    def __init__(self, ram_dir: Path, storage: Path) -> None:
        self._ram_dir = ram_dir
        self._storage = storage
        self._attempt = -1
        self._agent: subprocess.Popen[bytes] | None = None
        self._checkpointer: Checkpointer | None = None
        self._monitor: Monitor | None = None

    def start(self, tier: str = "shared") -> Checkpointer:
        """A new attempt, with one tier below memory: "shared" or "nvme"."""
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
        environment = {
            **os.environ,
            "HOLDFAST_RUN_ID": place.run_id, "HOLDFAST_ATTEMPT": str(place.attempt), "HOLDFAST_NODE": place.node,
            "HOLDFAST_NODES": place.node, "HOLDFAST_RANKS_PER_NODE": "1", "HOLDFAST_RAM_DIR": str(place.ram_dir),
            "HOLDFAST_CHECKPOINT": json.dumps(section),
        }  # fmt: skip
        with open(self._ram_dir.parent / "agent.log", "ab") as output:
            self._agent = subprocess.Popen(command(), env=environment, stderr=output)
        self._monitor = Monitor.connect(self._ram_dir, self._attempt, _ANSWER_S)
        self._checkpointer = Checkpointer.from_env(environment | {"RANK": "0", "LOCAL_RANK": "0"})
        return self._checkpointer

    def wait_for(self, tier: str, step: int) -> dict[str, Any]:
        """The event of a step's commit in a tier."""
        deadline = time.monotonic() + _ANSWER_S
        while self._monitor and (event := self._monitor.receive(max(0.0, deadline - time.monotonic()))) is not None:
            if event["event"] == "problem":
                raise AgentError(f"benchmark: {event['what']}: {event['detail']}")
            if event["event"] == "commit" and (event["tier"], event["step"]) == (tier, step):
                return event
        raise AgentError(f"benchmark: step {step} has not reached {tier} within {_ANSWER_S:g} s")

    def wait_for_memory(self) -> None:
        """Until the slots are there that a load has asked for in the background."""
        for thread in threading.enumerate():
            if thread.name == GROW_THREAD:
                thread.join(_ANSWER_S)

    def footprint(self) -> Footprint:
        agent = self._agent.pid if self._agent else 0
        files = (path.stat() for path in self._ram_dir.iterdir() if path.is_file())
        return Footprint(
            worker_mib=_private_mib(os.getpid()),
            worker_descriptors=_descriptors(os.getpid()),
            agent_mib=_private_mib(agent),
            agent_descriptors=_descriptors(agent),
            shm_mib=sum(status.st_blocks for status in files) / 2048,
        )

    def close(self) -> None:
        """Ends the attempt; the memory stays."""
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


def _private_mib(pid: int) -> float:
    """Resident memory without the shared slots, which count as shm."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssFile")) / 1024


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
