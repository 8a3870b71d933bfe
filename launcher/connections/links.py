"""The supervisor's end of the connections to runners: which are connected, which are silent, and their messages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import resource
import time
from collections.abc import Iterable

from launcher.connections.channel import MAX_HALF_OPEN, Channel, ChannelError, Message, serve
from launcher.connections.listener import Listener
from launcher.connections.reports import Heartbeats, misunderstood, to_input
from launcher.core.inputs import Input, NodeWarm
from launcher.core.liveness import TICK_S, Action, Drop, Forget, Liveness, Peer, Promote

log = logging.getLogger(__name__)

_ACK_EVERY_S = 0.9  # every other heartbeat
_CLOSE_TIMEOUT_S = 3.0
_FEWEST_HALF_OPEN = 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")
LEAVE = {"op": "leave", "forget": False, "clear_disk": False}
_OTHER_FILES = 256  # descriptors for logs, pipes and sockets, in addition to the runners' connections


class _Link(Peer):
    """A runner's connection with its socket.

    Attributes:
        state: the last heartbeat.
        unread: messages that wait until the runner of the node's earlier allocation has left.
        unsent: messages that wait until the runner has reconnected.
    """

    __slots__ = ("acked_s", "addresses", "channel", "hello", "state", "unread", "unsent")

    def __init__(self, channel: Channel, node: str, allocation: str, hello: Message) -> None:
        super().__init__(node, allocation, time.monotonic())
        self.channel = channel
        self.hello = hello
        self.state = hello
        self.unread: list[Message] = []
        self.unsent: list[Message] = []
        self.addresses: list[str] = hello["addresses"]
        self.acked_s = 0.0


class Links:
    """Serves the runners on the nodes of the base and of the boosters. Puts their messages into `inbox`, in order.

    Which connection counts, and which node is lost, is decided by launcher.core.liveness.

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
        self._liveness: Liveness[_Link] = Liveness(self._nodes, allocation, successors)
        self._ran_s = time.monotonic()  # the last time at which this process is known to have run
        self._secret = secret
        self._inbox = inbox
        self._orders: dict[tuple[str, str], Message] = {}  # by node and allocation ("": any), the order to leave
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
        link = self._liveness.last(node)
        if link is None:
            return
        if self._liveness.is_broken(node):
            link.unsent.append(message)
        else:
            link.channel.send(message)

    def has(self, node: str) -> bool:
        """Whether the node's runner is connected."""
        return node in self._liveness.peers

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the base, and the connected nodes of boosters."""
        connected = self._liveness.peers.keys() | self._liveness.seconds.keys()
        return (*sorted(self._nodes), *sorted(connected - self._nodes))

    def state(self, node: str) -> Message:
        """The last heartbeat of the node's runner; without useful content if the runner has just disconnected."""
        link = self._liveness.last(node)
        return link.state if link is not None else {"warm": False, "port": 0}

    def address(self, node: str) -> str:
        """The address from which the node's runner connected; the node's name if it has just disconnected."""
        link = self._liveness.last(node)
        return link.channel.peer_host if link is not None else node

    def addresses(self, node: str) -> list[str]:
        """The addresses in the hello of the node's runner, and the one from which it connected."""
        link = self._liveness.last(node)
        return [*link.addresses, link.channel.peer_host] if link is not None else []

    def await_return(self, nodes: Iterable[str]) -> None:
        """After a take-over: expect the runners of these nodes to connect."""
        self._liveness.await_return(nodes, time.monotonic())

    def dismiss(self, node: str, *, forget: bool, allocation: str = "") -> None:
        """Have a node's runner end, now or when it reconnects. Messages that it sends before are passed on.

        Args:
            node: the node.
            forget: whether the runner removes its memory directory.
            allocation: only the runner of this allocation, which leaves a job that goes on: what it is to forget, it
                forgets on the node's disk too; "" for any.
        """
        leave = LEAVE | {"forget": forget, "clear_disk": forget and allocation != ""}
        self._orders[node, allocation] = leave
        for link in (self._liveness.peers.get(node), self._liveness.seconds.get(node)):
            if link is not None and allocation in ("", link.allocation):
                link.channel.send(leave)
        self._do(self._liveness.dismiss(node, allocation))

    @property
    def is_isolated(self) -> bool:
        """Whether most nodes are silent at once. Then this supervisor's host may be the one that is cut off."""
        return self._liveness.is_isolated

    def abort(self) -> None:
        """Close all connections without a message."""
        self._liveness.close()
        if self._watching is not None:
            self._watching.cancel()
        if self._server is not None:
            self._server.close()
        for link in self._connected():
            link.channel.abort()

    def _connected(self) -> list[_Link]:
        return [*self._liveness.peers.values(), *self._liveness.seconds.values()]

    async def close(self) -> None:
        """Wait until the dismissed runners have disconnected, then close all connections."""
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        while self._connected() and time.monotonic() < deadline:
            await asyncio.sleep(TICK_S / 5)
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
        if self._liveness.is_dismissed(node, allocation):
            channel.send(self._orders.get((node, allocation), self._orders.get((node, ""), LEAVE)))
            return
        link, before = _Link(channel, node, allocation, hello), self._liveness.last(node)
        self._do(self._liveness.join(link))
        channel.send({"op": "welcome", "term": self.term, "turn": self._liveness.turn(node)})
        if before is not None and self._is_first(link):
            for message in before.unsent:
                channel.send(message)
        self._put(to_input(node, hello))
        try:
            while True:
                self._receive(node, link, await channel.receive())
        except ChannelError:
            self._do(self._liveness.closed(link, time.monotonic(), self._ran_s))
            if self._liveness.last(node) is link:
                what = "connection broke while this process or the network stood still; it may reconnect"
                log.warning("%s: %s", node, what)

    def _is_first(self, link: _Link) -> bool:
        """Whether the node is heard over this connection."""
        return self._liveness.peers.get(link.node) is link

    def _is_expected(self, hello: Message) -> bool:
        """Whether a runner, which knows the job's secret, may speak for its node."""
        node, allocation = hello["node"], hello["allocation"]
        if hello.get("op") != "hello" or not _NAME.fullmatch(node) or not _NAME.fullmatch(allocation):
            return False
        if node in self._nodes:
            return bool(allocation == self._allocation)
        further = self._liveness.boosters | {node}
        return allocation != self._allocation and len(further) <= self._most_further

    def _receive(self, node: str, link: _Link, message: Message) -> None:
        link.heard_s = time.monotonic()
        if message["op"] == "heartbeat":
            if link.state is link.hello and (broken := misunderstood(node, message)) is not None:
                self._put(broken)  # only of the first: thousands of nodes have two a second
                return
            link.state = message
            if self._is_first(link) and self.heartbeats.add(node, message):
                self._put(NodeWarm(node=node))
            turn = self._liveness.turn(node)  # the first successor must notice our loss soonest
            if turn == 0 or link.heard_s - link.acked_s >= _ACK_EVERY_S:
                link.acked_s = link.heard_s
                link.channel.send({"op": "ack", "turn": turn})
        elif self._liveness.seconds.get(node) is link:
            link.unread.append(message)
        else:
            self._put(to_input(node, message))

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
        self._ran_s = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.monotonic()
            actions = self._liveness.tick(now_s, self._ran_s)
            self._ran_s = now_s
            self._do(actions)

    def _do(self, actions: Iterable[Action[_Link]]) -> None:
        """Carry out what was decided about connections."""
        for action in actions:
            match action:
                case Drop(peer=link):
                    link.channel.abort()
                case Forget(node=node):
                    self.heartbeats.left(node)
                case Promote(peer=link):
                    self._put(to_input(link.node, link.hello | {"warm": link.state["warm"]}))
                    for message in link.unread:
                        self._put(to_input(link.node, message))
                    link.unread.clear()
                case _:
                    self._put(action)

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
