"""The slots that a rank stages into, and the outcome of the saves in them."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from ckpt.format.shard_record import SaveId
from ckpt.memory.arena import Arena, Slot, Use

GROW_THREAD, MAP_THREAD = "ckpt-grow", "ckpt-map"
_REMEMBER = 64  # steps
_SHORT_S = 0.001  # no speed is logged for less

log = logging.getLogger(__name__)


class Slots:
    """Gives slots to saves, and frees them by the agent's events. Counts and logs the saves that have failed."""

    def __init__(self, arena: Arena, rank: int, pin: Callable[[Slot], None]) -> None:
        """`pin`: called with each slot whose memory has been prepared."""
        self.failed = 0  # saves
        self.committed: SaveId | None = None  # the newest save that this attempt has committed
        self.replicas_differ = False  # a save was dropped because the ranks disagree on what their replicas are
        self._arena, self._rank, self._pin = arena, rank, pin
        self._dropped_here: deque[int] = deque(maxlen=_REMEMBER)  # steps of which this rank staged no shard
        self._grown_bytes = 0

    @property
    def is_saving(self) -> bool:
        return any(slot.use is Use.IN_FLIGHT for slot in self._arena.slots)

    def take(self, step: int) -> Slot | None:
        """A free slot for a save; None if there is none."""
        return self._arena.take(step)

    def give_back(self, slot: Slot) -> None:
        """Frees a slot whose save was not sealed."""
        self._arena.give_back(slot)

    def describe(self) -> str:
        """The use of every slot, for messages."""
        return self._arena.describe()

    def mapped(self, path: str, nbytes: int) -> memoryview | None:
        """The first bytes of a file, if it is a mapped slot."""
        return self._arena.mapped(path, nbytes)

    def adopt(self, newest: SaveId | None, *, pinned: bool) -> None:
        """Keeps the slots with the newest save. `pinned`: a flush is reading it."""
        self._arena.adopt(newest, pinned=pinned)

    def rejoin(self, save: SaveId | None, *, pinned: bool) -> None:
        """Continues with other agents, which know of one save only. Saves in flight are dropped."""
        for step in self._arena.rejoin(save, pinned=pinned):
            self.count("step %d was dropped before it was committed: the agents were lost", step)
        self.committed = save

    def map_newest(self) -> None:
        """Maps the slot that a load probably reads, in a thread."""
        _in_thread(MAP_THREAD, self._arena.map_newest)

    def map_all(self) -> None:
        """Maps the existing slots, in a thread."""
        _in_thread(MAP_THREAD, self._arena.map_ahead)

    def prepare(self, nbytes: int) -> None:
        """Prepares memory for saves of this size in a thread, because the first write to a page is slow."""
        if nbytes > self._grown_bytes:
            self._grown_bytes = nbytes
            _in_thread(GROW_THREAD, lambda: self._grow(nbytes))

    def _grow(self, nbytes: int) -> None:
        self._arena.grow(nbytes)
        for slot in self._arena.slots:
            self._pin(slot)

    def heed(self, event: dict[str, Any]) -> None:
        """Handles an event of the agent about a save."""
        step = event.get("step", 0)
        match event["event"]:
            case "committed":
                self.committed = event["save"]
                self._arena.committed(step, pinned=event["pinned"])
                self._report("in the memory of all nodes", event)
            case "flushed":
                if not event["pinned"]:
                    self._arena.flushed(step)
                if not event["reached"]:
                    self.count("step %d did not reach the %s tier; it is safe in memory", step, event["tier"])
                else:
                    self._report(f"in tier {event['tier']}", event)
            case "flush_dropped" if self._rank == 0:
                tier, older = event["tier"], event["under_way"]
                log.warning("step %d does not go to the %s tier: step %s is still on its way there", step, tier, older)
            case "dropped":
                self._arena.dropped(step)
                self.replicas_differ |= event.get("replicas_differ", False)
                if step not in self._dropped_here:  # else the agent repeats this rank's own report
                    self.count("step %d was dropped before it was committed: %s", step, event["reason"])

    def drops(self, step: int) -> None:
        """This rank is about to tell the agent that it stages no shard of a step. The agent repeats that at once."""
        self._dropped_here.append(step)

    def dropped_here(self, step: int, reason: str, *, quietly: bool) -> None:
        """This rank has staged no shard of a step. `quietly`: the loss of the agents was logged already."""
        if quietly:
            self.failed += 1
        else:
            self.count("step %d is dropped: %s", step, reason)

    def count(self, message: str, *args: object) -> None:
        """Counts a failed save, and logs why."""
        self.failed += 1
        log.warning("rank %d: " + message, self._rank, *args)

    def _report(self, where: str, event: dict[str, Any]) -> None:
        if self._rank == 0 and "bytes" in event:
            log.info("committed step %d %s: %s", event["step"], where, rate(event["bytes"], event["seconds"]))


def _in_thread(name: str, work: Callable[[], None]) -> None:
    threading.Thread(target=work, name=name, daemon=True).start()


def rate(nbytes: int, seconds: float) -> str:
    """Bytes, seconds and MB/s in the same form for every log line. No speed if the time is too short to measure."""
    if seconds < _SHORT_S:
        return f"{nbytes} bytes in under {_SHORT_S * 1000:g} ms"
    megabytes_s = nbytes / 1e6 / seconds
    return f"{nbytes} bytes in {seconds:.3f} s, {megabytes_s:.{0 if megabytes_s >= 10 else 2}f} MB/s"
