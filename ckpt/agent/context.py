"""What all parts of one node's agent use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ckpt.agent.restore.plan import Placement
from ckpt.agent.rpc.peers import Peers
from ckpt.agent.rpc.worker_socket import WorkerSocket
from ckpt.agent.shards.memory_store import MemoryStore
from ckpt.agent.shards.node_disk import NodeDisk
from ckpt.agent.shards.transfer import Exchange
from ckpt.config import CheckpointConfig, Place
from ckpt.format.shard_record import SaveId
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

    def save_id(self, step: int) -> SaveId:
        """The id of this attempt's save of a step."""
        return SaveId(step=step, attempt=self.place.attempt, run_id=self.place.run_id)

    def placement(self, members: Iterable[int]) -> Placement:
        """The places of these nodes' shards in this attempt's saves: on the nodes where their ranks run."""
        nodes = {rank: node for node in members for rank in self.ranks(node)}
        return Placement(world_size=self.place.world_size, nodes=nodes)

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
    """A part of one node's agent. Its methods `_on_<op>` serve what other agents ask."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._place, self._config, self._deadlines = context.place, context.config, context.deadlines
        self._peers, self._listener, self._exchange = context.peers, context.listener, context.exchange
        self._memory_store, self._node_disk = context.memory_store, context.node_disk
        self._peers.serve(self)
