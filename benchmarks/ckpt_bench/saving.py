"""The time that save() blocks training, beside a plain copy of the same bytes and torch's ways to save."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import staging

from ckpt.convert.dcp_safetensors import alone
from ckpt_bench.figures import Figure, medians, timed_s
from ckpt_bench.node import BenchNode
from ckpt_bench.peers import DLROVER, NVRX, NVRX_NEEDS, Dlrover
from ckpt_bench.plain import MappedCopy

_DEFAULT, _OWN = "dcp.async_save, default stager", "dcp.async_save, own stager"


def stalls(
    node: BenchNode, state: dict[str, torch.Tensor], memory: Path, repeat: int, dlrover: Dlrover
) -> list[Figure]:
    """The time of the first save, which uses new memory, and the median of later ones.

    Each repeat measures all ways one after another, so that other load on the machine affects all of them.
    """
    tensors = list(state.values())
    first_floor = timed_s(lambda: MappedCopy(memory / "first", tensors).store(tensors))
    ckpt = node.start()
    ckpt.load(dict(state))  # there is no checkpoint yet, but load() prepares memory in the background
    node.wait_for_memory()
    first = timed_s(lambda: ckpt.save(1, state))
    node.wait_for("memory", 1)
    plain = MappedCopy(memory / "plain", tensors)
    plain.store(tensors)
    ways: dict[str, list[float]] = defaultdict(list)
    with _own_stager() as stager:
        for step in range(2, 2 + repeat):
            ways["save"].append(timed_s(lambda step=step: ckpt.save(step, state)))  # type: ignore[misc]
            node.wait_for("memory", step)  # the agent's work must not slow the other ways down
            ways["plain copy_ into mapped memory"].append(timed_s(lambda: plain.store(tensors)))
            for way, seconds in _torch_ways(state, memory, stager):
                ways[way].append(seconds)
            if (blocked_s := dlrover.save_s()) is not None:
                ways[DLROVER].append(blocked_s)
    (memory / "first").unlink()
    (memory / "plain").unlink()
    peers = medians(ways)
    missing = {NVRX: NVRX_NEEDS}
    if _OWN not in peers:
        missing[_OWN] = f"torch {torch.__version__} has no stager that keeps its memory"
    if dlrover.missing:
        missing[DLROVER] = dlrover.missing
    return [
        Figure(name="save() blocks", value=peers.pop("save"), unit="s", peers=peers, missing=missing),
        Figure(name="first save() blocks", value=first, unit="s", peers={"plain copy_ into new memory": first_floor}),
    ]


def _own_stager() -> Any:
    """A stager that keeps its memory between saves; None before torch 2.9, which has none."""
    if not hasattr(staging, "DefaultStager"):
        return nullcontext()
    gpu = torch.cuda.is_available()
    return kept_stager(
        staging.StagingOptions(
            use_pinned_memory=gpu, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=gpu
        )
    )


@contextmanager
def kept_stager(options: Any) -> Iterator[Any]:
    """torch's own stager, for any number of saves. In torch 2.11 and 2.12 it closes a part of itself after each."""
    with closing(staging.DefaultStager(options)) as stager:
        part = stager._state_dict_stager
        close, part.close = part.close, lambda: None
        try:
            yield stager
        finally:
            part.close = close


def _torch_ways(state: dict[str, torch.Tensor], memory: Path, stager: Any) -> Iterator[tuple[str, float]]:
    folder, file = memory / "dcp", memory / "torch.pt"
    with alone():
        for name, given in ((_OWN, {"async_stager": stager}), (_DEFAULT, {})):
            if name == _OWN and stager is None:
                continue
            handle: list[Any] = []
            yield (
                name,
                timed_s(
                    lambda given=given, handle=handle: handle.append(  # type: ignore[misc]
                        dcp.async_save(state, checkpoint_id=folder, **given)
                    )
                ),
            )
            getattr(handle[0], "upload_completion", handle[0]).result()
            shutil.rmtree(folder)
        yield "dcp.save to /dev/shm", timed_s(lambda: dcp.save(state, checkpoint_id=folder))
        shutil.rmtree(folder)
    yield "torch.save to /dev/shm", timed_s(lambda: torch.save(state, file))
    file.unlink()
