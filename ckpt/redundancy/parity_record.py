"""The record of a node's parity: all that a rebuild needs to know, besides the survivors' files.

It is written last and removed first, as for a shard. It has copies of the shard records of the members before it in
the ring, as many members as may be lost at once. So a copy of every lost shard's record survives.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ckpt.errors import CorruptError
from ckpt.format.atomic_files import read_regular
from ckpt.format.checksums import BLOCK_BYTES, block_count
from ckpt.format.parsing import parsing
from ckpt.format.rank_grid import MAX_RANKS
from ckpt.format.shard_record import MAX_RECORD_BYTES, RECORD_FORMAT, SaveId, ShardRecord, seal_json, unseal_json
from ckpt.redundancy.stripes import Stripes
from holdfast.base.files import durable_write

_MAX_MEMBERS = 256  # elements of the field of the parity


@dataclass(frozen=True, kw_only=True)
class ParitySet:
    """The shards that the members of a redundancy set protect together. Equal sets have equal parity."""

    parity: int  # parity symbols of each stripe: number of members that may be lost
    ranks: tuple[tuple[int, ...], ...]  # of each member, in the set's order
    lengths: tuple[tuple[int, ...], ...]  # lengths of each member's shards

    def to_json(self) -> dict[str, Any]:
        return {"parity": self.parity, "ranks": list(map(list, self.ranks)), "lengths": list(map(list, self.lengths))}

    @classmethod
    @parsing("parity set")
    def from_json(cls, value: Any) -> ParitySet:
        """Raises CorruptError unless it is a set with parity."""
        parity, members = value["parity"], len(value["ranks"])
        if type(parity) is not int or not 0 < parity < members <= _MAX_MEMBERS:
            raise CorruptError(
                f"parity: {parity!r:.20} symbols over {members} members, expected 1 to {members - 1} symbols and at "
                f"most {_MAX_MEMBERS} members"
            )
        found = cls(parity=parity, ranks=tuple(map(tuple, value["ranks"])), lengths=tuple(map(tuple, value["lengths"])))
        ranks = list(chain.from_iterable(found.ranks))
        shapes = [list(map(len, found.ranks)), list(map(len, found.lengths))]
        numbers = chain(ranks, chain.from_iterable(found.lengths))
        if any(type(n) is not int or not 0 <= n < 1 << 62 for n in numbers) or shapes[0] != shapes[1]:
            raise CorruptError("parity: malformed ranks or lengths")
        if len(set(ranks)) != len(ranks):
            raise CorruptError("parity: a rank is in the set twice")
        return found

    def stripes(self) -> Stripes:
        return Stripes([sum(lengths) for lengths in self.lengths], self.parity)

    def member_of(self, rank: int) -> int | None:
        """The index of the member on which a rank ran; None if the rank is not in this set."""
        return next((member for member, ranks in enumerate(self.ranks) if rank in ranks), None)

    def range_of(self, rank: int) -> tuple[int, int]:
        """The first byte of a rank's shard in its member's stream, and one past its last."""
        member = self.member_of(rank)
        if member is None:
            raise CorruptError(f"parity: rank {rank} is not in its set")
        position = self.ranks[member].index(rank)
        start = sum(self.lengths[member][:position])
        return start, start + self.lengths[member][position]


@dataclass(frozen=True, kw_only=True)
class ParityRecord:
    save: SaveId
    namespace: str
    world_size: int
    over: ParitySet
    members: tuple[str, ...]  # node names when it was made, for messages
    index: int  # index of the member
    headers: tuple[ShardRecord, ...]  # shard records of the members before it
    blocks: tuple[str, ...]  # ckpt.format.checksums.checksums of the parity

    @property
    def nbytes(self) -> int:
        return self.over.stripes().parity_bytes(self.index)

    @property
    def what(self) -> str:
        """For messages."""
        return f"parity of {self.members[self.index]}"

    def to_json(self) -> dict[str, Any]:
        return {
            "format": RECORD_FORMAT, **self.save.to_json(), "namespace": self.namespace, "world_size": self.world_size,
            "over": self.over.to_json(), "members": list(self.members), "index": self.index,
            "headers": [header.to_json() for header in self.headers],
            "block_bytes": BLOCK_BYTES, "blocks": list(self.blocks),
        }  # fmt: skip

    @classmethod
    @parsing("parity record")
    def from_json(cls, value: Any) -> ParityRecord:
        """Raises CorruptError if a field is missing, malformed or of another format."""
        if value["format"] != RECORD_FORMAT or value["block_bytes"] != BLOCK_BYTES:
            raise CorruptError(f"parity record: format {value['format']!r:.20}, expected {RECORD_FORMAT}")
        record = cls(
            save=SaveId.from_json(value), namespace=str(value["namespace"]), world_size=int(value["world_size"]),
            over=ParitySet.from_json(value["over"]), members=tuple(map(str, value["members"])),
            index=int(value["index"]), headers=tuple(map(ShardRecord.from_json, value["headers"])),
            blocks=tuple(map(str, value["blocks"])),
        )  # fmt: skip
        if not 0 < record.world_size <= MAX_RANKS:
            raise CorruptError(f"parity record: world size {record.world_size}, expected 1 to {MAX_RANKS}")
        if len(record.members) != len(record.over.ranks) or not 0 <= record.index < len(record.members):
            raise CorruptError(
                f"parity record: member {record.index} among {len(record.members)}, expected 0 to "
                f"{len(record.over.ranks) - 1} among {len(record.over.ranks)}"
            )
        if len(record.blocks) != block_count(record.nbytes):
            raise CorruptError(f"parity record: {len(record.blocks)} block checksums for {record.nbytes} bytes")
        for header in record.headers:
            if (header.save, header.namespace) != (record.save, record.namespace):
                raise CorruptError(f"parity record: the header of rank {header.rank} is of another save")
        return record

    def header(self, rank: int) -> ShardRecord | None:
        """The copy of a rank's shard record, if this parity has it."""
        return next((header for header in self.headers if header.rank == rank), None)


def write_parity(directory: Path, name: str, record: ParityRecord) -> None:
    """Publishes parity. Its data must be complete."""
    durable_write(directory / f"{name}.json", seal_json(record.to_json()), sync=False)


def read_parity(directory: Path, name: str) -> ParityRecord:
    """Raises CorruptError for a damaged record, FileNotFoundError if there is none."""
    return ParityRecord.from_json(unseal_json(read_regular(directory / f"{name}.json", MAX_RECORD_BYTES)))
