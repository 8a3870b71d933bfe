"""The supervisor's end of the connections to runners: which are connected, which are silent, and their messages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from launcher.connections.channel import MAX_HALF_OPEN, Channel, ChannelError, Message, serve
from launcher.connections.listener import Listener
from launcher.connections.reports import Heartbeats, misunderstood, to_input
from launcher.core.inputs import Input, IsolationChanged, NodeLost, NodeWarm, StoodStill
from launcher.leadership.terms import SUSPECT_S

log = logging.getLogger(__name__)

SILENCE_S = 2.5  # heartbeats come every 0.5 s
ISOLATED_S = 20.0  # if most nodes are silent at once: time for another supervisor to take over before they are lost
RETURN_S = 6.0  # time to reconnect for a runner whose connection broke perhaps because of us; it tries twice a second
_PAUSE_S = 2.0  # a supervisor that was stopped for longer reads the waiting messages before it judges workers
_TICK_S = 0.1
_ACK_EVERY_S = 0.9  # every other heartbeat
_CLOSE_TIMEOUT_S = 3.0
_FEWEST_HALF_OPEN = 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")
LEAVE = {"op": "leave", "forget": False, "clear_disk": False}
_OTHER_FILES = 256  # descriptors for logs, pipes and sockets, in addition to the runners' connections


class _Link:
    def __init__(self, channel: Channel, hello: Message, allocation: str) -> None:
        self.channel = channel
        self.hello = hello
        self.allocation = allocation
        self.state = hello  # the last heartbeat
        self.unread: list[Message] = []  # messages that wait until the runner of the node's earlier allocation has left
        self.addresses: list[str] = hello["addresses"]
        self.heard_s = time.monotonic()
        self.acked_s = 0.0


@dataclass(frozen=True, kw_only=True)
class _Broken:
    """A broken connection whose runner may reconnect: the old link, the time of the break, and unsent messages."""

    link: _Link
    since_s: float
    unsent: list[Message] = field(default_factory=list)


class Links:
    """Serves the runners on the nodes of the base and of the boosters. Puts their messages into `inbox`, in order.

    Slurm may give a booster a node that an earlier booster is leaving. Then the runners of both are connected. The core
    gets the hello of the second, and its further messages only after the first has disconnected.

    Args:
        nodes: the nodes of the base.
        secret: the job's secret.
        inbox: gets an input for each message, and NodeLost for each runner that is lost.
        allocation: the allocation of the base.
        most_further: maximum number of connected nodes of boosters.
        successors: nodes that may take over, in this order.
        restart_count: number of requeues of the job. Runners of another start of the job are refused.

    Attributes:
        heartbeats: the runners' heartbeats, combined.
        term: the supervisor's term, which every runner receives.
    """

    def __init__(
        self,
        nodes: Iterable[str],
        secret: bytes,
        inbox: asyncio.Queue[Input],
        successors: Iterable[str] = (),
        restart_count: int = 0,
        allocation: str = "local",
        most_further: int = 0,
    ) -> None:
        self._nodes = frozenset(nodes)
        self._allocation = allocation
        self._most_further = most_further
        self._restart_count = restart_count
        self._successors = tuple(successors)
        self._turns: dict[str, int] | None = None  # places of the remaining successors; computed when needed
        self._away: set[str] = set()  # nodes that were lost
        self._isolated_s: float | None = None  # since when most nodes have been silent
        self._awaited: set[str] = set()  # nodes whose runners are expected; until they connect they count as silent
        self._awaited_s = 0.0
        self._broken: dict[str, _Broken] = {}  # nodes whose connection broke, perhaps because of us
        self._ticked_s = time.monotonic()
        self._stood_still_s = -RETURN_S  # end of the last time during which this process or the network stood still
        self._secret = secret
        self._inbox = inbox
        self._links: dict[str, _Link] = {}
        self._seconds: dict[str, _Link] = {}  # second runner of a node, from another allocation
        self._dismissed: dict[tuple[str, str], Message] = {}  # by node and allocation ("": any), the order to leave
        self._is_closed = False
        self.heartbeats = Heartbeats()
        self.term = 0
        self._server: Listener | None = None
        self._watching: asyncio.Task[None] | None = None

    async def open(self, host: str) -> int:
        """Start listening; returns the port."""
        kept = len(self._nodes) + 2 * self._most_further + _OTHER_FILES  # descriptors reserved for proven connections
        allowed = _allow_files(kept + MAX_HALF_OPEN)
        handshakes = max(_FEWEST_HALF_OPEN, min(MAX_HALF_OPEN, allowed - kept))
        self._server = await serve(host, self._secret, self._accept, max_half_open=handshakes)
        self._watching = asyncio.create_task(self._watch_silence())
        return self._server.port

    def send(self, node: str, message: Message) -> None:
        """Send a message to a node's runner; to a broken one after it has reconnected, to a lost one never."""
        link = self._links.get(node)
        if link is not None:
            link.channel.send(message)
        elif node in self._broken:
            self._broken[node].unsent.append(message)

    def has(self, node: str) -> bool:
        """Whether the node's runner is connected."""
        return node in self._links

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the base, and the connected nodes of boosters."""
        return (*sorted(self._nodes), *sorted((self._links.keys() | self._seconds.keys()) - self._nodes))

    def state(self, node: str) -> Message:
        """The last heartbeat of the node's runner; without useful content if the runner has just disconnected."""
        link = self._last(node)
        return link.state if link is not None else {"warm": False, "port": 0}

    def address(self, node: str) -> str:
        """The address from which the node's runner connected; the node's name if it has just disconnected."""
        link = self._last(node)
        return link.channel.peer_host if link is not None else node

    def addresses(self, node: str) -> list[str]:
        """The addresses in the hello of the node's runner, and the one from which it connected."""
        link = self._last(node)
        return [*link.addresses, link.channel.peer_host] if link is not None else []

    def await_return(self, nodes: Iterable[str]) -> None:
        """After a take-over: expect the runners of these nodes to connect."""
        self._awaited = {node for node in nodes if node not in self._links and not self._is_dismissed(node)}
        self._awaited_s = time.monotonic()

    def dismiss(self, node: str, *, forget: bool, allocation: str = "") -> None:
        """Have a node's runner end, now or when it reconnects. Its further messages are ignored.

        Args:
            node: the node.
            forget: whether the runner removes its memory directory.
            allocation: only the runner of this allocation, which leaves a job that goes on: what it is to forget, it
                forgets on the node's disk too; "" for any.
        """
        leave = LEAVE | {"forget": forget, "clear_disk": forget and allocation != ""}
        self._dismissed[node, allocation] = leave
        link = self._last(node)
        for found in (self._links.get(node), self._seconds.get(node)):
            if found is not None and allocation in ("", found.allocation):
                found.channel.send(leave)
        if link is None or allocation in ("", link.allocation):
            self._awaited.discard(node)
            self._turns = None
            if self._broken.pop(node, None) is not None:
                self._promote(node)

    @property
    def is_isolated(self) -> bool:
        """Whether most nodes are silent at once. Then this supervisor's host may be the one that is cut off."""
        return self._isolated_s is not None

    def abort(self) -> None:
        """Close all connections without a message."""
        self._is_closed = True
        if self._watching is not None:
            self._watching.cancel()
        if self._server is not None:
            self._server.close()
        for link in (*self._links.values(), *self._seconds.values()):
            link.channel.abort()

    async def close(self) -> None:
        """Wait until the dismissed runners have disconnected, then close all connections."""
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        while (self._links or self._seconds) and time.monotonic() < deadline:
            await asyncio.sleep(_TICK_S / 5)
        self.abort()

    async def _accept(self, channel: Channel, hello: Message) -> None:
        if hello.get("op") == "follow":
            await self._serve_follower(channel)
            return
        node, allocation = hello.get("node"), hello.get("allocation")
        if not isinstance(node, str) or not isinstance(allocation, str) or not self._is_expected(hello):
            log.warning("%s refused: it speaks for node %r, allocation %r", channel.peer_host, node, allocation)
            return
        if not self._is_of_this_start(channel, hello):
            return
        if self._is_dismissed(node, allocation):
            channel.send(self._dismissed.get((node, allocation), self._dismissed.get((node, ""), LEAVE)))
            return
        link = _Link(channel, hello, allocation)
        before = self._last(node)
        place = self._links if before is None or before.allocation == allocation else self._seconds
        if node in place:
            place[node].channel.abort()
        place[node] = link
        channel.send({"op": "welcome", "term": self.term, "turn": self._turn(node)})
        if place is self._links:
            self._awaited.discard(node)
            if node in self._away:
                self._away.discard(node)
                self._turns = None
            broken = self._broken.pop(node, None)
            for message in broken.unsent if broken is not None else ():
                channel.send(message)
        self._put(to_input(node, hello))
        try:
            while True:
                self._receive(node, link, await channel.receive())
        except ChannelError:
            self._close(node, link)

    def _is_expected(self, hello: Message) -> bool:
        """Whether a runner, which knows the job's secret, may speak for its node."""
        node, allocation = hello["node"], hello["allocation"]
        if hello.get("op") != "hello" or not _NAME.fullmatch(node) or not _NAME.fullmatch(allocation):
            return False
        if node in self._nodes:
            return bool(allocation == self._allocation)
        further = (self._links.keys() | self._broken.keys() | {node}) - self._nodes
        return allocation != self._allocation and len(further) <= self._most_further

    def _receive(self, node: str, link: _Link, message: Message) -> None:
        link.heard_s = time.monotonic()
        if message["op"] == "heartbeat":
            if link.state is link.hello and (broken := misunderstood(node, message)) is not None:
                self._put(broken)  # only of the first: thousands of nodes have two a second
                return
            link.state = message
            if self._links.get(node) is link and self.heartbeats.add(node, message):
                self._put(NodeWarm(node=node))
            turn = self._turn(node)  # the first successor must notice our loss soonest
            if turn == 0 or link.heard_s - link.acked_s >= _ACK_EVERY_S:
                link.acked_s = link.heard_s
                link.channel.send({"op": "ack", "turn": turn})
        elif self._seconds.get(node) is link:
            link.unread.append(message)
        else:
            self._put(to_input(node, message))

    def _is_dismissed(self, node: str, allocation: str | None = None) -> bool:
        """Whether the runner of a node in this allocation was dismissed. Default: the base."""
        own = self._allocation if allocation is None else allocation
        return self._is_closed or (node, "") in self._dismissed or (node, own) in self._dismissed

    def _promote(self, node: str) -> None:
        """After a node's runner has disconnected: its second runner, of another allocation, takes its place."""
        if (link := self._seconds.pop(node, None)) is None:
            return
        self._links[node] = link
        self._put(to_input(node, link.hello | {"warm": link.state["warm"]}))
        for message in link.unread:
            self._put(to_input(node, message))
        link.unread.clear()

    def _is_of_this_start(self, channel: Channel, hello: Message) -> bool:
        """Whether a runner belongs to this start of the job, by its number of requeues.

        A runner of an earlier start ends, but keeps the memory directory, which this start uses. A runner of a later
        start searches for its own supervisor again.
        """
        restart_count = hello.get("restart_count")
        if restart_count == self._restart_count:
            return True
        found = f"restart {restart_count!r} of the job, expected {self._restart_count}"
        log.warning("runner of %s at %s refused: it is of %s", hello["node"], channel.peer_host, found)
        if isinstance(restart_count, int) and restart_count < self._restart_count:
            channel.send(LEAVE)
        return False

    async def _serve_follower(self, channel: Channel) -> None:
        """Serve another task of the Slurm job in which this supervisor runs. It stays while the supervisor answers."""
        channel.send({"op": "welcome"})
        with contextlib.suppress(ChannelError):
            while True:
                await channel.receive()
                channel.send({"op": "ack"})

    async def _watch_silence(self) -> None:
        self._ticked_s = time.monotonic()
        while True:
            await asyncio.sleep(_TICK_S)
            now_s = time.monotonic()
            lag_s = now_s - self._ticked_s - _TICK_S
            if self._stands_still(now_s):
                self._stood_still_s = now_s
            self._ticked_s = now_s
            if lag_s > _TICK_S:  # this process did not run, so messages may have come that it has not read yet
                for link in (*self._links.values(), *self._seconds.values()):
                    link.heard_s += lag_s
            if lag_s > _PAUSE_S:
                self._put(StoodStill(seconds=lag_s))
            if self._may_be_cut_off(now_s):
                continue
            for node, broken in list(self._broken.items()):
                if now_s - broken.since_s > RETURN_S:
                    del self._broken[node]
                    why = f"its connection broke, and it did not come back in {RETURN_S:g} s"
                    self._report_lost(node, broken.link, why, 0.0)
            for node, link in [*self._links.items(), *self._seconds.items()]:
                silent_s = now_s - link.heard_s
                if silent_s > SILENCE_S:
                    self._lose(node, link, f"silent for {silent_s:.1f} s", silent_s)
                    link.channel.abort()

    def _turn(self, node: str) -> int | None:
        """A node's place in the succession."""
        if self._turns is None:
            left = (other for other in self._successors if not self._is_dismissed(other) and other not in self._away)
            self._turns = {other: turn for turn, other in enumerate(left)}
        return self._turns.get(node)

    def _may_be_cut_off(self, now_s: float) -> bool:
        """Whether this supervisor's host may be cut off, rather than the nodes. With two nodes this is undecidable.

        Only nodes of the base count: boosters may all end at once, and never take over.
        """
        links = [link for node, link in self._links.items() if node in self._nodes]
        awaited = self._awaited & self._nodes
        broken = [one for node, one in self._broken.items() if node in self._nodes]
        silent = sum(now_s - link.heard_s > SUSPECT_S for link in links)
        silent += len(awaited) if now_s - self._awaited_s > SUSPECT_S else 0
        silent += sum(now_s - one.since_s > SUSPECT_S for one in broken)
        if 2 * silent <= len(links) + len(awaited) + len(broken):
            if self._isolated_s is not None:
                self._put(IsolationChanged(is_isolated=False))
            self._isolated_s = None
            return False
        if self._isolated_s is None:
            self._isolated_s = now_s
            self._put(IsolationChanged(is_isolated=True))
        if now_s - self._isolated_s < ISOLATED_S:
            return True
        self._awaited.clear()
        return False

    def _last(self, node: str) -> _Link | None:
        """The node's connection, or a broken one whose runner may reconnect."""
        broken = self._broken.get(node)
        return broken.link if broken is not None else self._links.get(node)

    def _stands_still(self, now_s: float) -> bool:
        return now_s - self._ticked_s > SUSPECT_S

    def _close(self, node: str, link: _Link) -> None:
        """Handle the end of a connection. If this process or the network stood still, the node may be healthy."""
        now_s = time.monotonic()
        in_doubt = self.is_isolated or self._stands_still(now_s) or now_s - self._stood_still_s < RETURN_S
        if in_doubt and self._links.get(node) is link and not self._is_dismissed(node, link.allocation):
            log.warning("%s: connection broke while this process or the network stood still; it may reconnect", node)
            del self._links[node]
            self._broken[node] = _Broken(link=link, since_s=now_s)
        else:
            self._lose(node, link, "the connection to its runner closed", 0.0)

    def _lose(self, node: str, link: _Link, reason: str, detect_s: float) -> None:
        if self._links.get(node) is link:
            del self._links[node]
            self._report_lost(node, link, reason, detect_s)
        elif self._seconds.get(node) is link:
            del self._seconds[node]

    def _report_lost(self, node: str, link: _Link, reason: str, detect_s: float) -> None:
        if node in self._nodes:
            self._away.add(node)
            self._turns = None
        self.heartbeats.left(node)
        if not self._is_dismissed(node, link.allocation):
            self._put(NodeLost(node=node, reason=reason, detect_s=round(detect_s, 3)))
        self._promote(node)

    def _put(self, given: Input | None) -> None:
        if given is not None:
            self._inbox.put_nowait(given)


def _allow_files(count: int) -> int:
    """Raise the soft limit of open files to `count` if it is lower, up to the hard limit. Returns the soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        soft = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return count if soft == resource.RLIM_INFINITY else soft
