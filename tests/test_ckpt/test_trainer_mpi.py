"""Two nodes, real agents over MPI: what one lost comes back from the other, and parts cross nodes when ranks change."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from mpi_kit import mpirun
from trainer_kit import checkpointer

from ckpt import Checkpointer
from ckpt.agent.process.launch import command, environment
from ckpt.config import CheckpointConfig, Place
from ckpt.format.boxes import Box
from ckpt.worker.placement import Piece

SECTION = {"namespace": "ns", "memory": {"every_steps": 1, "keep": 2}, "redundancy": {"scheme": "partner"}}


class Nodes:
    """Attempts over named nodes; the workers all live in this process."""

    def __init__(self, path: Path, first_attempt: int = 0) -> None:
        self.path = path
        self.program = command()
        self.attempt = first_attempt - 1
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *nodes: str) -> list[Checkpointer]:
        self.stop()
        self.attempt += 1
        programs = []
        for node in nodes:
            (self.path / node).mkdir(mode=0o700, exist_ok=True)
            programs.append([f"HOLDFAST_NODE={node}", f"HOLDFAST_RAM_DIR={self.path / node}", *self.program])
        env = {
            **os.environ,
            **environment(loopback=True),
            "HOLDFAST_RUN_ID": "run",
            "HOLDFAST_ATTEMPT": str(self.attempt),
            "HOLDFAST_NODES": ",".join(nodes),
            "HOLDFAST_RANKS_PER_NODE": "1",
            "HOLDFAST_CHECKPOINT": json.dumps(SECTION),
        }
        with open(self.path / f"agents-{self.attempt}.log", "wb") as log:
            self.process = subprocess.Popen(
                mpirun(*programs) if len(programs) > 1 else ["env", *programs[0]],
                env=env, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        config = CheckpointConfig.from_mapping(SECTION)
        return [
            checkpointer(
                Place(
                    run_id="run", attempt=self.attempt, node=node, nodes=nodes, ranks_per_node=1,
                    ram_dir=self.path / node,
                ),
                config, rank=rank,
            )
            for rank, node in enumerate(nodes)
        ]  # fmt: skip

    def stop(self) -> None:
        """Kills mpirun and the agents, as the loss of all processes would."""
        if self.process:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            for pid in agents_of(self.path):
                os.kill(pid, signal.SIGKILL)
            self.process = None


def agents_of(path: Path, node: str = "") -> list[int]:
    """Processes whose memory directory is a node's under a path; any node's without a name."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            directories = [
                word for word in (entry / "environ").read_bytes().split(b"\0") if b"HOLDFAST_RAM_DIR=" in word
            ]
            wanted = f"HOLDFAST_RAM_DIR={path}/{node}".encode()
            if any(word == wanted if node else word.startswith(wanted) for word in directories):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path)
    yield nodes
    nodes.stop()


def halves(step: int) -> list[Piece]:
    """A tensor of several blocks, its rows split between two ranks."""
    whole = torch.arange(6 * 700_000, dtype=torch.float32).reshape(6, 700_000) + step
    return [
        Piece(key="w", data=whole[3 * rank : 3 * rank + 3], shape=(6, 700_000), box=Box((3 * rank, 0), (3, 700_000)))
        for rank in range(2)
    ]


def close_all(ckpts: list[Checkpointer]) -> None:
    with ExitStack() as stack:
        for ckpt in ckpts:
            stack.callback(ckpt.close)


def test_a_lost_node_and_a_smaller_world_are_served_from_memory(nodes: Nodes) -> None:
    def state(rank: int, fill: float) -> dict[str, Any]:
        return {"x": torch.full((2_000_000,), fill), "rank": rank}

    ckpts = nodes.start("n0", "n1")
    for rank, ckpt in enumerate(ckpts):
        ckpt.save(1, state(rank, 10.0 + rank))
    close_all(ckpts)

    nodes.stop()
    shutil.rmtree(nodes.path / "n1")
    ckpts = nodes.start("n0", "n2")  # a spare in place of the lost node
    for rank, ckpt in enumerate(ckpts):
        live = state(-1, 0.0)
        assert ckpt.load(live) == 1
        assert live["rank"] == rank and live["x"].eq(10.0 + rank).all()
    for rank, ckpt in enumerate(ckpts):
        ckpt._engine.save_pieces(
            2, [halves(2)[rank]], {"#dcp": {"objects": [["rank", rank]], "mappings": {}}}, flush=False
        )
    close_all(ckpts)

    # One node remains: its own half and the copy of the other's make the whole.
    nodes.stop()
    (ckpt,) = nodes.start("n2")
    live = {"w": torch.zeros(6, 700_000)}
    with pytest.warns(UserWarning, match="single process"):
        dcp.load(live, storage_reader=ckpt.dcp_reader())
    assert torch.equal(live["w"], torch.cat([piece.data for piece in halves(2)]))
    ckpt.close()


def test_parts_of_a_tensor_are_fetched_from_the_node_that_has_them(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SECTION, "redundancy", {"scheme": "none"})
    ckpts = nodes.start("n0", "n1")
    for rank, ckpt in enumerate(ckpts):
        ckpt._engine.save_pieces(1, [halves(1)[rank]], {"#dcp": {"objects": [], "mappings": {}}}, flush=False)
    close_all(ckpts)
    ckpts = nodes.start("n1", "n0")  # the ranks have changed places
    for rank, ckpt in enumerate(ckpts):
        live = {"w": torch.zeros(6, 700_000)}
        with pytest.warns(UserWarning, match="single process"):
            dcp.load(live, storage_reader=ckpt.dcp_reader(1))
        assert torch.equal(live["w"], torch.cat([piece.data for piece in halves(1)])), rank
    close_all(ckpts)
