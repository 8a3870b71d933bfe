"""The IPv4 addresses of a job's hosts: what a host has, and what all of them have as a few ranges."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import AddressValueError, IPv4Address
from itertools import pairwise
from pathlib import Path

MOST_RANGES = 128
MOST_OF_A_HOST = 64  # bridges of containers among them

_ROUTES = Path("/proc/net/fib_trie")

Range = tuple[str, str]


def own_addresses() -> list[str]:
    """This host's addresses, but for those of the loopback network; none where the kernel does not list them."""
    try:
        lines = [line.split() for line in _ROUTES.read_text().splitlines()]
    except OSError:
        return []
    # "|-- 192.0.2.2" and below it "/32 host LOCAL"; each stands there twice
    found = (above[1] for above, below in pairwise(lines) if below == ["/32", "host", "LOCAL"] and above[0] == "|--")
    return [address for address in dict.fromkeys(found) if not address.startswith("127.")][:MOST_OF_A_HOST]


def ranges(addresses: Iterable[object], most: int = MOST_RANGES) -> list[Range]:
    """The fewest ranges that hold these addresses and no others; what is no IPv4 address is left out.

    Of more than `most` ranges, those that are nearest to each other become one: it holds the addresses between them,
    too.
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
