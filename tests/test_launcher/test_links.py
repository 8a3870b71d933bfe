"""The supervisor's end of the runners' connections, with runners in the test's hands."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import pytest
from talkers import heartbeat

from launcher.connections.channel import Channel, ChannelError, Message, connect
from launcher.connections.links import LEAVE, Links
from launcher.core import liveness
from launcher.core.inputs import Input, IsolationChanged, NodeJoined, NodeLost, NodeWarm, Terminated

SECRET = b"secret"
HELLO: Message = {"op": "hello", "pid": 1, "problem": None, "attempt": None, "addresses": [], "warm": True, "port": 1}
BEAT: Message = heartbeat()
DEADLINE_S = 30.0


class Runners:
    """Of nodes n1, n2, ...; the supervisor's is n1."""

    def __init__(self, count: int) -> None:
        self.nodes = [f"n{number}" for number in range(1, count + 1)]
        self.inbox: asyncio.Queue[Input] = asyncio.Queue()
        self.links = Links(self.nodes, SECRET, self.inbox, successors=self.nodes[1:], most_further=2)
        self.channels: dict[str, Channel] = {}
        self.turns: dict[str, int | None] = {}
        self.restart_count = 0

    async def join(self, *, alone: bool = False) -> None:
        self.port = await self.links.open("127.0.0.1")
        for node in self.nodes[:1] if alone else self.nodes:
            await self.connect(node)

    async def connect(self, node: str, allocation: str = "local") -> None:
        hello = {
            **HELLO,
            "node": node,
            "restart_count": self.restart_count,
            "allocation": allocation,
        }
        self.channels[node], welcome = await connect("127.0.0.1", self.port, SECRET, hello)
        self.turns[node] = welcome["turn"]

    def pending(self) -> list[Input]:
        """What is yet to be read."""
        return [self.inbox.get_nowait() for _ in range(self.inbox.qsize())]

    @contextlib.asynccontextmanager
    async def beating(self, nodes: list[str]) -> AsyncIterator[None]:
        """Meanwhile these nodes' hearts beat."""

        async def beat() -> None:
            while True:
                for node in nodes:
                    self.channels[node].send(BEAT)
                await asyncio.sleep(0.2)

        task = asyncio.create_task(beat())
        try:
            yield
        finally:
            task.cancel()

    async def next_of(self, *kinds: type) -> Input:
        """The next input of these kinds."""
        while not isinstance(given := await asyncio.wait_for(self.inbox.get(), DEADLINE_S), kinds):
            pass
        return given

    async def beats(self, node: str, number: int = 1) -> None:
        """Sends a heartbeat, and waits until it has arrived."""
        self.channels[node].send(BEAT | {"port": 1000 + number})
        await asyncio.wait_for(until(lambda: self.links.state(node)["port"] == 1000 + number), DEADLINE_S)


def test_who_is_next_is_answered_every_time_and_the_others_every_other_time() -> None:
    """So that the one that is to follow a lost supervisor misses it soonest."""

    async def answers(runners: Runners, node: str) -> list[str]:
        channel = runners.channels[node]
        for number in range(3):
            await runners.beats(node, number)
        runners.links.send(node, {"op": "end"})
        heard = [""]
        while heard[-1] != "end":
            heard.append((await asyncio.wait_for(channel.receive(), DEADLINE_S))["op"])
        return heard[1:-1]

    async def scene() -> None:
        runners = Runners(3)
        await runners.join()
        assert runners.turns == {"n1": None, "n2": 0, "n3": 1}
        assert await answers(runners, "n2") == ["ack", "ack", "ack"]
        assert await answers(runners, "n3") == ["ack"]
        runners.links.abort()

    asyncio.run(scene())


def test_one_that_has_taken_over_and_to_which_nobody_comes_doubts_itself_too() -> None:
    async def scene() -> None:
        runners = Runners(4)
        await runners.join(alone=True)
        runners.links.await_return(runners.nodes[:3])
        async with runners.beating(runners.nodes[:1]):
            assert await runners.next_of(IsolationChanged, NodeLost) == IsolationChanged(is_isolated=True)
            assert runners.links.is_isolated
            for node in runners.nodes[1:3]:
                runners.links.dismiss(node, forget=False)
            assert await runners.next_of(IsolationChanged, NodeLost) == IsolationChanged(is_isolated=False)
            assert not runners.links.is_isolated
        runners.links.abort()

    asyncio.run(scene())


