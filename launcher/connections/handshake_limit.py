"""Limits the connections that have not proved the job's secret yet, and chooses which of them to drop."""

from __future__ import annotations

from collections.abc import Callable

_FAIR = 4  # a host with more connections than this loses its oldest one to a new connection


class Handshakes:
    """Keeps at most `limit` unproven connections. A further one drops the oldest of the host that has the most.

    So a host that opens connections without a handshake only loses its own: a runner's host has one or two, for
    milliseconds. If no host has more than a few, all may be runners. Then none is dropped, and `is_full` is true.

    Args:
        limit: maximum number of connections, at least 1.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._hosts: dict[str, dict[int, Callable[[], None]]] = {}  # host -> number, oldest first -> drop
        self._count = 0
        self._next = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """Whether a further connection would drop one of a host that has only a few."""
        return self._count >= self._limit and max(map(len, self._hosts.values())) <= min(_FAIR, self._limit - 1)

    def add(self, host: str, drop: Callable[[], None]) -> int:
        """Add a connection and return its number.

        Args:
            host: the peer's address.
            drop: closes the connection. Called at most once, and never after `remove`.
        """
        number, self._next = self._next, self._next + 1
        self._hosts.setdefault(host, {})[number] = drop
        self._count += 1
        if self._count > self._limit:
            most = max(self._hosts, key=lambda each: len(self._hosts[each]))
            oldest = next(iter(self._hosts[most]))
            drop_oldest = self._hosts[most][oldest]
            self.remove(most, oldest)
            drop_oldest()
        return number

    def remove(self, host: str, number: int) -> None:
        """Remove a connection that has proved the secret or has ended. Does nothing if it was dropped."""
        if self._hosts.get(host, {}).pop(number, None) is not None:
            self._count -= 1
            if not self._hosts[host]:
                del self._hosts[host]
