"""Limits the connections that have not proved the job's secret yet, and chooses which of them to drop."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable

_FAIR = 4  # a host with more connections than this loses its oldest one to a new connection
_LEAST_S = 1.0  # a runner's handshake takes milliseconds; where hosts are many, each connection has this time
_THIS_MACHINE = "this machine"


class Handshakes:
    """Keeps at most `limit` unproven connections. A further one drops the oldest of the host that has the most.

    So a host that opens connections without a handshake only loses its own: a runner's host has one or two, for
    milliseconds. All addresses of this machine count as one host, because any user of it may connect from each of them.
    If no host has more than a few, all may be runners. Then `is_full` is true until the oldest connection has had the
    time for a handshake, and the next one drops that.

    Args:
        limit: maximum number of connections, at least 1.
        clock: monotonic time in seconds.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._hosts: dict[str, dict[int, Callable[[], None]]] = {}  # host -> number, oldest first -> drop
        self._since_s: dict[int, tuple[str, float]] = {}  # number, oldest first -> host and time of `add`
        self._next = 0

    def __len__(self) -> int:
        return len(self._since_s)

    @property
    def is_full(self) -> bool:
        """Whether a further connection would drop one that has not had the time for a handshake, of a fair host."""
        if len(self) < self._limit or self._is_crowded():
            return False
        _, since_s = next(iter(self._since_s.values()))
        return self._clock() - since_s < _LEAST_S

    def add(self, address: str, drop: Callable[[], None]) -> int:
        """Add a connection and return its number.

        Args:
            address: the peer's address.
            drop: closes the connection. Called at most once, and never after `remove`.
        """
        number, self._next = self._next, self._next + 1
        host = host_of(address)
        self._hosts.setdefault(host, {})[number] = drop
        self._since_s[number] = (host, self._clock())
        if len(self) > self._limit:
            oldest = next(iter(self._hosts[self._most()])) if self._is_crowded() else next(iter(self._since_s))
            drop_oldest = self._hosts[self._since_s[oldest][0]][oldest]
            self.remove(oldest)
            drop_oldest()
        return number

    def remove(self, number: int) -> None:
        """Remove a connection that has proved the secret or has ended. Does nothing if it was dropped."""
        host, _ = self._since_s.pop(number, ("", 0.0))
        self._hosts.get(host, {}).pop(number, None)
        if not self._hosts.get(host, True):
            del self._hosts[host]

    def _most(self) -> str:
        return max(self._hosts, key=lambda host: len(self._hosts[host]))

    def _is_crowded(self) -> bool:
        """Whether a host has more connections than its fair number."""
        return len(self._hosts[self._most()]) > min(_FAIR, self._limit - 1)


def host_of(address: str) -> str:
    """The host that an address counts for. All addresses of this machine are one, and so is an IPv6 network of 64 bits,
    in which a host chooses its addresses itself."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # a socket without an address
        return address
    if parsed.version == 6 and parsed.ipv4_mapped:
        parsed = parsed.ipv4_mapped
    if parsed.is_loopback or _is_local(parsed):
        return _THIS_MACHINE
    return str(parsed) if parsed.version == 4 else str(ipaddress.IPv6Network((int(parsed), 64), strict=False))


def _is_local(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address is of this machine: only those can be bound."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True