@pytest.mark.parametrize(("restart_count", "answer"), [(1, LEAVE), (3, None), ("2", None)])
def test_a_runner_of_another_start_of_the_job_does_not_take_its_nodes_place(
    restart_count: object, answer: Message | None
) -> None:
    """Slurm gave the node up and requeued the job onto it; the old runner comes back under the node's name."""

    async def scene() -> None:
        runners = Runners(2)
        runners.restart_count = 2
        runners.links = Links(runners.nodes, SECRET, runners.inbox, restart_count=2)
        await runners.join(alone=True)
        hello = {**HELLO, "node": "n1", "restart_count": restart_count}
        hello |= {"allocation": "local"}
        if answer is not None:
            _, said = await connect("127.0.0.1", runners.port, SECRET, hello)
            assert said == answer
        else:
            with pytest.raises(ChannelError):
                await connect("127.0.0.1", runners.port, SECRET, hello)
        assert runners.pending() == [NodeJoined(node="n1", allocation="local", is_warm=True)]
        await runners.beats("n1")
        assert runners.pending() == [NodeWarm(node="n1")], "the right runner stays connected"
        runners.links.abort()

    asyncio.run(scene())


def test_connections_that_close_while_the_supervisor_stands_still_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent meanwhile arrives in order; a runner that does not come back is lost."""
    monkeypatch.setattr(liveness, "SUSPECT_S", 0.2)
    monkeypatch.setattr(liveness, "RETURN_S", 0.5)

    async def scene() -> None:
        runners = Runners(5)
        await runners.join()
        for node in ("n2", "n3"):
            runners.channels[node].abort()
        time.sleep(0.4)  # of this loop, which is the supervisor's too
        async with runners.beating(["n1", "n4", "n5"]):
            await asyncio.wait_for(until(lambda: not runners.links.has("n2")), DEADLINE_S)
            for op in ("stop", "kill"):
                runners.links.send("n2", {"op": op})
            await runners.connect("n2")
            received = [await runners.channels["n2"].receive() for _ in range(2)]
            assert [message["op"] for message in received] == ["stop", "kill"]
            lost = await runners.next_of(NodeLost)
            assert isinstance(lost, NodeLost) and (lost.node, lost.detect_s) == ("n3", 0.0)
        runners.links.abort()

    asyncio.run(scene())


def test_a_cluster_without_successors_doubts_itself_when_all_nodes_are_silent() -> None:
    async def scene() -> None:
        runners = Runners(2)
        runners.links = Links(runners.nodes, SECRET, runners.inbox)
        await runners.join()
        assert await runners.next_of(IsolationChanged, NodeLost) == IsolationChanged(is_isolated=True)
        for channel in runners.channels.values():
            channel.abort()
        await asyncio.wait_for(until(lambda: not runners.links.has("n1")), DEADLINE_S)
        for node in runners.nodes:
            await runners.connect(node)
        await asyncio.wait_for(until(lambda: not runners.links.is_isolated), DEADLINE_S)
        came = [given for given in runners.pending() if not isinstance(given, IsolationChanged)]
        assert came == [NodeJoined(node=node, allocation="local", is_warm=True) for node in runners.nodes]
        runners.links.abort()

    asyncio.run(scene())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("nodes", "silent", "doubts"),
    [(2, 1, False), (3, 1, False), (3, 2, True), (4, 2, False), (4, 3, True), (5, 2, False), (5, 3, True)],
)
def test_a_supervisor_doubts_itself_when_more_than_half_of_its_nodes_are_silent(
    nodes: int, silent: int, doubts: bool
) -> None:
    """Otherwise it puts the silent ones out. Of two halves it is the supervisor's that goes on."""

    async def scene() -> None:
        runners = Runners(nodes)
        await runners.join()

        async with runners.beating(runners.nodes[:-silent]):
            given = await runners.next_of(IsolationChanged, NodeLost)
        assert isinstance(given, IsolationChanged) is doubts and runners.links.is_isolated is doubts
        assert doubts or (isinstance(given, NodeLost) and given.node in runners.nodes[-silent:])
        runners.links.abort()

    asyncio.run(scene())


