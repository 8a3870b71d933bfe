"""The contents of this node's memory directory: shards, their records, and free names for new ones."""

from __future__ import annotations

import asyncio
import logging
import math
import mmap
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Generic, TypeVar

from ckpt.agent.shards.growing_buffer import Room, slices
from ckpt.errors import AgentError, CheckpointError
from ckpt.format.checksums import BLOCK_BYTES, damaged_blocks
from ckpt.format.memory_names import COPY, FETCHED, OWN, PARITY, StoredName, kind_of, names_of
from ckpt.format.shard_record import SaveId, ShardRecord, drop_record, read_record, write_record
from ckpt.redundancy.parity_record import ParityRecord, ParitySet, read_parity, write_parity

_FLEETING = (FETCHED, ".*.tmp")  # made for one load, or left by a killed writer

log = logging.getLogger(__name__)


R = TypeVar("R", ShardRecord, ParityRecord)


class Store(Generic[R]):
    """One kind of file in a memory directory.

    The agent writes records; workers remove the records of their own slots.
    """

    _kinds: tuple[str, ...]  # kinds of names
    _load: Callable[[Path, str], R]  # reads a record; raises CorruptError or OSError
    _publish: Callable[[Path, str, R], None]  # writes one; raises OSError

    def __init__(self, ram_dir: Path, run_id: str, namespace: str) -> None:
        self.ram_dir = ram_dir
        self._run_id = run_id
        self._namespace = namespace
        self._records: dict[str, R] = {}
        self._verified: set[str] = set()  # names whose bytes have matched their record since this process started
        self._unread: set[str] = set()  # names whose record or bytes could not be read so far
        self._maps: dict[str, tuple[int, mmap.mmap]] = {}  # inode and map, by name

    def scan(self) -> None:
        """Reads the records in the directory, and removes what killed processes left incomplete.

        A shard whose record cannot be read now is left out, but not removed.
        """
        for pattern in _FLEETING:
            for path in self.ram_dir.glob(pattern):
                path.unlink()
        for name in self._names_of("json"):
            self._read(str(name))

    def shards(self) -> dict[str, R]:
        """The existing shards, by name. Their bytes may not be verified yet."""
        for name in [name for name in self._records if not self._path(name, "json").exists()]:
            self._forget(name)  # the worker is about to overwrite it
        return dict(self._records)

    def record(self, name: str) -> R:
        """The record of a shard. Raises AgentError if the shard does not exist any more."""
        record = self.shards().get(name)
        if record is None:
            raise AgentError(f"{self._path(name, 'data')}: the shard is gone")
        return record

    def bytes_of(self, name: str, nbytes: int) -> memoryview:
        """The mapped bytes of a shard. Raises AgentError if the file is shorter."""
        descriptor = os.open(self._path(name, "data"), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return self._map(name, descriptor, nbytes)
        finally:
            os.close(descriptor)

    def room_for(self, name: str, nbytes: int, spans: Sequence[tuple[int, int]] | None = None) -> Room:
        """Memory to fill with a shard, or with some spans of its bytes. The file is created or grown.

        Raises:
            OSError: the memory file system is full.
        """
        descriptor = os.open(self._path(name, "data"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            status = os.fstat(descriptor)
            # without holes nothing is allocated, because checking each page again takes time
            is_there = status.st_size >= nbytes and status.st_blocks * 512 >= status.st_size
            if status.st_size < nbytes:
                os.ftruncate(descriptor, nbytes)
            wanted = slices(nbytes) if spans is None else spans
            return Room(descriptor, self._map(name, descriptor, nbytes), () if is_there else wanted)
        finally:
            os.close(descriptor)

    @contextmanager
    def filling(self, name: str, nbytes: int) -> Iterator[Room]:
        """As `room_for`, for a `with` block that fills the memory. The previous shard of this name is dropped first.

        If the block fails, the file is removed and never reused, because bytes may still be arriving there.
        """
        self.drop(name)
        try:
            with self.room_for(name, nbytes) as room:
                yield room
        except BaseException:
            self.remove(name)
            raise

    def publish(self, name: str, record: R) -> None:
        """Writes the record of a shard whose bytes are complete and match it."""
        self._publish(self.ram_dir, name, record)
        self._records[name] = record
        self._verified.add(name)
        self._unread.discard(name)

    async def verify(self, name: str) -> bool:
        """Whether the bytes match the record. They are read once per process.

        A shard that does not match is dropped: its record is removed. A shard whose bytes cannot be read now is left
            out until the next scan.
        """
        record = self._records.get(name)
        if record is None:
            return False
        if name in self._verified:
            return True
        try:
            data = self.bytes_of(name, record.nbytes)
            damaged = await asyncio.to_thread(damaged_blocks, data, record.blocks)
            reason = f"block {damaged[0]} does not match its checksum" if damaged else ""
        except (AgentError, FileNotFoundError) as error:  # too short, or removed
            reason = str(error)
        except OSError as error:
            if self._records.get(name) is record:
                self._leave_out(name, error)
            return False
        if self._records.get(name) is not record:
            return False
        if reason:
            log.warning("%s of step %d, %s: %s; dropped", name, record.save.step, record.what, reason)
            self.drop(name)
            return False
        self._verified.add(name)
        return True

    async def verify_again(self, name: str) -> bool:
        """As `verify`, but reads the bytes now."""
        self._verified.discard(name)
        return await self.verify(name)

    def drop(self, name: str) -> None:
        """Unpublishes a shard. Its slot is then free."""
        drop_record(self.ram_dir, name)
        self._forget(name)
        self._unread.discard(name)

    def remove(self, name: str) -> None:
        """Unpublishes a shard and frees its memory."""
        self.drop(name)
        self._maps.pop(name, None)
        self._path(name, "data").unlink(missing_ok=True)

    def free_name(self, stem: str, slots: int, keep: Collection[SaveId] | None) -> str:
        """A name for a new shard, but never that of a shard that could not be read.

        Args:
            stem: from `own_stem` or a similar function.
            slots: normal number of names of a stem.
            keep: saves whose shards must stay; others may be replaced, oldest first. None: replace nothing, and use
                more than `slots` names if necessary.
        """
        shards = self.shards()
        taken = shards.keys() | {name for name in self._unread if self._path(name, "json").exists()}
        names = [str(StoredName(stem, slot)) for slot in range(slots)]
        for name in names:
            if name not in taken:
                return name
        ours = [name for name in names if name in shards]
        replaceable = [] if keep is None else [name for name in ours if shards[name].save not in keep]
        if replaceable:
            return min(replaceable, key=lambda name: shards[name].save)
        return next(name for slot in count(slots) if (name := str(StoredName(stem, slot))) not in taken)

    def tidy(self, stems: Collection[str], slots: int, keep: Collection[SaveId]) -> None:
        """After a commit: frees the memory of additional names that no kept save needs.

        Shards that could not be read are older than the commit, so their names are free again.
        """
        for unread in list(self._unread):
            with suppress(OSError):
                self.drop(unread)
        for name in self._names_of("data"):
            record = self._records.get(str(name))
            if (name.stem not in stems or name.slot >= slots) and (record is None or record.save not in keep):
                self.remove(str(name))

    def _read(self, name: str) -> None:
        try:
            self._take_in(name)
            self._unread.discard(name)
        except FileNotFoundError:  # the worker is about to overwrite it
            self._forget(name)
        except OSError as error:
            self._leave_out(name, error)

    def _take_in(self, name: str) -> None:
        try:
            record = self._load(self.ram_dir, name)
        except CheckpointError as error:
            log.warning("%s: %s; dropped", self._path(name, "json"), error)
            self.drop(name)
            return
        if (record.save.run_id, record.namespace) == (self._run_id, self._namespace):
            self._records[name] = record
        else:
            log.info("%s: of run %s, namespace %s; dropped", name, record.save.run_id, record.namespace)
            self.drop(name)

    def _leave_out(self, name: str, error: OSError) -> None:
        """Neither offers nor replaces a shard, because the error that prevents reading it may be temporary."""
        self._forget(name)
        if name not in self._unread:
            log.warning("%s: %s; left out, and left as it is", name, error)
            self._unread.add(name)

    def _forget(self, name: str) -> None:
        self._records.pop(name, None)
        self._verified.discard(name)

    def _names_of(self, kind: str) -> list[StoredName]:
        files = (path.name for path in self.ram_dir.glob(f"*.{kind}"))
        return names_of(files, *self._kinds, suffix=f".{kind}")

    def _path(self, name: str, kind: str) -> Path:
        return self.ram_dir / f"{name}.{kind}"

    def _map(self, name: str, descriptor: int, nbytes: int) -> memoryview:
        """The map of a file, kept while the file is the same, because page tables of large slots take time."""
        status = os.fstat(descriptor)
        if status.st_size < nbytes:
            raise AgentError(f"{self._path(name, 'data')}: got {status.st_size} bytes, expected at least {nbytes}")
        if nbytes == 0:
            return memoryview(b"")
        inode, mapped = self._maps.get(name, (0, None))
        if mapped is None or inode != status.st_ino or len(mapped) < nbytes:
            mapped = mmap.mmap(descriptor, status.st_size)
            self._maps[name] = (status.st_ino, mapped)
        return memoryview(mapped)[:nbytes]


class MemoryStore(Store[ShardRecord]):
    """The shards of a memory directory: this node's own, and copies of others'."""

    _kinds, _load, _publish = (OWN, COPY), staticmethod(read_record), staticmethod(write_record)

    def find(self, save: SaveId, rank: int) -> list[str]:
        """The names of a rank's shards, this node's own before copies."""
        return sorted(
            (name for name, record in self.shards().items() if (record.save, record.rank) == (save, rank)),
            key=lambda name: (name not in self._verified, kind_of(name) != OWN, name),
        )

    async def verify_any(self, save: SaveId, rank: int) -> bool:
        """Whether some shard of a rank is here and verifies. Drops those that do not."""
        return any([await self.verify(name) for name in self.find(save, rank)])

    def file_bytes(self, *kinds: str) -> int:
        """The memory of all files of these kinds, with or without a record."""
        with os.scandir(self.ram_dir) as files:
            own = [file.path for file in files if kind_of(file.name) in kinds]
        total = 0
        for path in own:
            with suppress(FileNotFoundError):
                total += 512 * os.stat(path).st_blocks
        return total

    def free_bytes(self) -> float:
        """Infinite if the memory file system has no limit."""
        system = os.statvfs(self.ram_dir)
        return system.f_bavail * system.f_frsize if system.f_blocks else math.inf


class ParityStore(Store[ParityRecord]):
    _kinds, _load, _publish = (PARITY,), staticmethod(read_parity), staticmethod(write_parity)

    def find(self, save: SaveId, over: ParitySet, index: int) -> list[str]:
        """The names of a member's parity over a set."""
        wanted = (save, over, index)
        return sorted(name for name, r in self.shards().items() if (r.save, r.over, r.index) == wanted)


def block_ranges(data: memoryview, blocks: Iterable[int] | None = None) -> Iterator[memoryview]:
    """The bytes of some blocks of a shard (None: all), in order."""
    for block in range(-(-len(data) // BLOCK_BYTES)) if blocks is None else blocks:
        yield data[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]
