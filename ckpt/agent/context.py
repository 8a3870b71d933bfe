"""The base of all parts of one node's agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ckpt.agent.exchange import Exchange
from ckpt.agent.rpc.peers import PeerError, Peers
from ckpt.agent.rpc.worker_socket import WorkerSocket
from ckpt.agent.shards.memory_store import MemoryStore
from ckpt.agent.shards.node_disk import NodeDisk
from ckpt.agent.shards.plan import Placement
from ckpt.config import CheckpointConfig, Place
from ckpt.errors import AgentError
from ckpt.format.line import Line
from ckpt.format.shard_record import SaveId, ShardRecord
from ckpt.tiers.tier import Tier
from ckpt.timeouts import AgentDeadlines


@dataclass(frozen=True, kw_only=True)
class Context:
    """The objects and the configuration of one node in one attempt."""

    place: Place
    config: CheckpointConfig
    deadlines: AgentDeadlines
    tiers: dict[str, Tier]  # the lower tiers, nearest first
    node_disk: NodeDisk  # contents of this node's own tiers
    memory_store: MemoryStore
    exchange: Exchange
    peers: Peers
    listener: WorkerSocket
    workers_loaded: asyncio.Event = field(default_factory=asyncio.Event)  # this node's workers have loaded, or save

    def save_id(self, step: int, line: Line) -> SaveId:
        """The id of this attempt's save of a step."""
        return SaveId(step=step, attempt=self.place.attempt, run_id=self.place.run_id, line=line)

    def placement(self, members: Iterable[int]) -> Placement:
        """The places of these nodes' shards in this attempt's saves: on the nodes where their ranks run."""
        nodes = {rank: node for node in members for rank in self.ranks(node)}
        return Placement(world_size=self.place.world_size, nodes=nodes)

    def tier(self, name: str) -> Tier:
        """A lower tier. Raises AgentError if there is none of this name."""
        if name not in self.tiers:
            raise AgentError(f"no {name} tier is configured")
        return self.tiers[name]

    @property
    def training(self) -> range:
        """The nodes that train. Holders have higher node ranks."""
        return range(len(self.place.nodes))

    async def call_training(self, op: str, **fields: Any) -> list[dict[str, Any]]:
        """`Peers.call_all` without the holders."""
        return await self.peers.call_all(op, self.training, **fields)

    def ranks(self, node: int) -> range:
        """The ranks that run on a node in this attempt; none on a holder."""
        first = node * self.place.ranks_per_node
        return range(first, first + self.place.ranks_per_node if node in self.training else first)

    def home(self, rank: int) -> int:
        """The node on which a rank runs in this attempt."""
        return rank // self.place.ranks_per_node

    def reader(self, rank: int, world_size: int) -> int:
        """The node that reads a saved rank's shard for all nodes. At the same world size, the node on which the rank
        runs.

        At another world size neighbouring ranks go together, to the node whose ranks probably need them.
        """
        return rank * len(self.place.nodes) // world_size


class Part:
    """A part of one node's agent. Its methods `_on_<op>` handle the calls of other agents."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._place, self._config, self._deadlines = context.place, context.config, context.deadlines
        self._peers, self._listener, self._exchange = context.peers, context.listener, context.exchange
        self._memory_store, self._node_disk = context.memory_store, context.node_disk
        self._peers.serve(self)

    async def _try_all(
        self, problem: str, op: str, nodes: Iterable[int] | None = None, **fields: Any
    ) -> list[dict[str, Any]]:
        """Calls some nodes (None: those that train). If a call fails, reports the problem and returns no answers."""
        try:
            return await self._peers.call_all(op, self._context.training if nodes is None else nodes, **fields)
        except PeerError as error:
            step = fields["save"].step if "save" in fields else fields.get("step")
            self._listener.problem(problem, str(error), step)
            return []

    def _report_rebuilt(self, record: ShardRecord, from_node: str, since_s: float, **tier: str) -> None:
        """Reports that a lost shard is in this node's memory again."""
        seconds = round(time.monotonic() - since_s, 6)
        self._listener.to_monitors(
            "rebuilt", rank=record.rank, from_node=from_node, bytes=record.nbytes, seconds=seconds, **tier
        )
