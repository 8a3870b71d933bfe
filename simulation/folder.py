"""The job's folder on the shared file system: events, terms, the lease, the result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.driver import Driver
    from simulation.host import Host
    from simulation.world import World

OK, FULL, HANGS, REMOVED = "ok", "full", "hangs", "removed"


class Folder:
    """The folder.

    Attributes:
        mode: whether it can be written.
        unseen: names of hosts from which it is not seen.
        events: those that count, oldest first.
        holders: the holder of each term, from term 1.
        quiet_s: since when nobody renews the lease; None while somebody does.
        result: the job's outcome and reason.
    """

    __slots__ = ("_term", "_world", "events", "holders", "mode", "quiet_s", "result", "unseen")

    def __init__(self, world: World) -> None:
        self._world = world
        self.mode = OK
        self.unseen: set[str] = set()
        self.events: list[dict[str, Any]] = []
        self._term = 0
        self.holders: list[Driver] = []
        self.quiet_s: float | None = 0.0
        self.result: tuple[str, str] | None = None

    @property
    def newest_term(self) -> int:
        return len(self.holders)

    def is_seen(self, host: Host) -> bool:
        """Whether a process of the host can read it."""
        return self.mode in (OK, FULL) and host.name not in self.unseen

    def is_writable(self, host: Host) -> bool:
        return self.mode == OK and host.name not in self.unseen

    def append(self, term: int, event: dict[str, Any]) -> None:
        """Writes an event. One of a term that is over stands in the file, and does not count."""
        if term < self._term:
            return
        self._term = term
        self.events.append(event)
        self._world.invariants.wrote(event)

    def claim(self, driver: Driver) -> None:
        """Takes the next term."""
        self.holders.append(driver)
        self.update_lease()

    def update_lease(self) -> None:
        """Whether the newest term's holder renews the lease."""
        renews = bool(self.holders) and self.holders[-1].renews_lease
        if renews:
            self.quiet_s = None
        elif self.quiet_s is None:
            self.quiet_s = self._world.clock.now
