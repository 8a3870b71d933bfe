"""Bytes per second on the way to the tiers below memory, beside plain sequential writes to the same directory."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import torch

from ckpt.errors import CheckpointError
from ckpt_bench.figures import Figure, median, timed_s
from ckpt_bench.node import FLUSH_EVERY, BenchNode
from ckpt_bench.plain import WRITE_BYTES, sequential_write

_FIO = "fio's sequential direct write"
_FIO_S = 300.0


def flushes(node: BenchNode, state: dict[str, torch.Tensor], folder: Path, repeat: int) -> list[Figure]:
    """From the commit in memory to the commit in each tier: data, fsync, manifest."""
    return [_flush(node, tier, state, folder, repeat) for tier in ("nvme", "shared")]


def _flush(node: BenchNode, tier: str, state: dict[str, torch.Tensor], folder: Path, repeat: int) -> Figure:
    nbytes = sum(tensor.nbytes for tensor in state.values())
    ckpt = node.start(tier)
    ckpt.load(dict(state))
    node.wait_for_memory()  # made ready in the background, which would take the flush's memory bandwidth
    newest = ckpt.newest_step or 0
    if newest >= FLUSH_EVERY:
        node.wait_for(tier, newest)  # it goes to the tier that lacks it
    first = newest // FLUSH_EVERY + 1
    ours: list[float] = []
    peers: dict[str, list[float]] = defaultdict(list)
    missing = {} if tier != "nvme" or shutil.which("fio") else {_FIO: "fio is not installed; apt install fio"}
    for turn in range(first, first + repeat):
        step = turn * FLUSH_EVERY
        ckpt.save(step, state)
        event = node.wait_for(tier, step)
        ours.append(event["bytes"] / 1e6 / event["seconds"])
        if tier == "nvme" and not missing:
            peers[_FIO].append(_fio_mb_per_s(folder / "plain", nbytes))
        how, seconds = _timed_write(folder / "plain", nbytes)
        peers[f"a sequential {how} write"].append(nbytes / 1e6 / seconds)
    medians = {name: median(values) for name, values in peers.items()}
    return Figure(name=f"flush to the {tier} tier", value=median(ours), unit="MB/s", peers=medians, missing=missing)


def _timed_write(path: Path, nbytes: int) -> tuple[str, float]:
    how: list[str] = []
    seconds = timed_s(lambda: how.append(sequential_write(path, nbytes)))
    path.unlink()
    return how[0], seconds


def _fio_mb_per_s(path: Path, nbytes: int) -> float:
    """Raises CheckpointError with what fio says."""
    command = ["fio", "--name=bench", f"--filename={path}", "--rw=write", f"--bs={WRITE_BYTES}", "--direct=1",
               f"--size={nbytes // WRITE_BYTES * WRITE_BYTES}", "--end_fsync=1", "--output-format=json"]  # fmt: skip
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_FIO_S)
    path.unlink(missing_ok=True)
    if done.returncode:
        raise CheckpointError(f"benchmark: fio: {' '.join((done.stderr or done.stdout).split()):.300}")
    return float(json.loads(done.stdout)["jobs"][0]["write"]["bw_bytes"]) / 1e6
