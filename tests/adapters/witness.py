"""What a training script of the adapters' tests notes, and the faults that it has on purpose.

A script runs twice: undisturbed with the bare framework, and under Holdfast with its adapter and faults.
OUT is the folder for the notes. FAULTS is a list of "attempt:rank:step:committed:what". The fault comes once the job
has committed that step, at once if it is 0: `die` kills the process; `wait` makes the file `waits` in OUT and waits for
ever, so that a test can take the node away at this step.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ATTEMPT = int(os.environ.get("HOLDFAST_ATTEMPT", "0"))
UNDER_HOLDFAST = "HOLDFAST_RUN_ID" in os.environ
OUT = Path(os.environ["OUT"])
_NOTES = OUT / f"seen-{os.environ.get('SLURM_RESTART_COUNT', '0')}-{ATTEMPT}-{RANK}"


class Sums(torch.utils.data.Dataset):
    """Its samples are their index, a vector and the sum of its numbers."""

    def __init__(self, samples: int = 100) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Any:
        x = torch.randn(16, generator=torch.Generator().manual_seed(index))
        return index, x, x.sum(0, keepdim=True)


def saw(step: int, samples: Any) -> None:
    """Notes samples of the step that follows `step`, and has the fault that is planned for it."""
    with _NOTES.open("a") as notes:
        print(json.dumps([step, [int(sample) for sample in samples]]), file=notes)
    for fault in os.environ.get("FAULTS", "").split():
        attempt, rank, at, committed, what = fault.split(":")
        if (int(attempt), int(rank), int(at)) == (ATTEMPT, RANK, step):
            if int(committed):
                _until_committed(int(committed))
            if what == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            (OUT / "waits").touch()
            signal.pause()


def _until_committed(step: int) -> None:
    events, deadline = Path(os.environ["HOLDFAST_JOB_DIR"]) / "events.jsonl", time.monotonic() + 60
    while time.monotonic() < deadline:
        found = [json.loads(line) for line in events.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if any(event["event"] == "commit" and event["step"] >= step for event in found):
            return
        time.sleep(0.02)
    raise TimeoutError(f"step {step} was not committed within 60 s")


def digest(*values: Any) -> str:
    """SHA-256 of nested tensors and numbers, bit for bit."""
    sha = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            value = value.full_tensor() if hasattr(value, "full_tensor") else value
            sha.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                sha.update(str(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for item in value:
                add(item)
        else:
            sha.update(repr(value).encode())

    add(values)
    return sha.hexdigest()


def end(**facts: Any) -> None:
    """Notes what the run ended with, of this rank."""
    (OUT / f"end-{RANK}.json").write_text(json.dumps(facts, indent=1, sort_keys=True))
