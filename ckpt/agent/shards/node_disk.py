"""The shards on this node's own disk (the NVMe tier), for a restore: read and verified, never changed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ckpt.agent.storage_calls import in_thread, in_time
from ckpt.errors import AgentError, CheckpointError, CorruptError
from ckpt.format.checksums import BLOCK_BYTES, block_count
from ckpt.format.manifest import ShardPlace
from ckpt.format.shard_record import SaveId, ShardRecord
from ckpt.tiers import reads
from ckpt.tiers.catalog import directory_name, last_commit_s
from ckpt.tiers.nvme import DiskInUse, NvmeTier
from ckpt.tiers.tier import Tier

log = logging.getLogger(__name__)

_RELEASE_S = 2.0  # for the run's killed agent of before to close its files


@dataclass(frozen=True, kw_only=True)
class DiskShard:
    tier: Tier
    place: ShardPlace

    @property
    def record(self) -> ShardRecord:
        return self.place.record

    @property
    def path(self) -> Path | None:
        """The file of the shard, which starts at byte `place.offset`."""
        return self.tier.data_path(self.record.save, self.place.file)

    @property
    def read(self) -> reads.ReadAt:
        return reads.reader(self.tier, self.record.save, self.place)

    def blocks(self, blocks: Sequence[int] | None) -> Iterator[memoryview]:
        """Some blocks (None: all), each read when it is iterated over. Raises AgentError."""
        nbytes = self.record.layout.nbytes
        for block in range(block_count(nbytes)) if blocks is None else blocks:
            data = memoryview(bytearray(min(BLOCK_BYTES, nbytes - block * BLOCK_BYTES)))
            try:
                self.read(block * BLOCK_BYTES, data)
            except (CheckpointError, OSError) as error:
                raise AgentError(f"{self.path}: {error}") from None
            yield data


class NodeDisk:
    """The shards of the NVMe tier on this node at the start of the attempt; none if no such tier is configured."""

    def __init__(self, tiers: dict[str, Tier]) -> None:
        self._tier = tier if isinstance(tier := tiers.get("nvme"), NvmeTier) else None
        self._shards: dict[tuple[SaveId, int], DiskShard] = {}
        self._verified: set[tuple[SaveId, int]] = set()
        self.last_commit_s = 0.0  # since the epoch; 0 if there is none
        self._damaged: dict[SaveId, str] = {}  # saves whose bytes do not match, with the reason

    async def scan(self, holder: str, timeout_s: float) -> str | None:
        """Locks the disk for this run and reads its manifests. Returns the problem if it cannot, else None.

        Args:
            holder: name of this run, for the errors of other runs.
            timeout_s: for each of the two. A slower disk counts as empty.

        Raises:
            DiskInUse: another live run writes there.
        """
        if (tier := self._tier) is None:
            return None
        problems = []
        try:
            entries = await in_time(timeout_s, lambda: list(tier.catalog()))
            self._shards = {
                (manifest.save, place.rank): DiskShard(tier=tier, place=place)
                for manifest in [entry.manifest for entry in entries if entry.manifest]
                for place in manifest.shards
            }
            self.last_commit_s = last_commit_s(entries)
            problems += [f"nvme tier: {entry.name}: {entry.reason}" for entry in entries if entry.unread]
            await in_time(timeout_s, tier.occupy, holder, min(_RELEASE_S, timeout_s / 2))
        except DiskInUse as error:
            raise DiskInUse(f"nvme tier: {error}") from None
        except (CheckpointError, OSError) as error:
            problems.append(f"nvme tier: {error}")
        return "; ".join(problems) or None

    def leave(self) -> None:
        """Releases the disk for another run."""
        if self._tier:
            self._tier.leave()

    def rows(self) -> list[tuple[SaveId, int, int]]:
        """Save, world size and rank of every shard."""
        return [(save, shard.record.world_size, rank) for (save, rank), shard in self._shards.items()]

    def records(self) -> list[ShardRecord]:
        """The record of every shard."""
        return [shard.record for shard in self._shards.values()]

    def find(self, save: SaveId, rank: int) -> DiskShard | None:
        """A shard, which may not be verified yet."""
        return self._shards.get((save, rank))

    def shard(self, save: SaveId, rank: int) -> DiskShard:
        """As `find`, but raises AgentError if there is none."""
        found = self.find(save, rank)
        if found is None:
            raise AgentError(f"rank {rank} of step {save.step} is not held here")
        return found

    async def verify(self, save: SaveId, rank: int) -> bool:
        """Whether a shard exists and every byte of it matches.

        It is read once. A shard that does not match is removed from here.
        """
        found = self.find(save, rank)
        if found is None or (save, rank) in self._verified:
            return found is not None
        try:
            await in_thread(reads.verify, found.read, found.place)
        except (CheckpointError, OSError) as error:
            self.strike(save, rank, error)
            return False
        self._verified.add((save, rank))
        return True

    async def verify_again(self, save: SaveId, rank: int) -> bool:
        """As `verify`, but reads the bytes now."""
        self._verified.discard((save, rank))
        return await self.verify(save, rank)

    def strike(self, save: SaveId, rank: int, error: Exception) -> None:
        """Never offers a shard again in this attempt. The file stays on the disk."""
        found = self._shards.pop((save, rank), None)
        if found is not None:
            log.warning("%s: step %d, rank %d: %s; passed over", found.path, save.step, rank, error)
            if isinstance(error, CorruptError):
                self._damaged[save] = str(error)

    async def quarantine(self, save: SaveId) -> tuple[str, str] | None:
        """Quarantines this disk's part of a save, if it is damaged. Returns its new path and the reason."""
        if self._tier is None or save not in self._damaged:
            return None
        reason = self._damaged.pop(save)
        self._shards = {key: on_disk for key, on_disk in self._shards.items() if key[0] != save}
        return await in_thread(self._tier.quarantine, directory_name(save), reason), reason
