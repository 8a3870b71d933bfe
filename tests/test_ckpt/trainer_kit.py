"""What the trainer side's tests share: a node with real agents, and processes that need not import torch anew."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ckpt import Checkpointer
from ckpt.agent.process.launch import command
from ckpt.config import CheckpointConfig, Place
from ckpt.timeouts import WorkerDeadlines
from ckpt.worker.engine import Engine
from ckpt.worker.link import Identity

LIMIT_S = 60
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["torch", "torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict", "ckpt"])

FAST = WorkerDeadlines(connect_s=20, plan_s=20, open_s=20, slot_s=0.2, gate_s=20, saves_s=20)


def checkpointer(place: Place, config: CheckpointConfig, *, rank: int = 0, local_rank: int = 0, **options: Any) -> Any:
    """A Checkpointer of one rank among those of a test process; options are Engine's."""
    identity = Identity(rank=rank, local_rank=local_rank)
    return Checkpointer._around(Engine(place, config, identity, **{"deadlines": FAST, **options}))


class Node:
    """One node with real agents, one for each attempt."""

    def __init__(self, path: Path, **section: Any) -> None:
        self.ram_dir = path / "ram"
        self.ram_dir.mkdir(mode=0o700)
        self.shared = path / "shared"
        self.section = {"namespace": "ns", "memory": {"every_steps": 1, "keep": 2}, **section}
        self.attempt = -1
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def place(self) -> Place:
        return Place(
            run_id="run", attempt=self.attempt, node="n0", nodes=("n0",), ranks_per_node=1, ram_dir=self.ram_dir
        )

    def start(self, **options: Any) -> Checkpointer:
        """A new attempt: its agent, and the worker's Checkpointer."""
        self.attempt += 1
        self.start_agent(generation=0)
        return self.checkpointer(**options)

    def checkpointer(self, **options: Any) -> Checkpointer:
        """A worker's of this attempt."""
        config = CheckpointConfig.from_mapping(self.section)
        return checkpointer(self.place, config, **options)

    def start_agent(self, generation: int) -> None:
        """This attempt's agent; above generation 0 one that takes the place of another."""
        self.stop()
        environment = {
            **os.environ,
            "HOLDFAST_RUN_ID": "run",
            "HOLDFAST_ATTEMPT": str(self.attempt),
            "HOLDFAST_GENERATION": str(generation),
            "HOLDFAST_NODE": "n0",
            "HOLDFAST_NODES": "n0",
            "HOLDFAST_RANKS_PER_NODE": str(self.place.ranks_per_node),
            "HOLDFAST_RAM_DIR": str(self.ram_dir),
            "HOLDFAST_CHECKPOINT": json.dumps(self.section),
        }
        self.process = subprocess.Popen(command(), env=environment, stderr=subprocess.DEVNULL)

    def stop(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None


def settle(ckpt: Checkpointer) -> None:
    """Waits until no save is in flight: at the speed of these tests a later one might outrun it."""
    ckpt._engine.connect().await_saves()


@contextmanager
def solo_namespace() -> Iterator[str]:
    """A namespace for runs without a launcher, and no memory left behind."""
    namespace = f"test-{os.getpid()}-{time.monotonic_ns()}"
    yield namespace
    for path in solo_directories(namespace):
        shutil.rmtree(path)


def solo_directories(namespace: str) -> list[Path]:
    """The memory directories of runs without a launcher."""
    return list(Path(f"/dev/shm/holdfast-{os.getuid()}").glob(f"solo-{namespace}-*"))
