"""What the agent's tests share: an in-process transport, workers that speak the protocol, and a world of agents."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ckpt.agent.agent import Agent
from ckpt.agent.process.lifetime import MemoryDirectory
from ckpt.agent.rpc.framing import Decoder, encode
from ckpt.agent.rpc.transport import (
    LEAST_MAX_TAG,
    MAX_MESSAGE_BYTES,
    SoloTransport,
    Transfer,
    Transport,
    TransportError,
)
from ckpt.agent.save.leader import SaveLeader
from ckpt.config import CheckpointConfig, Place
from ckpt.errors import AgentError
from ckpt.format.layout import Chunk, Layout
from ckpt.format.line import Line
from ckpt.format.shard_record import SaveId, read_record
from ckpt.timeouts import AgentDeadlines

RUN_ID = "run-1"
NAMESPACE = "test"
LINE = Line(number=1, id="0000000a")  # that the workers save to, unless a test says otherwise
WAIT_S = 60.0  # for what takes well under one on an idle machine; making a client of S3 alone is half a second of CPU
DEADLINES = AgentDeadlines(answer_s=30, seal_s=10, protect_s=10, beat_s=0.05, quiet_s=0.3, load_s=0.05)


class FakeWorld:
    """Transports that share queues in one process; keeps the contract's promises on order, and no more."""

    def __init__(self, size: int) -> None:
        self.messages: list[deque[tuple[int, bytes]]] = [deque() for _ in range(size)]
        self.ranges: dict[tuple[int, int, int], tuple[deque[Any], deque[Any]]] = defaultdict(lambda: (deque(), deque()))
        self.dead: set[int] = set()
        self.lock = threading.Lock()
        self.transports = [FakeTransport(self, rank, size) for rank in range(size)]


