"""How a runner follows its node's checkpoint agent. Real agents: test_supervisor.py."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from launcher.runner import watch
from launcher.runner.watch import AGENT_RESTART_TIMEOUT_S, AGENT_START_TIMEOUT_S, Patience, Watch


def test_agents_that_have_come_up_before_are_not_waited_for_as_long() -> None:
    patience = Patience()
    assert patience.limit_s == AGENT_START_TIMEOUT_S
    patience.came_up(0.3)
    assert patience.limit_s == AGENT_RESTART_TIMEOUT_S
    patience.came_up(3.0)
    assert patience.limit_s == 30.0
    patience.came_up(20.0)
    assert patience.limit_s == AGENT_START_TIMEOUT_S


def test_an_agent_that_does_not_come_up_again_is_lost_and_the_next_has_more_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "AGENT_RESTART_TIMEOUT_S", 0.1)
    patience = Patience()
    patience.came_up(0.01)
    told: list[dict[str, Any]] = []
    asyncio.run(asyncio.wait_for(Watch(3, 0, tmp_path, told.append, patience).run(), AGENT_START_TIMEOUT_S / 2))
    assert [(message["op"], message["attempt"]) for message in told] == [("agent_lost", 3)]
    assert patience.limit_s == AGENT_START_TIMEOUT_S
