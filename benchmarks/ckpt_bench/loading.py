"""What a load from the node's own memory costs, every byte verified, beside a plain copy and torch's ways to load."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from ckpt.convert.dcp_safetensors import alone
from ckpt.format.checksums import checksums
from ckpt_bench.figures import Figure, median, timed_s
from ckpt_bench.node import BenchNode
from ckpt_bench.peers import DLROVER, Dlrover
from ckpt_bench.plain import MappedCopy


def loads(node: BenchNode, state: dict[str, torch.Tensor], memory: Path, repeat: int, dlrover: Dlrover) -> list[Figure]:
    """A new attempt each time: nothing of the load before is mapped any more."""
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

    ways: dict[str, list[float]] = {}
    for _ in range(repeat):
        ckpt = node.start()
        _ = ckpt.newest_step  # the agent has started and knows what there is; its start is no part of this
        measured = {
            "plain copy from mapped memory": timed_s(lambda: plain.fetch(tensors)),
            "checksums of the same bytes": timed_s(lambda: [checksums(view) for view in views]),
            "torch.load(mmap=True) and copy": timed_s(lambda: load_torch(mmap=True)),
            "torch.load and copy": timed_s(lambda: load_torch(mmap=False)),
        }
        with alone():
            measured["dcp.load from /dev/shm"] = timed_s(lambda: dcp.load(dict(state), checkpoint_id=memory / "dcp"))
        measured["load"] = timed_s(lambda ckpt=ckpt: ckpt.load(dict(state)))  # type: ignore[misc]
        node.wait_for_memory()
        if (seconds := dlrover.load_s()) is not None:
            measured[DLROVER] = seconds
        for way, took_s in measured.items():
            ways.setdefault(way, []).append(took_s)
    (memory / "plain").unlink()
    file.unlink()
    shutil.rmtree(memory / "dcp")
    middle = {way: median(seconds) for way, seconds in ways.items()}
    value, missing = middle.pop("load"), {DLROVER: dlrover.missing} if dlrover.missing else {}
    return [Figure(name="load() from own memory", value=value, unit="s", peers=middle, missing=missing)]
