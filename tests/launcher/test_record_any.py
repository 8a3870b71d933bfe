"""Any events.jsonl is read without an error: random events, keys missing or of another type, lines cut off."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from launcher.history.events import parse_event, read_events
from launcher.history.fields import COMMON, FIELDS
from launcher.history.recovery import cold_start_s, recoveries
from launcher.history.status import status_of
from launcher.history.view import event_line, render
from launcher.jobfile import Restart
from launcher.supervisor.evidence import Evidence
from launcher.supervisor.hang import HangDetector
from launcher.supervisor.ladder import Ladder
from launcher.supervisor.past import Past
from launcher.tail import Tail

NODES = st.sampled_from(["node0", "node1", "node2"])
LIKELY = {
    "time": st.floats(0, 1e4),
    "attempt": st.integers(0, 3),
    "node": NODES,
    "step": st.integers(0, 50),
    "seconds": st.floats(0, 100),
    "term": st.integers(1, 3),
    "nodes": st.lists(NODES, max_size=3),
    "generation": st.integers(0, 3),
    "kind": st.sampled_from(["node_lost", "user_error", "agent_lost", "hang", "preflight"]),
    "detect": st.floats(0, 10),
    "tier": st.sampled_from(["memory", "shared"]),
    "outcome": st.sampled_from(["fault", "stopped", "done"]),
    "warm": st.booleans(),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.just(10**400) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    """An event of a kind that the supervisor writes: each field likely, or anything, or missing."""
    name = draw(st.sampled_from(sorted(FIELDS)))
    record: dict[str, Any] = {"event": name}
    for key in {**COMMON, **FIELDS[name]}:
        how = draw(st.integers(0, 9))
        if how:
            record[key] = draw(LIKELY.get(key, st.text(max_size=5)) if how > 1 else JSON)
    return record


def event(name: str, time: float, **fields: Any) -> dict[str, Any]:
    return {"event": name, "time": time, **fields}


RESTORED_TO_BEFORE_AN_ATTEMPT_TWICE = [
    event("job_start", 0),
    event("first_step", 1, attempt=0, step=21, seconds=1),
    event("fault", 5, attempt=0, step=30, kind="node_lost"),
    event("restore", 6, attempt=1, step=10, tier="shared"),
    event("first_step", 7, attempt=1, step=11, seconds=1),
    event("fault", 8, attempt=1, step=12, kind="node_lost"),
    event("restore", 9, attempt=2, step=10, tier="shared"),
]


@settings(deadline=None, max_examples=300)
@given(st.lists(records(), max_size=12), st.integers(0, 60))
@example(RESTORED_TO_BEFORE_AN_ATTEMPT_TWICE, 0)
@example([event("attempt_start", 1, nodes=["node0"], rung="start"), event("workers_started", 2)], 0)
def test_what_decides_take_over_and_requeue_reads_any_record(written: list[dict[str, Any]], cut: int) -> None:
    text = b"".join(json.dumps(record).encode() + b"\n" for record in written)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        path.write_bytes(text[: len(text) - cut])
        events = read_events(path)
        followed = Tail(path).events()
    ladder, hang = Ladder(Restart(), can_requeue=True), HangDetector(None, has_checkpoint=True)
    for each in events:
        ladder.observe(each)
        hang.observe(each)
        event_line(each)
    assert ladder.decide("why", nodes_suffice=True, nodes_changed=False).action in ("restart", "requeue", "stop")
    for take_over in (False, True):
        past = Past(events, take_over=take_over)
        running = past.running_attempt()
        assert running is None or running["nodes"]
        assert past.next_attempt >= 0 and (past.step is None or past.step >= 0)
        assert all(isinstance(node, str) for node in past.runners | past.out.keys())
    Evidence(0, ("node0",), Mock(), hang, Path()).resume(events)
    status = status_of(followed, now_s=1e4)
    assert status.ettr is None or 0 <= status.ettr <= 1
    Console(quiet=True).print(render(status, "t"))
    recoveries(events)
    cold_start_s(events)


def test_a_line_of_any_depth_is_passed_over() -> None:
    assert parse_event(b'{"event": ' + b"[" * 100_000) is None
