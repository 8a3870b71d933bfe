"""Events of jobs, for the tests of what reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def event(time: float, name: str, **fields: Any) -> dict[str, Any]:
    return {"time": time, "event": name, "attempt": None, "node": None, "step": None, "seconds": None} | fields


START = [
    event(0, "job_start", run_id="slurm-c-7", nodes_requested=2, spares=1, restart_count=0, cluster="local"),
    event(1, "node_ready", node="n1", warm=True),
    event(1, "node_ready", node="n2", warm=True),
    event(1, "node_ready", node="n3", warm=True),
    event(2, "attempt_start", attempt=0, nodes=["n1", "n2"], spares=["n3"], rung="start"),
    event(4, "restore", attempt=0, step=0, tier="none", seconds=1.0),
    event(5, "workers_started", attempt=0, seconds=3.0),
    event(10, "first_step", attempt=0, step=1, seconds=8.0),
    event(20, "commit", attempt=0, tier="memory", step=10, seconds=0.5, bytes=1000),
    event(21, "commit", attempt=0, tier="s3", step=10, seconds=2.0, bytes=1000),
]
LOST_NODE = [
    event(31, "fault", attempt=0, kind="node_lost", node="n2", reason="no heartbeat", step=20, detect=1.0),
    event(31, "attempt_end", attempt=0, outcome="fault", step=20),
    event(31, "node_out", node="n2", reason="no heartbeat", lost=True),
    event(32, "attempt_start", attempt=1, nodes=["n1", "n3"], spares=[], rung="spare"),
    event(34, "restore", attempt=1, step=10, tier="memory", seconds=1.0),
    event(34, "rebuilt", attempt=1, node="n3", rank=1, from_node="n1", bytes=100, seconds=0.1),
    event(35, "workers_started", attempt=1, seconds=3.0),
    event(40, "first_step", attempt=1, step=11, seconds=8.0),
]
HANG = [
    event(70, "commit", attempt=1, tier="memory", step=40, seconds=0.5, bytes=1000),
    event(90, "fault", attempt=1, kind="hang", node="n1", rank=0, reason="no step", step=40, detect=15.0),
    event(91, "attempt_end", attempt=1, outcome="fault", step=40),
    event(92, "attempt_start", attempt=2, nodes=["n1", "n3"], spares=[], rung="workers"),
    event(94, "restore", attempt=2, step=40, tier="memory", seconds=1.0),
    event(100, "first_step", attempt=2, step=41, seconds=8.0),
]
GROWN = [
    event(101, "booster_asked", allocation="b1", nodes=2),
    event(101, "booster_submitted", allocation="b1", job_id="8"),
    event(102, "booster_waits", allocation="b1", job_id="8", reason="Resources"),
    event(110, "node_ready", node="n4", warm=False, allocation="b1"),
    event(110, "node_ready", node="n4", warm=True),
    event(120, "commit", attempt=2, tier="memory", step=61, seconds=0.5, bytes=1000),
    event(120, "resize", attempt=2, size=2, to=4, reason="a booster is ready"),
    event(121, "attempt_end", attempt=2, outcome="resized", step=61),
    event(122, "attempt_start", attempt=3, nodes=["n1", "n3", "n4", "n5"], spares=[], rung="grow"),
    event(124, "restore", attempt=3, step=61, tier="memory", seconds=1.0),
    event(128, "first_step", attempt=3, step=62, seconds=6.0),
]
REQUEUED = [
    event(150, "stop_requested", reason="requeue", detail="time limit"),
    event(151, "attempt_end", attempt=3, outcome="stopped", step=80),
    event(
        200,
        "job_start",
        run_id="slurm-c-7",
        nodes_requested=2,
        spares=1,
        restart_count=1,
        cluster="local",
        versions=["Python 3.12.1", "torch 2.13.0"],
    ),
    event(202, "attempt_start", attempt=4, nodes=["n1", "n3"], spares=[], rung="requeue"),
    event(204, "restore", attempt=4, step=80, tier="s3", seconds=2.0),
    event(210, "first_step", attempt=4, step=81, seconds=8.0),
]
END = [
    event(250, "attempt_end", attempt=4, outcome="done", step=120),
    event(251, "job_end", outcome="done", step=120, reason="", seconds=51.0),
]
WHOLE = [*START, *LOST_NODE, *HANG, *GROWN, *REQUEUED, *END]
"""A job with every kind of fault, a resize and a requeue."""


def job_folder(path: Path, events: list[dict[str, Any]], torn: str = "", **spec: Any) -> Path:
    """A job's folder with these events, and job.json with `spec`."""
    path.mkdir(parents=True)
    (path / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events) + torn)
    (path / "job.json").write_text(json.dumps({"name": "gpt", "nodes": 2, "spares": 1} | spec))
    return path
