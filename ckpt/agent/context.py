"""What every part of one node's agent works with."""

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
from ckpt.agent.timeouts import AgentDeadlines
from ckpt.config import CheckpointConfig, Place
from ckpt.format.shard_record import SaveId
from ckpt.tiers.tier import Tier


@dataclass(frozen=True, kw_only=True)
class Context:
    """One node, one attempt."""

    place: Place
    config: CheckpointConfig
    deadlines: AgentDeadlines
    tiers: dict[str, Tier]  # the lower tiers, nearest first
    node_disk: NodeDisk  # what those of them that are this node's own hold
    memory_store: MemoryStore
    exchange: Exchange
    peers: Peers
    listener: WorkerSocket

    def save_id(self, step: int) -> SaveId:
        """This attempt's save of a step."""
        return SaveId(step=step, attempt=self.place.attempt, run_id=self.place.run_id)

    def placement(self, members: Iterable[int]) -> Placement:
        """Where this attempt's saves have the shards of some nodes: on the nodes where their ranks run."""
        nodes = {rank: node for node in members for rank in self.ranks(node)}
        return Placement(world_size=self.place.world_size, nodes=nodes)

    @property
    def training(self) -> range:
        """The nodes that train; behind them in the order of node ranks come the holders."""
        return range(len(self.place.nodes))

    async def call_training(self, op: str, *, timeout_s: float, **fields: Any) -> list[dict[str, Any]]:
        """As `Peers.call_all`, without the holders."""
        return await self.peers.call_all(op, self.training, timeout_s=timeout_s, **fields)

    def ranks(self, node: int) -> range:
        """The ranks that run on a node in this attempt: none on a holder."""
        first = node * self.place.ranks_per_node
        return range(first, first + self.place.ranks_per_node if node in self.training else first)

    def home(self, rank: int) -> int:
        """The node that a rank runs on in this attempt."""
        return rank // self.place.ranks_per_node

    def reader(self, rank: int, world_size: int) -> int:
        """The node that takes a saved rank's shard in for all: its home, where as many ranks have saved it.

        In another world neighbours go together, to the node whose ranks probably need them.
        """
        return rank * len(self.place.nodes) // world_size
