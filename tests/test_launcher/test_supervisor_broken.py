"""A supervisor in which something fails that should not: the job ends with a result that says so."""

from __future__ import annotations

import errno
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from talkers import Talkers, ended, supervised

from launcher.connections.channel import Channel
from launcher.supervisor import processes


class CannotStart(Talkers):
    async def start_runners(self, nodes: list[str], environment: Mapping[str, str]) -> None:
        raise RuntimeError("out of luck")


class CannotAsk(Talkers):
    def unusable(self, nodes: Collection[str], allocations: Mapping[str, str]) -> dict[str, str]:
        raise RuntimeError("out of luck")


class CannotStartAtFirst(Talkers):
    tries = 0

    async def start_runners(self, nodes: list[str], environment: Mapping[str, str]) -> None:
        CannotStartAtFirst.tries += 1
        if CannotStartAtFirst.tries < 3:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        await super().start_runners(nodes, environment)

    def started(self, node: str, channel: Channel, attempt: dict[str, Any]) -> None:
        channel.send(ended(attempt))


def test_runners_that_this_host_cannot_start_now_are_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_LAUNCH_AGAIN_S", 0.01)
    outcome, events = supervised(tmp_path, CannotStartAtFirst)
    assert (outcome.name, CannotStartAtFirst.tries) == ("done", 3)
    assert [event["detail"] for event in events if event["event"] == "problem"] == 2 * ["see log/srun-runners.log"]


@pytest.mark.parametrize("cluster", [CannotStart, CannotAsk])
def test_what_fails_beside_the_loop_ends_the_job_with_a_result(tmp_path: Path, cluster: type[Talkers]) -> None:
    outcome, events = supervised(tmp_path, cluster)
    assert outcome.name == "internal" and outcome.reason.startswith("RuntimeError: out of luck; see ")
    assert events[-1]["event"] == "job_end"
    assert json.loads((tmp_path / "job" / "result.json").read_text())["name"] == "internal"
