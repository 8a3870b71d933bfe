"""A framework's training with faults, beside the same training undisturbed: what has to be equal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from main_job import Watch

from launcher import Executor, JobSpec
from launcher.clusters.local.cluster import kill_node

HERE = Path(__file__).parent
KILLED, LOST = "0:1:11:9:die", "1:1:22:21:wait"
"""A worker is killed in mid-epoch; then a node is lost, and the job goes on from the end of an epoch."""


def undisturbed(script: str, out: Path, ranks: int = 2, preload: Sequence[str] = (), **env: str) -> Path:
    """The script with the bare framework and torchrun's variables. Returns the folder of its notes."""
    out.mkdir(parents=True)
    argv = [sys.executable, HERE / "forked.py", str(ranks), HERE / script, *preload]
    done = subprocess.run(
        argv, env={**os.environ, **env, "OUT": str(out)}, capture_output=True, text=True,
        timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return out


def job(script: str, out: Path, *, env: Mapping[str, str], **changes: Any) -> JobSpec:
    """The script under Holdfast: 2 nodes with a worker each, and a spare."""
    out.mkdir(parents=True)
    mapping = {
        "name": "adapter", "script": str(HERE / script), "nodes": 2, "spares": 1, "env": {**env, "OUT": str(out)},
        "checkpoint": {
            "namespace": "adapter", "memory": {"every_steps": 3, "keep": 2}, "redundancy": {"scheme": "partner"}
        },
    }  # fmt: skip
    return JobSpec.from_mapping(mapping | changes, HERE, "adapters' test")


def broken(script: str, folder: Path, *faults: str, env: Mapping[str, str], **changes: Any) -> Path:
    """Runs the job to its end on the local cluster, with its faults. Returns the folder of its notes."""
    out = folder / "out"
    spec = job(script, out, env={**env, "FAULTS": " ".join(faults)}, **changes)
    submitted = Executor(folder=folder / "%j", cluster="local").submit(spec)
    watch = Watch(submitted.paths.folder)
    try:
        if any(fault.endswith("wait") for fault in faults):
            watch.until(lambda: True if (out / "waits").exists() or watch.events("job_end") else None, 400, "fault")
            kill_node(watch.job_dir, watch.events("attempt_start")[-1]["nodes"][1])
        assert submitted.result()["name"] == "done", watch.story()
    except BaseException:
        submitted.cancel(check=False)
        raise
    assert len(watch.events("attempt_start")) == len(faults) + 1, watch.story()
    resumed = [event["step"] for event in watch.events("restore") if event["step"]]
    assert len(resumed) == (0 if spec.checkpoint is None else len(faults)), watch.story()
    return out


def samples(out: Path) -> dict[int, list[int]]:
    """By step, the samples of all ranks, in the order of the ranks. A step that was trained again counts as last."""
    found: dict[int, list[int]] = {}
    runs = sorted({tuple(map(int, path.name.split("-")[1:3])) for path in out.glob("seen-*")})
    for run in runs:
        steps: dict[int, list[int]] = defaultdict(list)
        for path in sorted(out.glob(f"seen-{run[0]}-{run[1]}-*")):
            for line in path.read_text().splitlines():
                step, ids = json.loads(line)
                steps[step] += ids
        found |= steps
    return found


def ends(out: Path) -> list[dict[str, Any]]:
    """What the ranks ended with."""
    return [json.loads(path.read_text()) for path in sorted(out.glob("end-*.json"))]
