"""Rebuilds lost shards from the files in the survivors' memory directories, without agents or MPI."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from ckpt.errors import CheckpointError, CorruptError
from ckpt.format.atomic_files import map_regular
from ckpt.format.checksums import BLOCK_BYTES
from ckpt.format.memory_names import PARITY, StoredName, copy_stem, data_file, names_of
from ckpt.format.shard_record import SaveId, ShardRecord, read_record, write_record
from ckpt.redundancy.gf256 import multiply_add
from ckpt.redundancy.parity_record import ParityRecord, ParitySet, read_parity
from ckpt.redundancy.stripes import LossError, Sum, extents
from ckpt.tiers.catalog import newest_first
from ckpt.tiers.posix import read_file
from ckpt.tiers.reads import find_damaged
from ckpt.tiers.tier import Tier

Advance = Callable[[int], object]  # called with the number of bytes after each part


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    record: ShardRecord
    path: Path  # of its data file


@dataclass(kw_only=True)
class Survivors:
    """The surviving files of one save, by rank, and by set and member. Their bytes are verified when they are used."""

    world_size: int
    shards: dict[int, tuple[Path, ShardRecord]] = field(default_factory=dict)
    parity: dict[ParitySet, dict[int, tuple[Path, ParityRecord]]] = field(default_factory=lambda: defaultdict(dict))

    def drop_damaged(self, advance: Advance) -> None:
        """Removes files that do not verify."""
        self.shards = {rank: entry for rank, entry in self.shards.items() if verifies(*entry, advance)}
        for members in self.parity.values():
            for index in [index for index, entry in members.items() if not verifies(*entry, advance)]:
                del members[index]

    @property
    def work_bytes(self) -> int:
        """An estimate of the bytes that a rebuild verifies and writes."""
        total = sum(record.nbytes for _, record in self.shards.values())
        total += sum(record.nbytes for _, record in self._parity())
        for rank in self.lost:
            with suppress(LossError):
                total += self.header(rank).nbytes
        return total

    @property
    def lost(self) -> list[int]:
        return [rank for rank in range(self.world_size) if rank not in self.shards]

    def header(self, rank: int) -> ShardRecord:
        """The record of a lost shard. Raises LossError if no copy of the record is left."""
        for _, record in self._parity():
            if header := record.header(rank):
                return header
        raise LossError(f"rank {rank}: no parity with a copy of its record is left")

    def _parity(self) -> list[tuple[Path, ParityRecord]]:
        return [entry for members in self.parity.values() for entry in members.values()]


def find_saves(directories: Iterable[Path], advance: Advance = lambda nbytes: None) -> dict[SaveId, Survivors]:
    """All saves with files in the directories, the newest line's first. Records that do not verify count as absent."""
    saves: dict[SaveId, Survivors] = {}
    for directory in directories:
        for name in names_of(os.listdir(directory)):
            path = data_file(directory, name)
            try:
                if name.kind == PARITY:
                    parity = read_parity(directory, str(name))
                    found = saves.setdefault(parity.save, Survivors(world_size=parity.world_size))
                    found.parity[parity.over][parity.index] = (path, parity)
                else:
                    shard = read_record(directory, str(name))
                    found = saves.setdefault(shard.save, Survivors(world_size=shard.world_size))
                    if shard.rank not in found.shards or verifies(path, shard, advance):
                        found.shards[shard.rank] = (path, shard)
            except (CorruptError, FileNotFoundError):
                continue
    latest_first = sorted(saves, key=lambda save: (save.step, save.attempt), reverse=True)
    return {save: saves[save] for save in newest_first(latest_first)}


def rebuild(found: Survivors, target: Path, advance: Advance = lambda nbytes: None) -> list[Rebuilt]:
    """Rebuilds every lost shard of a save into `target`, under free names. Overwrites and removes nothing.

    Raises:
        LossError: too little is left. Nothing has been written for the shard that the message names.
        CorruptError: a rebuilt shard does not verify. It has been removed.
    """
    found.drop_damaged(advance)
    work = [(rank, found.header(rank), *_sums(found, rank)) for rank in found.lost]  # before any is rebuilt
    return [_make(found, target, record, over, sums, advance) for _, record, over, sums in work]


