"""When lost checkpoint agents are replaced, what a supervisor that takes over makes of it, and what the user sees."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from launcher.history.status import status_of
from launcher.history.view import describe
from launcher.supervisor.agents import LOSSES_WITHIN_S, RENEW_AFTER_S, Losses
from launcher.supervisor.evidence import Evidence
from launcher.supervisor.hang import HangDetector
from launcher.supervisor.links import Notice
from launcher.supervisor.requests import Requests

LOST = {"event": "agents_lost", "attempt": 3, "generation": 0, "time": 10.0}
BACK = {"event": "agents_back", "attempt": 3, "generation": 1, "time": 12.0}


def test_agents_that_are_lost_again_and_again_are_replaced_later_and_then_no_more() -> None:
    losses = Losses()
    assert [losses.add(float(now_s)) for now_s in range(len(RENEW_AFTER_S) + 1)] == [*RENEW_AFTER_S, None]
    assert list(RENEW_AFTER_S) == sorted(RENEW_AFTER_S) and RENEW_AFTER_S[0] == 0


def test_losses_long_ago_do_not_count() -> None:
    losses = Losses()
    for now_s in range(2 * len(RENEW_AFTER_S)):
        assert losses.add(now_s * (LOSSES_WITHIN_S + 1)) == RENEW_AFTER_S[0]


class Host:
    """Keeps what is recorded; hands nothing on."""

    def __init__(self) -> None:
        self.requests = Requests(lambda: "cancel", lambda: None, lambda reason: None)
        self.recorded: list[dict[str, Any]] = []
        self.inbox: asyncio.Queue[Notice] = asyncio.Queue()

    async def next_notice(self, timeout_s: float | None) -> Notice | None:
        return await asyncio.wait_for(self.inbox.get(), timeout_s)

    def post(self, notice: Notice) -> None:
        self.inbox.put_nowait(notice)

    def record(self, event: str, **fields: Any) -> None:
        self.recorded.append({"event": event} | fields)

    def see_step(self, step: int | None) -> int | None:
        return step

    def put_out(self, node: str, reason: str) -> None:
        raise AssertionError(reason)


def evidence(host: Host, *history: dict[str, Any]) -> Evidence:
    found = Evidence(3, ("a", "b"), host, HangDetector(None, has_checkpoint=True), Path("log"))
    found.resume([{"event": "restore", "attempt": 3, "time": 1.0}, *history])
    return found


@pytest.mark.parametrize(
    ("history", "generation", "is_lost"),
    [
        ((), 0, False),
        ((LOST,), 1, True),  # the supervisor before us may have started generation 1: ours is the one after
        ((LOST, BACK), 1, False),
        ((LOST, BACK, LOST | {"generation": 1}), 2, True),
        ((LOST | {"attempt": 2},), 0, False),
    ],
)
def test_a_supervisor_that_takes_over_goes_on_with_the_agents_generation(
    history: tuple[dict[str, Any], ...], generation: int, is_lost: bool
) -> None:
    found = evidence(Host(), *history)
    assert (found.generation, found.take_agent_loss(), found.take_agent_loss()) == (generation, is_lost, False)


def test_a_loss_is_told_once_though_every_node_tells_it_and_that_of_agents_replaced_since_not_at_all() -> None:
    async def test() -> None:
        host = Host()
        found = evidence(host)
        body = {"attempt": 3, "generation": 0, "reason": "gone"}

        async def hear(*notices: Notice) -> None:
            for notice in notices:
                found.take(notice)
            for _ in notices:
                later = await host.next_notice(10)
                assert later is not None
                found.take(later)

        await hear(Notice(kind="agent_lost", node="a", body=body), Notice(kind="agent_lost", node="b", body=body))
        assert [event["event"] for event in host.recorded] == ["agents_lost"] and found.take_agent_loss()
        assert found.renew_agents() == 1
        await hear(Notice(kind="agent_lost", node="b", body=body))
        assert not found.take_agent_loss() and not found.faults
        rejoined = {"event": "rejoined", "step": 20, "generation": 1, "seconds": 0.1}
        for _ in range(2):
            found.take(Notice(kind="monitor", node="a", body={"attempt": 3, "event": rejoined}))
        assert [event["event"] for event in host.recorded] == ["agents_lost", "agents_back"]
        assert host.recorded[1]["generation"] == 1 and host.recorded[1]["seconds"] > 0.5

    asyncio.run(test())


def test_status_says_that_nothing_is_saved_until_the_agents_are_back() -> None:
    begun = [{"event": "job_start", "time": 1.0}, {"event": "first_step", "time": 2.0, "step": 1}]
    lost = LOST | {"node": "n2", "reason": "killed"}
    assert status_of([*begun, lost], 11.0).reason == "nothing is saved: the checkpoint agents were lost"
    status = status_of([*begun, lost, BACK | {"seconds": 2.0}], 13.0)
    assert (status.state, status.reason) == ("training", None)
    assert [describe(event) for event in status.events[-2:]] == [
        "checkpoint agents lost on n2, nothing is saved until they are back: killed",
        "checkpoint agents are back in 2.00 s (generation 1)",
    ]
