"""The time of a load from the node's own memory, beside a plain copy and torch's ways to load."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from ckpt.convert.dcp_safetensors import alone
from ckpt.format.checksums import checksums
from ckpt_bench.figures import Figure, medians, timed_s
from ckpt_bench.node import BenchNode
from ckpt_bench.peers import DLROVER, Dlrover
from ckpt_bench.plain import MappedCopy


def loads(node: BenchNode, state: dict[str, torch.Tensor], memory: Path, repeat: int, dlrover: Dlrover) -> list[Figure]:
    """Each repeat is a new attempt, so that no memory is mapped from an earlier load. Holdfast verifies every byte."""
    tensors, file = list(state.values()), memory / "torch.pt"
    views = [memoryview(tensor.numpy()).cast("B") for tensor in tensors]
    plain = MappedCopy(memory / "plain", tensors)
    plain.store(tensors)
    with alone():
        dcp.save(state, checkpoint_id=memory / "dcp")
    torch.save(state, file)

    def load_torch(*, mmap: bool) -> None:
        for name, tensor in torch.load(file, mmap=mmap).items():
            state[name].copy_(tensor)

    ways: dict[str, list[float]] = defaultdict(list)
    for _ in range(repeat):
        ckpt = node.start()
        _ = ckpt.newest_step  # waits for the agent, whose start is not measured
        ways["plain copy from mapped memory"].append(timed_s(lambda: plain.fetch(tensors)))
        ways["checksums of the same bytes"].append(timed_s(lambda: [checksums(view) for view in views]))
        ways["torch.load(mmap=True) and copy"].append(timed_s(lambda: load_torch(mmap=True)))
        ways["torch.load and copy"].append(timed_s(lambda: load_torch(mmap=False)))
        with alone():
            seconds = timed_s(lambda: dcp.load(dict(state), checkpoint_id=memory / "dcp"))
        ways["dcp.load from /dev/shm"].append(seconds)
        ways["load"].append(timed_s(lambda ckpt=ckpt: ckpt.load(dict(state))))  # type: ignore[misc]
        node.wait_for_memory()
        if (loaded_s := dlrover.load_s()) is not None:
            ways[DLROVER].append(loaded_s)
    (memory / "plain").unlink()
    file.unlink()
    shutil.rmtree(memory / "dcp")
    peers = medians(ways)
    value, missing = peers.pop("load"), {DLROVER: dlrover.missing} if dlrover.missing else {}
    return [Figure(name="load() from own memory", value=value, unit="s", peers=peers, missing=missing)]