def commit(files: dict[int, tuple[Path, ShardRecord]], tier: Tier, advance: Advance) -> None:
    """Writes a complete save to a lower tier, unless it is already there. May be killed and repeated.

    Args:
        files: the verified shards of all its ranks.
    """
    save = files[0][1].save
    tier.prepare()
    if save in tier.steps():
        return
    tier.begin(save)
    places = []
    for _, (path, record) in sorted(files.items()):
        places.append(tier.write_rank(save, record, map_regular(path, 0, record.nbytes)))
        advance(record.nbytes)
    tier.commit(save, len(files), places)


def verifies(path: Path, record: ShardRecord | ParityRecord, advance: Advance = lambda nbytes: None) -> bool:
    """Whether a file's bytes match its record. The file is read a few blocks at a time."""

    def read(start: int, into: memoryview) -> None:
        read_file(path, start, into)
        advance(len(into))

    try:
        return not any(True for _ in find_damaged(read, record.nbytes, record.blocks))
    except (CheckpointError, OSError):
        return False


def _sums(found: Survivors, rank: int) -> tuple[ParitySet, list[Sum]]:
    reasons = []
    for over, members in found.parity.items():
        member = over.member_of(rank)
        if member is None:
            continue
        there = [i for i, ranks in enumerate(over.ranks) if all(r in found.shards for r in ranks)]
        try:
            return over, over.stripes().rebuild(member, *over.range_of(rank), there, members)
        except LossError as error:
            names = next(iter(members.values()))[1].members if members else ()
            lost = ", ".join(name for i, name in enumerate(names) if i not in there)
            reasons.append(f"set {', '.join(names)} without {lost}: {error}" if names else str(error))
    raise LossError(f"rank {rank}: {'; '.join(reasons) or 'no parity of its set is left'}")


def _make(
    found: Survivors, target: Path, record: ShardRecord, over: ParitySet, sums: list[Sum], advance: Advance
) -> Rebuilt:
    taken = os.listdir(target)
    names = (str(StoredName(copy_stem(record.rank, 0), slot)) for slot in count())
    name = next(name for name in names if not {f"{name}.data", f"{name}.json"} & set(taken))
    path = data_file(target, name)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            for part in sums:
                _write_sum(found, over, part, descriptor, advance)
        finally:
            os.close(descriptor)
        if not verifies(path, record):
            raise CorruptError(
                f"rank {record.rank} of step {record.save.step}: does not verify after its rebuild from parity"
            )
    except BaseException:
        path.unlink()
        raise
    write_record(target, name, record)
    return Rebuilt(record=record, path=path)


def _write_sum(found: Survivors, over: ParitySet, part: Sum, descriptor: int, advance: Advance) -> None:
    """Writes a sum block by block, so that the memory needed does not depend on the shard's size."""
    for start in range(0, part.nbytes, BLOCK_BYTES):
        block = memoryview(bytearray(min(BLOCK_BYTES, part.nbytes - start)))
        for term in part.terms:
            nbytes = min(len(block), term.nbytes - start)
            if nbytes <= 0:
                continue
            for path, first, size, at in _files(found, over, term.member, term.parity, term.start + start, nbytes):
                read_file(path, first, data := memoryview(bytearray(size)))
                multiply_add([block[at : at + size]], data, [term.coefficient])
        done = 0
        while done < len(block):
            done += os.pwrite(descriptor, block[done:], part.at + start + done)
        advance(len(block))


def _files(
    found: Survivors, over: ParitySet, member: int, parity: bool, start: int, nbytes: int
) -> list[tuple[Path, int, int, int]]:
    """The files of a range of a member's stream or parity: (file, first byte, bytes, offset in the range)."""
    if parity:
        return [(found.parity[over][member][0], start, nbytes, 0)]
    return [
        (found.shards[over.ranks[member][index]][0], first, count, at)
        for index, first, count, at in extents(over.lengths[member], start, nbytes)
    ]
