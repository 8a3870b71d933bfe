"""The speed of flushes to directories, beside plain sequential writes to the same directory."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import torch

from ckpt.errors import CheckpointError
from ckpt_bench.figures import Figure, medians, timed_s
from ckpt_bench.node import FLUSH_EVERY, BenchNode
from ckpt_bench.plain import WRITE_BYTES, sequential_write

_FIO = "fio's sequential direct write"
_FIO_S = 300.0


def flushes(node: BenchNode, state: dict[str, torch.Tensor], folder: Path, repeat: int) -> list[Figure]:
    """The speed from the commit in memory to the commit in each tier: data, fsync, manifest."""
    return [_flush(node, tier, state, folder, repeat) for tier in ("nvme", "shared")]


def _flush(node: BenchNode, tier: str, state: dict[str, torch.Tensor], folder: Path, repeat: int) -> Figure:
    nbytes = sum(tensor.nbytes for tensor in state.values())
    ckpt = node.start(tier)
    ckpt.load(dict(state))
    node.wait_for_memory()  # the background thread would use memory bandwidth that the flush needs
    newest = ckpt.newest_step or 0
    if newest >= FLUSH_EVERY:
        node.wait_for(tier, newest)  # the agent flushes the restored step, because the tier does not have it
    first = newest // FLUSH_EVERY + 1
    speeds: dict[str, list[float]] = defaultdict(list)
    missing = {} if tier != "nvme" or shutil.which("fio") else {_FIO: "fio is not installed; apt install fio"}
    for turn in range(first, first + repeat):
        step = turn * FLUSH_EVERY
        ckpt.save(step, state)
        event = node.wait_for(tier, step)
        speeds["flush"].append(event["bytes"] / 1e6 / event["seconds"])
        if tier == "nvme" and not missing:
            speeds[_FIO].append(_fio_mb_per_s(folder / "plain", nbytes))
        how, seconds = _timed_write(folder / "plain", nbytes)
        speeds[f"a sequential {how} write"].append(nbytes / 1e6 / seconds)
    peers = medians(speeds)
    return Figure(name=f"flush to the {tier} tier", value=peers.pop("flush"), unit="MB/s", peers=peers, missing=missing)


def _timed_write(path: Path, nbytes: int) -> tuple[str, float]:
    how: list[str] = []
    seconds = timed_s(lambda: how.append(sequential_write(path, nbytes)))
    path.unlink()
    return how[0], seconds


def _fio_mb_per_s(path: Path, nbytes: int) -> float:
    """The speed of fio's write. Raises CheckpointError with fio's message if fio fails."""
    command = ["fio", "--name=bench", f"--filename={path}", "--rw=write", f"--bs={WRITE_BYTES}", "--direct=1",
               f"--size={nbytes // WRITE_BYTES * WRITE_BYTES}", "--end_fsync=1", "--output-format=json"]  # fmt: skip
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_FIO_S)
    path.unlink(missing_ok=True)
    if done.returncode:
        raise CheckpointError(f"benchmark: fio: {' '.join((done.stderr or done.stdout).split()):.300}")
    return float(json.loads(done.stdout)["jobs"][0]["write"]["bw_bytes"]) / 1e6
