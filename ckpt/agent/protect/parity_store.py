"""The parity in a memory directory."""

from __future__ import annotations

from ckpt.agent.shards.memory_store import Store
from ckpt.format.memory_names import PARITY
from ckpt.format.shard_record import SaveId
from ckpt.redundancy.parity_record import ParityRecord, ParitySet, read_parity, write_parity


class ParityStore(Store[ParityRecord]):
    """This node's parity."""

    _kinds, _load, _publish = (PARITY,), staticmethod(read_parity), staticmethod(write_parity)

    def find(self, save: SaveId, over: ParitySet, index: int) -> list[str]:
        """Names of a member's parity over a set."""
        wanted = (save, over, index)
        return sorted(name for name, r in self.shards().items() if (r.save, r.over, r.index) == wanted)