class FakeTransport:
    def __init__(self, world: FakeWorld, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.max_tag = LEAST_MAX_TAG
        self.fail: str | None = None
        self._world = world

    def send(self, to: int, message: bytes) -> None:
        self._check()
        if len(message) > MAX_MESSAGE_BYTES:
            raise TransportError("too long")
        if not {to, self.rank} & self._world.dead:
            self._world.messages[to].append((self.rank, message))

    def receive(self) -> tuple[int, bytes] | None:
        self._check()
        mine = self._world.messages[self.rank]
        return mine.popleft() if mine and self.rank not in self._world.dead else None

    def send_range(self, to: int, tag: int, data: memoryview) -> Transfer:
        return self._post((self.rank, to, tag), data, 0)

    def receive_range(self, source: int, tag: int, into: memoryview) -> Transfer:
        return self._post((source, self.rank, tag), into, 1)

    def done(self, transfers: Sequence[Any]) -> list[int]:
        return [i for i, transfer in enumerate(transfers) if transfer.complete]

    def close(self) -> None:
        return

    def _post(self, key: tuple[int, int, int], data: memoryview, side: int) -> Transfer:
        self._check()
        if not 0 < key[2] <= self.max_tag:
            raise TransportError(f"tag {key[2]}")
        transfer = FakeTransfer(data)
        with self._world.lock:
            queues = self._world.ranges[key]
            queues[side].append(transfer)
            while queues[0] and queues[1] and not set(key[:2]) & self._world.dead:
                sender, receiver = queues[0].popleft(), queues[1].popleft()
                receiver.data[:] = sender.data
                sender.complete = receiver.complete = True
        return transfer

    def _check(self) -> None:
        if self.fail:
            raise TransportError(self.fail)


class FakeTransfer:
    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.complete = False

    def cancel(self) -> None:
        self.complete = True


def config(
    shared: Path | None = None,
    scheme: str = "partner",
    keep: int = 2,
    every_steps: int = 10,
    nvme: dict[str, Any] | None = None,
    s3: dict[str, Any] | None = None,
    **redundancy: int | str,
) -> CheckpointConfig:
    section: dict[str, Any] = {
        "namespace": NAMESPACE,
        "memory": {"keep": keep},
        "redundancy": {"scheme": scheme, **redundancy},
    }
    section |= {name: tier for name, tier in (("nvme", nvme), ("s3", s3)) if tier}
    if shared:
        section["shared"] = {"path": str(shared), "every_steps": every_steps, "keep": 2}
    return CheckpointConfig.from_mapping(section)


def save_id(step: int, attempt: int = 0, line: Line = LINE) -> SaveId:
    """The id of a save of these workers."""
    return SaveId(step=step, attempt=attempt, run_id=RUN_ID, line=line)


def layout(nbytes: int) -> Layout:
    chunk = Chunk(key="x", dtype="uint8", shape=(nbytes,), offsets=(0,), sizes=(nbytes,), start=0, nbytes=nbytes)
    return Layout(chunks=(chunk,), tree={"x": {"#tensor": "x"}}, nbytes=nbytes)


def content(rank: int, step: int, nbytes: int = 5000) -> bytes:
    """Bytes that tell rank and step apart in every position."""
    return bytes((rank * 31 + step * 7 + i) % 251 for i in range(256)) * (nbytes // 256) + bytes(nbytes % 256)


class Link:
    """A connection to an agent; what arrives is kept until somebody asks for it."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.closed = False
        self._changed = asyncio.Condition()
        self._ids = 0

    async def open(self, path: Path, hello: dict[str, Any]) -> None:
        self._reader, self._writer = await asyncio.open_unix_connection(path)
        self.send(op="hello", **hello)
        self._task = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        decoder = Decoder()
        while data := await self._reader.read(1 << 16):
            async with self._changed:
                self.messages += decoder.feed(data)
                self._changed.notify_all()
        async with self._changed:
            self.closed = True
            self._changed.notify_all()

    def send(self, **message: Any) -> None:
        self._writer.write(encode(message))

    async def request(self, op: str, **fields: Any) -> dict[str, Any]:
        self._ids += 1
        number = self._ids
        self.send(op=op, id=number, **fields)
        return await self.wait_for(lambda m: m.get("re") == number)

    async def event(self, name: str, **fields: Any) -> dict[str, Any]:
        """Waits for an event with these fields; it stays in `messages`."""
        return await self.wait_for(lambda m: m.get("event") == name and fields.items() <= m.items())

    async def wait_for(self, matches: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            return next((message for message in self.messages if matches(message)), None)

        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait_for(lambda: found() or self.closed), WAIT_S)
            except TimeoutError:
                raise AssertionError(f"not seen within {WAIT_S} s; got {self.messages}") from None
            message = found()
        assert message is not None, f"connection closed; got {self.messages}"
        return message

    def seen(self, name: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message.get("event") == name]

    async def close(self) -> None:
        self._task.cancel()
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


class Worker(Link):
    """A training process as the agent sees it."""

    def __init__(self, place: Place, local_rank: int) -> None:
        super().__init__()
        self.place = place
        self.local_rank = local_rank
        self.rank = place.node_rank * place.ranks_per_node + local_rank
        self.has_plan = place.generation > 0

    async def request(self, op: str, **fields: Any) -> dict[str, Any]:
        reply = with_step(await super().request(op, **fields))
        self.has_plan |= op == "plan"
        return reply

    async def connect(self) -> Worker:
        await self.open(
            self.place.socket_path,
            {
                "role": "worker",
                "local_rank": self.local_rank,
                "rank": self.rank,
                "pid": os.getpid(),
            },
        )
        return self

    def stage(self, step: int, slot: int, data: bytes | None = None) -> bytes:
        assert self.has_plan, "a worker asks for the plan before its first save, or the restore might take that up"
        data = content(self.rank, step) if data is None else data
        name = f"own-{self.local_rank}-{slot}"
        (self.place.ram_dir / f"{name}.json").unlink(missing_ok=True)
        path = self.place.ram_dir / f"{name}.data"
        if not path.exists():
            path.touch(0o600)
        with path.open("r+b") as file:
            file.write(data)
        return data

    def save(
        self,
        step: int,
        slot: int,
        data: bytes | None = None,
        flush: bool = False,
        line: Line = LINE,
        **fields: Any,
    ) -> None:
        staged, of = layout(len(self.stage(step, slot, data))).to_json(), line.to_json()
        self.send(op="staged", slot=slot, step=step, rank=self.rank, layout=staged, descent=of, flush=flush, **fields)

    async def read(self, rank: int, blocks: list[int] | None = None, step: int | None = None) -> bytes:
        """The bytes of a saved rank, as `open` leads to them."""
        reply = await self.request("open", rank=rank, blocks=blocks, step=step)
        assert "error" not in reply, reply
        nbytes = reply["record"]["layout"]["nbytes"]
        with open(reply["path"], "rb") as file:
            file.seek(reply["base"])
            return file.read(nbytes)


def with_step(reply: dict[str, Any]) -> dict[str, Any]:
    """An agent's reply, with `step` and `attempt` of the save that it names."""
    if "save" not in reply:
        return reply
    save = reply["save"] or {}
    return reply | {"step": save.get("step"), "attempt": save.get("attempt")}


class World:
    """The agents of one attempt, in this process, with their workers and monitors.

    In a first attempt, where there is little to restore, the workers have the plan already.
    """

    def __init__(
        self,
        root: Path,
        nodes: list[str],
        attempt: int,
        checkpoint: CheckpointConfig,
        ranks_per_node: int = 1,
        deadlines: AgentDeadlines = DEADLINES,
        generation: int = 0,
        until_unused: bool = False,
        holders: Sequence[str] = (),
        asks_for_plan: bool = True,
    ) -> None:
        self.fake = FakeWorld(len(nodes) + len(holders))
        self.places = []
        self.workers: list[Worker] = []
        self.monitors: list[Link] = []
        self._checkpoint = checkpoint
        self._deadlines = deadlines
        self._until_unused = until_unused
        self._asks_for_plan = asks_for_plan and attempt == generation == 0
        for node in (*nodes, *holders):
            ram_dir = root / node
            ram_dir.mkdir(mode=0o700, exist_ok=True)
            self.places.append(
                Place(
                    run_id=RUN_ID, attempt=attempt, node=node, nodes=tuple(nodes), holders=tuple(holders),
                    ranks_per_node=ranks_per_node, ram_dir=ram_dir, generation=generation,
                )
            )  # fmt: skip

    async def __aenter__(self) -> World:
        solo = len(self.places) == 1
        transports: list[Transport] = [SoloTransport()] if solo else list(self.fake.transports)
        self._memories = [MemoryDirectory(place.ram_dir, WAIT_S) for place in self.places]
        self.agents = [
            Agent(place, self._checkpoint, transport, self._deadlines, memory)
            for place, transport, memory in zip(self.places, transports, self._memories, strict=True)
        ]
        self.tasks = [asyncio.ensure_future(agent.run(until_unused=self._until_unused)) for agent in self.agents]
        for place in self.places:
            await until(place.socket_path.exists)
            monitor = Link()
            await monitor.open(place.socket_path, {"role": "monitor"})
            self.monitors.append(monitor)
            for local_rank in range(0 if place.is_holder else place.ranks_per_node):
                self.workers.append(await Worker(place, local_rank).connect())
        if self._asks_for_plan:
            await self.plan()
        return self

    async def __aexit__(self, *_: object) -> None:
        for link in (*self.workers, *self.monitors):
            await link.close()
        await self.kill()

    async def kill(self) -> None:
        """Ends the agents where they stand, as a kill would."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for memory in self._memories:
            memory.close()
        self._memories = []

    async def save(self, step: int, slot: int, flush: bool = False, line: Line = LINE) -> None:
        """All workers save, after the plan; returns when all have heard of the commit."""
        if not all(worker.has_plan for worker in self.workers):
            await self.plan()
        for worker in self.workers:
            worker.save(step, slot, flush=flush, line=line)
        for worker in self.workers:
            save = SaveId(step=step, attempt=worker.place.attempt, run_id=worker.place.run_id, line=line)
            await worker.event("committed", save=save.to_json())

    def has_sealed(self, node: int, step: int, local_rank: int = 0) -> bool:
        """Whether a node has sealed a local rank's shard of a save in flight."""
        save = self.agents[node]._saving._in_flight.get(step)
        return save is not None and local_rank in save.names

    def has_reported(self, node: int, step: int) -> bool:
        """Whether the leader knows that a node has sealed all its shards of a save in flight."""
        (leader,) = (lead for lead in self.agents[0]._leads if isinstance(lead, SaveLeader))
        save = leader._gathering.get(step)
        return save is not None and node in save.nodes

    async def tear(self, step: int, slot: int, node: int, data: bytes | None = None) -> None:
        """All workers save; returns once this node alone has published its shards."""

        async def never(source: int, **fields: Any) -> None:
            await asyncio.Event().wait()

        for number, agent in enumerate(self.agents):
            if number != node:
                agent._peers._handlers["publish"] = never
        for worker in self.workers:
            worker.save(step, slot, data)
        record = self.places[node].ram_dir / f"own-0-{slot}.json"
        await until(record.exists)

    async def stop_before_protect(self, step: int, slot: int) -> None:
        """All workers save; returns once all shards are published. No redundancy is ever made."""

        async def never(source: int, **fields: Any) -> None:
            await asyncio.Event().wait()

        for agent in self.agents:
            agent._peers._handlers["protect"] = never
        for worker in self.workers:
            worker.save(step, slot)
        records = [place.ram_dir / f"own-0-{slot}.json" for place in self.places]
        await until(lambda: all(record.exists() for record in records))

    async def save_unheard(self, *steps: int, slot: int) -> None:
        """All workers save, one step after another; all copies are made, and no node hears of a commit."""

        async def deaf(source: int, **fields: Any) -> None:
            raise AgentError("not heard")

        for agent in self.agents:
            agent._peers._handlers["commit_save"] = deaf
        for step in steps:
            for worker in self.workers:
                worker.save(step, slot)
            await self.monitors[0].event("problem", what="a node did not confirm the commit", step=step)
            assert all(step in copies(place.ram_dir) for place in self.places)
        for agent in self.agents:
            agent._peers._handlers["commit_save"] = agent._saving._on_commit_save

    async def plan(self) -> dict[str, Any]:
        """The plan, the same for every worker; `pinned` as the first was told, for that flush may end meanwhile."""
        plans = [await worker.request("plan") for worker in self.workers]
        first = dict(plans[0])
        for plan in (first, *plans):
            del plan["re"]
        for plan in plans:
            plan.pop("pinned", None)
        assert all(plan == plans[0] for plan in plans)
        return first

    async def await_saves(self) -> None:
        for worker in self.workers:
            await worker.request("await_saves")

    async def contents(self, world_size: int) -> list[bytes]:
        """Every saved rank's bytes as the first worker gets them."""
        return [await self.workers[0].read(rank) for rank in range(world_size)]


def copies(ram_dir: Path) -> set[int]:
    """The steps of the copies in a memory directory."""
    return {read_record(ram_dir, path.stem).save.step for path in ram_dir.glob("copy-*.json")}


async def until(condition: Callable[[], Any], wait_s: float = WAIT_S) -> None:
    """Waits for a condition; an AssertionError after the deadline."""

    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.002)

    await asyncio.wait_for(poll(), wait_s)


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Runs an async test under a deadline."""
    asyncio.run(asyncio.wait_for(test(), 3 * WAIT_S))


def open_below(directory: Path) -> list[str]:
    """The files below a directory that this process has open; the suite's other threads open files elsewhere."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if path.startswith(f"{directory}/")]


def lose(root: Path, *nodes: str) -> None:
    """The memory of these nodes is gone."""
    for node in nodes:
        shutil.rmtree(root / node)
