"""What a save costs training: the time in save(), beside a plain copy of the same bytes and torch's ways to save."""

from __future__ import annotations

import shutil
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import staging

from ckpt.convert.dcp_safetensors import alone
from ckpt_bench.figures import Figure, median, timed_s
from ckpt_bench.node import BenchNode
from ckpt_bench.peers import DLROVER, NVRX, NVRX_NEEDS, Dlrover
from ckpt_bench.plain import MappedCopy

_DEFAULT, _OWN = "dcp.async_save, default stager", "dcp.async_save, own stager"


def stalls(
    node: BenchNode, state: dict[str, torch.Tensor], memory: Path, repeat: int, dlrover: Dlrover
) -> list[Figure]:
    """The first save, which also takes new memory, and the median of later ones.

    Every repeat runs all ways one after another, so that a busy machine is equally busy for all.
    """
    tensors = list(state.values())
    first_floor = timed_s(lambda: MappedCopy(memory / "first", tensors).store(tensors))
    ckpt = node.start()
    ckpt.load(dict(state))  # as training does: nothing is there yet, and memory is made ready in the background
    node.wait_for_memory()
    first = timed_s(lambda: ckpt.save(1, state))
    node.wait_for("memory", 1)
    plain = MappedCopy(memory / "plain", tensors)
    plain.store(tensors)
    ways: dict[str, list[float]] = {}
    with _own_stager() as stager:
        for turn in range(repeat):
            step = 2 + turn
            measured = {
                "save": timed_s(lambda step=step: ckpt.save(step, state)),  # type: ignore[misc]
                "plain": 0.0,
            }
            node.wait_for("memory", step)  # the agent's work is not part of the others' figures
            measured["plain"] = timed_s(lambda: plain.store(tensors))
            measured.update(_torch_ways(state, memory, stager))
            if (seconds := dlrover.save_s()) is not None:
                measured[DLROVER] = seconds
            for way, took_s in measured.items():
                ways.setdefault(way, []).append(took_s)
    (memory / "first").unlink()
    (memory / "plain").unlink()
    middle = {way: median(seconds) for way, seconds in ways.items()}
    peers = {
        "plain copy_ into mapped memory": middle["plain"],
        **({_OWN: middle[_OWN]} if _OWN in middle else {}),
        _DEFAULT: middle[_DEFAULT],
        "dcp.save to /dev/shm": middle["dcp_save"],
        "torch.save to /dev/shm": middle["torch_save"],
        **({DLROVER: middle[DLROVER]} if DLROVER in middle else {}),
    }
    missing = {NVRX: NVRX_NEEDS}
    if _OWN not in middle:
        missing[_OWN] = f"torch {torch.__version__} has no stager that is kept"
    if dlrover.missing:
        missing[DLROVER] = dlrover.missing
    return [
        Figure(name="save() blocks", value=middle["save"], unit="s", peers=peers, missing=missing),
        Figure(name="first save() blocks", value=first, unit="s", peers={"plain copy_ into new memory": first_floor}),
    ]


def _own_stager() -> Any:
    """A stager whose memory is kept over saves. torch has one since 2.9; before, None."""
    if not hasattr(staging, "DefaultStager"):
        return nullcontext()
    gpu = torch.cuda.is_available()
    return closing(
        staging.DefaultStager(
            staging.StagingOptions(
                use_pinned_memory=gpu, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=gpu
            )
        )
    )


def _torch_ways(state: dict[str, torch.Tensor], memory: Path, stager: Any) -> dict[str, float]:
    folder, file = memory / "dcp", memory / "torch.pt"
    measured = {}
    with alone():
        for name, given in ((_OWN, {"async_stager": stager}), (_DEFAULT, {})):
            if name == _OWN and stager is None:
                continue
            handle: list[Any] = []
            measured[name] = timed_s(
                lambda given=given, handle=handle: handle.append(  # type: ignore[misc]
                    dcp.async_save(state, checkpoint_id=folder, **given)
                )
            )
            getattr(handle[0], "upload_completion", handle[0]).result()
            shutil.rmtree(folder)
        measured["dcp_save"] = timed_s(lambda: dcp.save(state, checkpoint_id=folder))
        shutil.rmtree(folder)
    measured["torch_save"] = timed_s(lambda: torch.save(state, file))
    file.unlink()
    return measured
