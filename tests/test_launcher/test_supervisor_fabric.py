"""What a supervisor makes of the word that NCCL does not use the fabric."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from talkers import Talkers, ended, supervised

from launcher.connections.channel import Channel

PROBLEM = "NCCL uses network Socket, expected libfabric over EFA"


class OnSockets(Talkers):
    """The last runner speaks of its network, then all are done."""

    required = False

    def started(self, node: str, channel: Channel, attempt: dict[str, Any]) -> None:
        if node == self.nodes[-1]:
            told = {"op": "fault", "kind": "fabric", "reason": f"{node}: {PROBLEM}", "rank": None, "action": None}
            hint = {"op": "problem", "what": "training is slower than it could be", "detail": PROBLEM}
            channel.send((told if self.required else hint) | attempt)
        channel.send(ended(attempt))

    def requeue(self, exclude: Collection[str] = ()) -> None:
        raise AssertionError("a wrong fabric is no reason to requeue")


def test_where_it_is_required_the_job_stops_at_once_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OnSockets, "required", True)
    outcome, events = supervised(tmp_path, OnSockets)
    assert (outcome.name, outcome.exit_code) == ("fabric", 14)
    assert PROBLEM in outcome.reason and "node1" in outcome.reason and "fabric: require" in outcome.reason
    (fault,) = (event for event in events if event["event"] == "fault")
    assert (fault["kind"], fault["node"]) == ("fabric", "node1")
    assert sum(event["event"] == "attempt_start" for event in events) == 1


def test_where_it_is_preferred_the_job_goes_on_and_the_problem_is_told(tmp_path: Path) -> None:
    outcome, events = supervised(tmp_path, OnSockets)
    assert outcome.name == "done"
    (problem,) = (event for event in events if event["event"] == "problem")
    assert (problem["node"], problem["detail"]) == ("node1", PROBLEM)
