"""Runner and supervisor check what they receive: a field that is missing, unknown or of another type costs the node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from talkers import ended

from holdfast.base.messages import MalformedMessage, check_whole
from launcher.connections import reports
from launcher.connections.messages import FROM_RUNNER, TO_RUNNER
from launcher.connections.reports import to_input
from launcher.core.commands import Order
from launcher.core.inputs import NodeBroken, NodeIncident, WorkersEnded
from launcher.runner import runner as runner_module
from launcher.runner.runner import Runner

ENDED = ended(attempt={"attempt": 3})


def test_a_whole_message_becomes_an_input() -> None:
    assert to_input("n1", ENDED) == WorkersEnded(node="n1", attempt=3, ok=True, step=7)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"step": "7"}, "step is '7', expected a whole number or null"),
        ({"attempt": -1}, "attempt is -1, expected a whole number"),
        ({"stoped": True}, "unknown field stoped"),
        ({"failures": [{"rank": 1}]}, "malformed 'ended': KeyError('exit_code')"),
        ({"op": "endet"}, "unknown request 'endet' of a runner"),
    ],
)
def test_a_malformed_message_is_not_dropped_but_costs_its_node(change: dict[str, Any], error: str) -> None:
    """It may be the one for which the job waits."""
    found = to_input("n1", ENDED | change)
    assert isinstance(found, NodeBroken) and error in found.reason


def test_a_missing_field_costs_its_node() -> None:
    found = to_input("n1", {name: value for name, value in ENDED.items() if name != "ok"})
    assert isinstance(found, NodeBroken) and "malformed 'ended': ok is missing" in found.reason


def test_a_runner_does_not_obey_an_order_that_it_does_not_understand(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, sent = Runner.__new__(Runner), []
    monkeypatch.setattr(runner, "_send", sent.append, raising=False)
    asyncio.run(runner._obey({"op": "kill", "attempt": 3, "really": True}))
    ((message),) = sent
    assert message["op"] == "broken" and "unknown field really" in message["reason"]
    check_whole(message, FROM_RUNNER)


def test_a_runner_reports_what_its_nodes_health_checks_find(monkeypatch: pytest.MonkeyPatch) -> None:
    class Checks:
        def __init__(self) -> None:
            self._found = [None, "gpu_ecc: 2 uncorrectable", "gpu_ecc: 2 uncorrectable", None]
            self.reason: str | None = None

        def look(self) -> bool:
            if not self._found:
                raise EOFError
            before, self.reason = self.reason, self._found.pop(0)
            return self.reason != before

    runner, sent = Runner.__new__(Runner), []
    monkeypatch.setattr(runner, "_send", sent.append, raising=False)
    monkeypatch.setattr(runner, "_health", Checks(), raising=False)
    monkeypatch.setattr(runner_module, "HEALTH_LOOK_S", 0.0)
    with pytest.raises(EOFError):
        asyncio.run(runner._follow_health())
    assert [to_input("n1", message) for message in sent] == [
        NodeIncident(node="n1", reason="gpu_ecc: 2 uncorrectable"),
        NodeIncident(node="n1", reason=None),
    ]


def test_every_order_and_every_report_is_in_the_catalogue() -> None:
    assert {order.value for order in Order} <= TO_RUNNER.messages.keys()
    assert reports._READ.keys() <= FROM_RUNNER.messages.keys()
    assert FROM_RUNNER.messages.keys() - reports._READ.keys() == {"heartbeat"}
    with pytest.raises(MalformedMessage, match="unknown request"):
        check_whole({"op": "hello"}, TO_RUNNER)
