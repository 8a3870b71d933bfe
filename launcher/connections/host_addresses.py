"""The IPv4 addresses of a job's hosts: lists those of this host, and combines those of all hosts into a few ranges."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import AddressValueError, IPv4Address
from itertools import pairwise
from pathlib import Path

MOST_RANGES = 128
MOST_OF_A_HOST = 64  # including those of bridges for containers

_ROUTES = Path("/proc/net/fib_trie")

Range = tuple[str, str]


def own_addresses() -> list[str]:
    """This host's addresses, without those of the loopback network; empty if the kernel does not list them."""
    try:
        lines = [line.split() for line in _ROUTES.read_text().splitlines()]
    except OSError:
        return []
    # The kernel lists each address twice, as "|-- 192.0.2.2" with "/32 host LOCAL" on the next line.
    found = (above[1] for above, below in pairwise(lines) if below == ["/32", "host", "LOCAL"] and above[0] == "|--")
    return [address for address in dict.fromkeys(found) if not address.startswith("127.")][:MOST_OF_A_HOST]


def ranges(addresses: Iterable[object], most: int = MOST_RANGES) -> list[Range]:
    """The smallest number of ranges that have exactly these addresses. Values that are no IPv4 address are ignored.

    If there are more than `most` ranges, neighbouring ranges are merged, the nearest first. A merged range also has
    the addresses in between.
    """
    found: list[list[int]] = []
    for number in sorted({number for number in map(_number, addresses) if number is not None}):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    if len(found) > most:
        gaps = sorted(range(1, len(found)), key=lambda index: found[index][0] - found[index - 1][1])
        starts = [0, *sorted(gaps[len(found) - most :])]
        ends = [*(start - 1 for start in starts[1:]), len(found) - 1]
        found = [[found[first][0], found[last][1]] for first, last in zip(starts, ends, strict=True)]
    return [(str(IPv4Address(first)), str(IPv4Address(last))) for first, last in found]


def _number(address: object) -> int | None:
    try:
        return int(IPv4Address(address)) if isinstance(address, str) else None
    except AddressValueError:
        return None
