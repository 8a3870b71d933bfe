"""Connections that have not yet proved the job's secret: how many a server keeps, and which go when there are more."""

from __future__ import annotations

from collections.abc import Callable

_FAIR = 4  # connections of one host; more of them make way for others


class Handshakes:
    """Keeps at most `limit` of them; one more, and the oldest of the host that has most is dropped.

    So whoever opens connections and says nothing crowds out only themselves: a runner's host has one or two, for the
    milliseconds of its handshake. Where each host has few, all may be runners: then there is no room for one more.

    Args:
        limit: connections at a time, at least 1.
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
        """Whether one more would drop that of a host which has few."""
        return self._count >= self._limit and max(map(len, self._hosts.values())) <= min(_FAIR, self._limit - 1)

    def add(self, host: str, drop: Callable[[], None]) -> int:
        """Takes a connection in; returns its number.

        Args:
            host: the peer's address.
            drop: ends the connection; called at most once, and never after `remove`.
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
        """The connection has proved the secret, or has ended; nothing happens if it was dropped."""
        if self._hosts.get(host, {}).pop(number, None) is not None:
            self._count -= 1
            if not self._hosts[host]:
                del self._hosts[host]
