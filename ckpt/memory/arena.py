"""A rank's slots in its node's memory: files that are mapped once and reused, and the knowledge of which is free.

A slot that holds the newest committed save, a save in flight, or one that is being flushed is not free. Slots grow and
never shrink: whoever has one mapped may go on reading it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from enum import Enum
from pathlib import Path

from ckpt.errors import CorruptError
from ckpt.format.shard_record import SaveId, drop_record, read_record
from ckpt.native.pages import populate_for_writing


class Use(Enum):
    """What a slot is used for."""

    FREE = "free"
    IN_FLIGHT = "in flight"
    COMMITTED = "committed"


class Slot:
    """One data file, mapped for writing."""

    def __init__(self, ram_dir: Path, local_rank: int, index: int) -> None:
        self.index = index
        self.name = f"own-{local_rank}-{index}"
        self.path = ram_dir / f"{self.name}.data"
        self.memory: mmap.mmap | None = None
        self.use = Use.FREE
        self.step = -1
        self.serial = 0  # counts the saves of this attempt; 0 for what an earlier attempt left
        self.pinned = False  # a flush reads it
        self._inode = 0  # of the mapped file
        self._reserving = threading.Lock()

    def reserve(self, nbytes: int) -> mmap.mmap:
        """Makes the file at least `nbytes` long and maps it; the mapping is kept while it is long enough.

        From any thread: what another has begun is waited for, not done twice. Other threads run meanwhile.

        Raises:
            OSError: no space left in memory.
        """
        with self._reserving:
            if (memory := self._current(nbytes)) is not None:
                return memory
            descriptor = self.open()
            try:
                size = max(nbytes, os.fstat(descriptor).st_size, mmap.PAGESIZE)
                os.posix_fallocate(descriptor, 0, size)  # a full tmpfs is an error here, not a SIGBUS later
                return self._map(descriptor, size)
            finally:
                os.close(descriptor)

    def map_ahead(self) -> None:
        """Maps the file if it is there, as it is. It may be replaced until the node's agent has told its plan."""
        with self._reserving, contextlib.suppress(OSError):
            descriptor = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if size := os.fstat(descriptor).st_size:
                    self._map(descriptor, size)
            finally:
                os.close(descriptor)

    def mapped(self, nbytes: int) -> mmap.mmap | None:
        """The mapping, where there is one of so many bytes of the file that is there now."""
        with self._reserving:
            return self._current(nbytes)

    def open(self) -> int:
        """A descriptor of the data file, which is made if need be."""
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def _current(self, nbytes: int) -> mmap.mmap | None:
        if self.memory is None or len(self.memory) < nbytes:
            return None
        try:
            status = os.lstat(self.path)
        except FileNotFoundError:
            return None
        return self.memory if status.st_ino == self._inode else None

    def _map(self, descriptor: int, size: int) -> mmap.mmap:
        memory = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED)
        populate_for_writing(memory)
        self.memory, self._inode = memory, os.fstat(descriptor).st_ino
        return memory


class Arena:
    """All slots of one rank."""

    def __init__(self, ram_dir: Path, local_rank: int, slots: int) -> None:
        self._ram_dir = ram_dir
        self._serial = 0
        self.slots = [Slot(ram_dir, local_rank, index) for index in range(slots)]

    def adopt(self, newest: SaveId | None, *, pinned: bool = False) -> None:
        """Keeps the slots that hold shards of the newest restorable save until a newer one has committed.

        Args:
            newest: that save.
            pinned: whether a flush reads it.
        """
        for slot in self.slots:
            save = self._save_in(slot)
            if save is not None:
                slot.step = save.step
            if save is not None and save == newest:
                slot.use, slot.pinned = Use.COMMITTED, pinned

    def rejoin(self, newest: SaveId | None, *, pinned: bool = False) -> list[int]:
        """Goes on with other agents, which know of one save alone; nobody writes to a slot meanwhile.

        Args:
            newest: the save that counts as committed; None: what was committed stays so.
            pinned: whether a flush reads it.

        Returns:
            The steps that are dropped: they were in flight.
        """
        dropped = []
        for slot in self.slots:
            was, slot.pinned = slot.use, False
            if newest is not None and self._save_in(slot) == newest:
                slot.use, slot.step, slot.pinned = Use.COMMITTED, newest.step, pinned
            elif was is Use.IN_FLIGHT or newest is not None:
                slot.use = Use.FREE
                dropped += [slot.step] if was is Use.IN_FLIGHT else []
        return sorted(dropped)

    def map_ahead(self) -> None:
        """Maps what is there, for a thread of its own: page tables of large slots take a while."""
        for slot in self.slots:
            slot.map_ahead()

    def mapped(self, path: str, nbytes: int) -> memoryview | None:
        """The first bytes of a file that is one of these slots, where that is mapped; not to be written to."""
        for slot in self.slots:
            if str(slot.path) == path and (memory := slot.mapped(nbytes)) is not None:
                return memoryview(memory)[:nbytes]
        return None

    def grow(self, nbytes: int) -> None:
        """Reserves all slots ahead of time, for a thread of its own: the first touch of memory is slow.

        What cannot be had is noticed when it is needed.
        """
        for slot in self.slots:
            with contextlib.suppress(OSError):
                slot.reserve(nbytes)

    def take(self, step: int) -> Slot | None:
        """The free slot with the oldest content, un-published so that it may be overwritten; or None."""
        free = [slot for slot in self.slots if slot.use is Use.FREE]
        if not free:
            return None
        slot = min(free, key=lambda slot: (slot.serial, slot.step))
        drop_record(self._ram_dir, slot.name)
        self._serial += 1
        slot.use, slot.step, slot.serial = Use.IN_FLIGHT, step, self._serial
        return slot

    def give_back(self, slot: Slot) -> None:
        """A slot taken for a save that was not sealed."""
        slot.use = Use.FREE

    def committed(self, step: int, *, pinned: bool) -> None:
        """A save survives what its scheme promises: older ones may go."""
        for slot in self._holding(step):
            slot.use, slot.pinned = Use.COMMITTED, pinned
        self._release_older()

    def flushed(self, step: int) -> None:
        """A save, restored or of this attempt, is no longer read for a lower tier."""
        for slot in self.slots:
            if slot.step == step:
                slot.pinned = False
        self._release_older()

    def dropped(self, step: int) -> None:
        """A save was dropped before it was committed."""
        for slot in self._holding(step):
            if slot.use is Use.IN_FLIGHT:
                slot.use = Use.FREE

    def describe(self) -> str:
        """The use of every slot, for messages."""
        return ", ".join(
            f"{slot.name} {slot.use.value}" + (f" (step {slot.step})" if slot.use is not Use.FREE else "")
            for slot in self.slots
        )

    def _save_in(self, slot: Slot) -> SaveId | None:
        """What the record beside a slot says."""
        try:
            return read_record(self._ram_dir, slot.name).save
        except (FileNotFoundError, CorruptError):
            return None

    def _holding(self, step: int) -> list[Slot]:
        """This attempt's slots in use for a step; the same step of an earlier attempt is another save."""
        return [slot for slot in self.slots if slot.use is not Use.FREE and slot.step == step and slot.serial]

    def _release_older(self) -> None:
        committed = [slot for slot in self.slots if slot.use is Use.COMMITTED]
        newest = max((slot.serial for slot in committed), default=0)
        for slot in committed:
            if slot.serial < newest and not slot.pinned:
                slot.use = Use.FREE
