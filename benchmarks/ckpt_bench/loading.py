"""What a load from the node's own memory costs, every byte verified, beside a plain copy and dcp.load."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from ckpt.convert.dcp_safetensors import alone
from ckpt_bench.figures import Figure, median, timed_s
from ckpt_bench.node import BenchNode
from ckpt_bench.plain import MappedCopy


def loads(node: BenchNode, state: dict[str, torch.Tensor], memory: Path, repeat: int) -> list[Figure]:
    """A new attempt each time: nothing of the load before is mapped any more."""
    tensors = list(state.values())
    plain = MappedCopy(memory / "plain", tensors)
    plain.store(tensors)
    with alone():
        dcp.save(state, checkpoint_id=memory / "dcp")
    ours, floor, torchs = [], [], []
    for _ in range(repeat):
        ckpt = node.start()
        _ = ckpt.newest_step  # the agent has started and knows what there is; its start is no part of this
        floor.append(timed_s(lambda: plain.fetch(tensors)))
        with alone():
            torchs.append(timed_s(lambda: dcp.load(dict(state), checkpoint_id=memory / "dcp")))
        ours.append(timed_s(lambda ckpt=ckpt: ckpt.load(dict(state))))  # type: ignore[misc]
        node.wait_for_memory()
    (memory / "plain").unlink()
    shutil.rmtree(memory / "dcp")
    peers = {"plain copy from mapped memory": median(floor), "dcp.load from /dev/shm": median(torchs)}
    return [Figure(name="load() from own memory", value=median(ours), unit="s", peers=peers)]
