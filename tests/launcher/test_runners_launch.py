"""Runners that are started again where the scheduler ends all of them for one node's sake."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.clusters.launches import Launches
from launcher.supervisor import launch
from launcher.supervisor.launch import BLIND_TRIES, Launch
from launcher.supervisor.links import Notice
from launcher.supervisor.roster import Roster

NODES = ("n1", "n2", "n3", "n4")


class Stage:
    """Host, links and cluster in one; what the Launch does to them is kept."""

    def __init__(self, size: int) -> None:
        self.roster = Roster(NODES, [size], {})
        self.failed: dict[str, str] = {}
        self.started: list[list[str]] = []
        self.released = 0
        self.told: list[str] = []
        self.recorded: list[str] = []
        self.step_ends = asyncio.Event()
        self.posted: list[Notice] = []
        self.launch = Launch(self, self.roster, self, self, Path("."))  # type: ignore[arg-type]

    async def start_runners(self, nodes: list[str], environment: Mapping[str, str]) -> None:
        self.started.append(nodes)
        self.failed = {}
        self.step_ends = asyncio.Event()

    async def runners_launched(self) -> None:
        await self.step_ends.wait()

    def not_launched(self, nodes: Collection[str]) -> dict[str, str]:
        return {node: why for node, why in self.failed.items() if node in nodes}

    async def release_runners(self) -> None:
        self.released += 1

    def send(self, node: str, message: dict[str, Any]) -> None:
        assert message == {"op": "leave", "forget": False}
        self.told.append(node)

    def put_out(self, node: str, reason: str) -> None:
        self.roster.put_out(node, reason)

    def record(self, event: str, **fields: Any) -> None:
        self.recorded.append(event)

    def post(self, notice: Notice) -> None:
        self.posted.append(notice)

    async def step_has_ended(self) -> None:
        seen = len(self.posted)
        self.step_ends.set()
        while len(self.posted) == seen:
            await asyncio.sleep(0.001)

    def come(self, *nodes: str) -> None:
        for node in nodes:
            self.roster.add_ready(node)


def test_a_node_that_refuses_its_runner_is_out_and_the_others_start_again() -> None:
    async def scenario() -> None:
        stage = Stage(3)
        await stage.launch.begin()
        stage.come("n1", "n2")
        stage.failed = {"n3": "no answer"}
        assert await stage.launch.lost("n1")  # n2's is yet to be heard of
        await stage.launch.tend()
        assert stage.started == [list(NODES), ["n1", "n2", "n4"]]
        assert stage.roster.out == {"n3": "no answer"} and stage.roster.ready == []
        assert stage.told == ["n1", "n2", "n4"] and stage.released == 1 and stage.recorded == ["problem"]
        assert await stage.launch.lost("n2")  # the old one's end
        stage.come("n1", "n2", "n4")
        assert not await stage.launch.lost("n4")  # a new one's: its node is lost
        await stage.launch.end()

    asyncio.run(scenario())


def test_it_is_noticed_where_no_runner_had_come_yet() -> None:
    async def scenario() -> None:
        stage = Stage(2)
        await stage.launch.begin()
        stage.failed = {"n4": "no answer"}
        await stage.step_has_ended()
        await stage.launch.tend()
        assert stage.started[1:] == [["n1", "n2", "n3"]]
        await stage.launch.end()

    asyncio.run(scenario())


def test_it_is_noticed_long_before_srun_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits half a minute for the tasks that it has ended."""
    monkeypatch.setattr(launch, "_LOOK_S", 0.01)

    async def scenario() -> None:
        stage = Stage(2)
        await stage.launch.begin()
        stage.failed = {"n4": "no answer"}
        while not stage.posted:
            await asyncio.sleep(0.001)
        await stage.launch.tend()
        assert stage.started[1:] == [["n1", "n2", "n3"]]
        await stage.launch.end()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_runner_that_is_still_absent_when_training_begins_is_given_up_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "LATE_S", 0.01)

    async def scenario() -> None:
        stage = Stage(2)
        await stage.launch.begin()
        stage.come("n1", "n2", "n3")
        await stage.launch.end()
        while not stage.posted:
            await asyncio.sleep(0.001)
        assert [notice.kind for notice in stage.posted] == ["late"]

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_log_that_cannot_be_read_for_a_while_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was known before counts; when the file system answers again, what the log says then."""
    monkeypatch.setattr(launch, "_READ_TIMEOUT_S", 0.01)
    hangs, thaws = threading.Event(), threading.Event()

    class Hangs(Stage):
        def not_launched(self, nodes: Collection[str]) -> dict[str, str]:
            if hangs.is_set():
                thaws.wait(30)
            return super().not_launched(nodes)

    async def scenario() -> None:
        stage = Hangs(3)
        await stage.launch.begin()
        stage.come("n1", "n2")
        hangs.set()
        stage.failed = {"n3": "no answer"}
        assert not await stage.launch.lost("n1")
        thaws.set()
        while not await stage.launch.lost("n1"):
            pass
        await stage.launch.end()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_too_few_nodes_are_not_started_again() -> None:
    async def scenario() -> None:
        stage = Stage(4)
        await stage.launch.begin()
        stage.failed = {"n4": "no answer"}
        await stage.step_has_ended()
        await stage.launch.tend()
        assert len(stage.started) == 1 and not stage.roster.can_suffice
        await stage.launch.end()

    asyncio.run(scenario())


def test_where_nobody_is_named_those_that_have_not_come_are_tried_a_few_times() -> None:
    async def scenario() -> None:
        stage = Stage(2)
        await stage.launch.begin()
        stage.come("n1", "n2", "n3")
        for _ in range(BLIND_TRIES + 1):
            await stage.step_has_ended()
            await stage.launch.tend()
        assert stage.started[1:] == [["n4"]] * BLIND_TRIES and stage.roster.ready == ["n1", "n2", "n3"]
        await stage.launch.end()

    asyncio.run(scenario())


@pytest.mark.parametrize("named", [{}, {"n3": "no answer"}])
def test_once_it_is_over_a_lost_runner_is_a_lost_node(named: dict[str, str]) -> None:
    async def scenario() -> None:
        stage = Stage(2)
        await stage.launch.begin()
        stage.come("n1", "n2")
        await stage.launch.end()
        stage.failed = named
        assert not await stage.launch.lost("n1")
        await stage.launch.tend()
        assert len(stage.started) == 1 and stage.released == 1

    asyncio.run(scenario())


# As srun of 22.05 says it, with --quiet.
SAID = """\
srun: error: slurm_receive_msgs: [[n3]:6818] failed: Socket timed out on send/recv operation
srun: error: Task launch for StepId=1.0 failed on node n3: Socket timed out on send/recv operation
srun: error: Application launch failed: Socket timed out on send/recv operation
srun: error: n1: task 0: Killed
"""


def test_what_srun_says_of_a_launch_names_its_node(tmp_path: Path) -> None:
    log = tmp_path / "srun.log"
    first = Launches(log)
    assert first.failed(NODES) == {}
    log.write_text(SAID)
    why = "srun could start no process there: Socket timed out on send/recv operation"
    assert first.failed(NODES) == {"n3": why}
    assert first.failed(("n1", "n2")) == {}
    assert Launches(log).failed(NODES) == {}  # the next srun's has yet to say something
