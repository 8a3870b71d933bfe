"""The main job for the flow tests: the small GPT of the examples, and a way to wait for what its events tell."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher import JobSpec
from launcher.history.events import read_events

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "gpt_stdlib" / "train.py"
STEPS = 300
ARGS = ["--steps", str(STEPS), "--layers", "1", "--width", "64", "--heads", "2", "--global-batch", "6"]

Event = dict[str, Any]


class Watch:
    """Follows one job's events.

    Args:
        job_dir: the job's folder.
        tell: called for what to show when a wait fails (the scheduler's view, say).
    """

    def __init__(self, job_dir: Path, tell: Callable[[], str] = lambda: "") -> None:
        self.job_dir = job_dir
        self._tell = tell

    def events(self, name: str | None = None) -> list[Event]:
        events = read_events(self.job_dir / "events.jsonl")
        return [event for event in events if name in (None, event["event"])]

    def wait_for(self, name: str, timeout_s: float, **fields: Any) -> Event:
        """The first event of that name whose fields match; a callable field is a predicate."""
        return self.until(lambda: next((e for e in self.events(name) if _matches(e, fields)), None), timeout_s, name)

    def until(self, found: Callable[[], Any], timeout_s: float, what: str) -> Any:
        """Polls until something is found. An AssertionError shows the job's end and its log."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if (result := found()) is not None:
                return result
            time.sleep(0.02)
        pytest.fail(f"no {what} within {timeout_s} s\n{self.story()}")

    def story(self) -> str:
        """What happened, for a test that failed."""
        lines = [json.dumps(event)[:300] for event in self.events()[-25:]]
        for log in sorted((self.job_dir / "log").rglob("*.log")) if self.job_dir.exists() else []:
            lines += [f"--- {log.relative_to(self.job_dir)}", *log.read_text(errors="replace").splitlines()[-12:]]
        return "\n".join([*lines, self._tell()])

    @property
    def sha256(self) -> str:
        """The digest of the final state that the training script wrote."""
        return json.loads((self.job_dir / "final.json").read_text())["state_sha256"]


def _matches(event: Event, fields: dict[str, Any]) -> bool:
    return all(value(event.get(key)) if callable(value) else event.get(key) == value for key, value in fields.items())


def main_job_file(**changes: Any) -> dict[str, Any]:
    """The keys of the main job of these tests: 3 nodes, 1 spare, memory and partner copies every 5 steps."""
    checkpoint = {"namespace": "flow", "memory": {"every_steps": 5, "keep": 2}, "redundancy": {"scheme": "partner"}}
    mapping = {"name": "flow", "script": str(SCRIPT), "args": ARGS, "nodes": 3, "spares": 1, "checkpoint": checkpoint}
    return mapping | changes


def main_job(**changes: Any) -> JobSpec:
    """The same, validated."""
    return JobSpec.from_mapping(main_job_file(**changes), SCRIPT.parent, "flow test")
