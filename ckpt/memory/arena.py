"""The slots of a rank in its node's memory: files that are mapped once and reused, and the state of each.

A slot is not free while it holds the newest committed save, a save in flight, or a save that is being flushed. Slots
grow but never shrink, so other processes may keep reading a mapped slot.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from enum import Enum
from pathlib import Path

from ckpt.errors import CorruptError
from ckpt.format.memory_names import StoredName, data_file, own_stem
from ckpt.format.shard_record import SaveId, drop_record, read_record
from ckpt.native.pages import populate_for_writing


class Use(Enum):
    FREE = "free"
    IN_FLIGHT = "in flight"
    COMMITTED = "committed"


class Slot:
    """One data file, mapped for writing."""

    def __init__(self, ram_dir: Path, local_rank: int, index: int) -> None:
        self.index = index
        self.name = str(StoredName(own_stem(local_rank), index))
        self.path = data_file(ram_dir, self.name)
        self.memory: mmap.mmap | None = None
        self.use = Use.FREE
        self.step = -1
        self.serial = 0  # counts the saves of this attempt; 0 for a save of an earlier attempt
        self.pinned = False  # a flush reads it
        self._inode = 0  # of the mapped file
        self._reserving = threading.Lock()

    def reserve(self, nbytes: int) -> mmap.mmap:
        """Makes the file at least `nbytes` long and maps it. A mapping that is long enough is kept.

        May be called from any thread. A second caller waits for the first. Other threads run meanwhile.

        Raises:
            OSError: no space left in memory.
        """
        with self._reserving:
            if (memory := self.mapped(nbytes)) is not None:
                return memory
            descriptor = self.open()
            try:
                size = max(nbytes, os.fstat(descriptor).st_size, mmap.PAGESIZE)
                os.posix_fallocate(descriptor, 0, size)  # a full tmpfs is an error here, not a SIGBUS later
                return self._map(descriptor, size)
            finally:
                os.close(descriptor)

    def map_ahead(self) -> None:
        """Maps the file as it is, if it exists. It may be replaced until the node's agent has sent its plan.

        A mapping of the current file is kept.
        """
        with self._reserving, contextlib.suppress(OSError):
            descriptor = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if (size := os.fstat(descriptor).st_size) and self.mapped(size) is None:
                    self._map(descriptor, size)
            finally:
                os.close(descriptor)

    def sealed_ns(self) -> int:
        """When the agent wrote the record of its shard; -1 if it has none."""
        try:
            return self.path.with_suffix(".json").stat().st_mtime_ns
        except OSError:
            return -1

    def open(self) -> int:
        """A descriptor of the data file, which is created if it is missing."""
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def mapped(self, nbytes: int) -> mmap.mmap | None:
        """The mapping, if it has at least `nbytes` and is of the current file. It may not be populated yet."""
        inode, memory = self._inode, self.memory  # in this order: `_map` may run meanwhile, and sets memory first
        if memory is None or len(memory) < nbytes:
            return None
        try:
            status = os.lstat(self.path)
        except FileNotFoundError:
            return None
        return memory if status.st_ino == inode else None

    def _map(self, descriptor: int, size: int) -> mmap.mmap:
        memory = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED)
        self.memory = memory
        self._inode = os.fstat(descriptor).st_ino
        populate_for_writing(memory)
        return memory


class Arena:
    """All slots of one rank."""

    def __init__(self, ram_dir: Path, local_rank: int, slots: int) -> None:
        self._ram_dir = ram_dir
        self._serial = 0
        self.slots = [Slot(ram_dir, local_rank, index) for index in range(slots)]

    def adopt(self, newest: SaveId | None, *, pinned: bool = False) -> None:
        """Keeps the slots with the newest restorable save until a newer save has committed.

        Args:
            pinned: whether a flush is reading it.
        """
        for slot in self.slots:
            save = self._save_in(slot)
            if save is not None:
                slot.step = save.step
            if save is not None and save == newest:
                slot.use, slot.pinned = Use.COMMITTED, pinned

    def rejoin(self, newest: SaveId | None, *, pinned: bool = False) -> list[int]:
        """Continues with other agents, which know of one save only. No slot may be written meanwhile.

        Args:
            newest: the committed save; None: the committed saves stay committed.

        Returns:
            The steps that were in flight; their saves are dropped.
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

    def map_newest(self) -> None:
        """Maps the file that was sealed last, which a load probably reads. Called in a thread, as `map_ahead`."""
        max(self.slots, key=Slot.sealed_ns).map_ahead()

    def map_ahead(self) -> None:
        """Maps the existing files. Called in a thread, because the page tables of large slots take time."""
        for slot in self.slots:
            slot.map_ahead()

    def mapped(self, path: str, nbytes: int) -> memoryview | None:
        """The first bytes of a file, if it is a mapped slot. The caller must not write to them."""
        for slot in self.slots:
            if str(slot.path) == path and (memory := slot.mapped(nbytes)) is not None:
                return memoryview(memory)[:nbytes]
        return None

    def grow(self, nbytes: int) -> None:
        """Reserves memory for all slots in advance. Called in a thread, because the first write to memory is slow.

        Lack of memory is ignored here; it shows when a save needs the slot.
        """
        for slot in self.slots:
            with contextlib.suppress(OSError):
                slot.reserve(nbytes)

    def take(self, step: int) -> Slot | None:
        """The free slot with the oldest save, unpublished so that it may be overwritten; None if no slot is free."""
        free = [slot for slot in self.slots if slot.use is Use.FREE]
        if not free:
            return None
        slot = min(free, key=lambda slot: (slot.serial, slot.step))
        drop_record(self._ram_dir, slot.name)
        self._serial += 1
        slot.use, slot.step, slot.serial = Use.IN_FLIGHT, step, self._serial
        return slot

    def give_back(self, slot: Slot) -> None:
        """Frees a slot whose save was not sealed."""
        slot.use = Use.FREE

    def committed(self, step: int, *, pinned: bool) -> None:
        """Marks a step as committed: it survives the losses that its scheme promises. Older saves are freed."""
        for slot in self._holding(step):
            slot.use, slot.pinned = Use.COMMITTED, pinned
        self._release_older()

    def flushed(self, step: int) -> None:
        """Marks a step, restored or of this attempt, as no longer read for a lower tier."""
        for slot in self.slots:
            if slot.step == step:
                slot.pinned = False
        self._release_older()

    def dropped(self, step: int) -> None:
        """Frees the slot of a step that was dropped before it was committed."""
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
        """The save in the record of a slot; None if there is none."""
        try:
            return read_record(self._ram_dir, slot.name).save
        except (FileNotFoundError, CorruptError):
            return None

    def _holding(self, step: int) -> list[Slot]:
        """This attempt's slots in use for a step. The same step of an earlier attempt is a different save."""
        return [slot for slot in self.slots if slot.use is not Use.FREE and slot.step == step and slot.serial]

    def _release_older(self) -> None:
        committed = [slot for slot in self.slots if slot.use is Use.COMMITTED]
        newest = max((slot.serial for slot in committed), default=0)
        for slot in committed:
            if slot.serial < newest and not slot.pinned:
                slot.use = Use.FREE