def heard(runners: Runners) -> list[Input]:
    """What has come in since the last time, without heartbeats."""
    return [given for given in runners.pending() if not isinstance(given, NodeWarm)]


def test_a_boosters_node_joins_with_its_allocation_and_is_no_successor() -> None:
    async def scene() -> None:
        runners = Runners(2)
        await runners.join()
        heard(runners)
        await runners.connect("b1", "8")
        assert heard(runners) == [NodeJoined(node="b1", allocation="8", is_warm=True)]
        assert runners.turns == {"n1": None, "n2": 0, "b1": None}
        runners.links.abort()

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("node", "allocation"),
    [("n2", "8"), ("b1", "local"), ("../b1", "8"), ("b1", ""), ("b3", "8")],
    ids=["base node", "base's allocation", "no node's name", "no allocation", "one too many"],
)
def test_a_runner_of_no_booster_of_the_job_is_refused(node: str, allocation: str) -> None:
    async def scene() -> None:
        runners = Runners(2)
        await runners.join()
        if node == "b3":
            await runners.connect("b1", "8")
            await runners.connect("b2", "8")
        heard(runners)
        with pytest.raises(ChannelError):
            await runners.connect(node, allocation)
        assert not heard(runners)
        runners.links.abort()

    asyncio.run(scene())


def test_a_node_that_the_next_booster_has_already_got_is_the_earlier_ones_until_that_has_gone() -> None:
    async def scene() -> None:
        runners = Runners(2)
        await runners.join()
        await runners.connect("b1", "8")
        first = runners.channels["b1"]
        heard(runners)
        await runners.connect("b1", "9")
        joined = NodeJoined(node="b1", allocation="9", is_warm=True)
        assert heard(runners) == [joined]
        runners.channels["b1"].send({"op": "signal", "name": "SIGTERM"})
        runners.links.send("b1", {"op": "stop"})
        assert await asyncio.wait_for(first.receive(), DEADLINE_S) == {"op": "stop"}
        runners.links.dismiss("b1", forget=True, allocation="8")
        assert await asyncio.wait_for(first.receive(), DEADLINE_S) == LEAVE | {"forget": True, "clear_disk": True}
        await first.close()
        assert await runners.next_of(NodeJoined) == joined
        assert await runners.next_of(Terminated) == Terminated(node="b1")
        runners.links.send("b1", {"op": "hold"})
        assert await asyncio.wait_for(runners.channels["b1"].receive(), DEADLINE_S) == {"op": "hold"}
        runners.links.abort()

    asyncio.run(scene())


def test_a_dismissed_booster_stays_away_and_the_next_one_on_its_node_is_taken_on() -> None:
    async def scene() -> None:
        runners = Runners(2)
        await runners.join()
        await runners.connect("b1", "8")
        runners.links.dismiss("b1", forget=True, allocation="8")
        await runners.channels["b1"].close()
        await asyncio.wait_for(until(lambda: not runners.links.has("b1")), DEADLINE_S)
        heard(runners)
        hello = {**HELLO, "node": "b1", "restart_count": 0, "allocation": "8"}
        channel, answer = await connect("127.0.0.1", runners.port, SECRET, hello)
        assert answer == LEAVE | {"forget": True, "clear_disk": True}
        await channel.close()
        await runners.connect("b1", "9")
        assert heard(runners) == [NodeJoined(node="b1", allocation="9", is_warm=True)]
        runners.links.abort()

    asyncio.run(scene())


def test_boosters_that_fall_silent_together_are_no_reason_for_doubt() -> None:
    async def scene() -> None:
        runners = Runners(2)
        await runners.join()
        await runners.connect("b1", "8")
        await runners.connect("b2", "8")
        heard(runners)
        async with runners.beating(runners.nodes):
            lost = {(await runners.next_of(NodeLost, IsolationChanged)).node for _ in range(2)}  # type: ignore[union-attr]
        assert lost == {"b1", "b2"}
        runners.links.abort()

    asyncio.run(scene())
