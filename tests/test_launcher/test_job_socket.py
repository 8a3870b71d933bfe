"""Who reaches a socket of a job, and which addresses a job's hosts have. Neighbours are loopback addresses here."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.connections import job_socket
from launcher.connections.host_addresses import own_addresses, ranges
from launcher.connections.job_socket import bound_socket, filter_refused, keep_out_others

filters = pytest.mark.skipif(bool(filter_refused()), reason="this kernel allows this user no socket filters")

JOB, BETWEEN, NEIGHBOUR = "127.0.0.2", "127.0.0.4", "127.0.0.9"


@pytest.fixture(autouse=True)
def _no_loopback_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loopback network is this host's own, and always let in: here it plays all the others."""
    monkeypatch.setattr(job_socket, "_LOOPBACK", ("127.0.0.1", "127.0.0.1"))


@contextmanager
def guarded(*hosts: tuple[str, str]) -> Iterator[tuple[str, int]]:
    with bound_socket("127.0.0.1", 0) as listening:
        keep_out_others(listening, hosts)
        listening.listen()
        yield listening.getsockname()


@filters
@pytest.mark.parametrize("source", ["127.0.0.1", JOB, "127.0.0.3", BETWEEN, "127.0.0.6"])
def test_the_jobs_hosts_connect(source: str) -> None:
    with guarded((JOB, "127.0.0.4"), ("127.0.0.6", "127.0.0.6")) as address:
        socket.create_connection(address, 5, (source, 0)).close()


@filters
@pytest.mark.parametrize("source", [NEIGHBOUR, "127.0.0.5", "127.0.0.7", "127.255.255.254"])
def test_a_neighbours_packets_are_dropped(source: str) -> None:
    with (
        guarded((JOB, "127.0.0.4"), ("127.0.0.6", "127.0.0.6")) as address,
        pytest.raises(TimeoutError),
    ):
        socket.create_connection(address, 0.5, (source, 0)).close()


@filters
def test_a_filter_of_the_most_ranges_is_taken() -> None:
    addresses = [str(IPv4Address("10.0.0.0") + 7 * index) for index in range(5000)]
    with guarded(*ranges(addresses), (JOB, JOB)) as address:
        socket.create_connection(address, 5, (JOB, 0)).close()


def test_a_user_is_told_whether_the_kernel_refuses_such_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    assert filter_refused() in ("", "Operation not permitted")
    monkeypatch.setattr(job_socket, "_SO_ATTACH_FILTER", 9999)
    assert filter_refused() == "Protocol not available"


def test_an_address_that_is_not_this_hosts_means_all_of_this_hosts() -> None:
    for host in ("203.0.113.7", "a-name-that-nothing-resolves"):
        with bound_socket(host, 0) as bound:
            assert bound.getsockname()[0] == "0.0.0.0"
    with bound_socket("127.0.0.1", 0) as first, pytest.raises(OSError) as error:
        first.listen()
        bound_socket("127.0.0.1", first.getsockname()[1])
    assert error.value.errno == errno.EADDRINUSE


@given(st.sets(st.integers(0, 2**32 - 1), max_size=60), st.integers(1, 20))
def test_ranges_hold_every_address_and_are_exact_while_few(numbers: set[int], most: int) -> None:
    found = [(int(IPv4Address(first)), int(IPv4Address(last))) for first, last in ranges(_texts(numbers), most)]
    assert len(found) <= most
    assert all(any(first <= number <= last for first, last in found) for number in numbers)
    assert all(earlier[1] < later[0] for earlier, later in pairwise(found))
    assert all(first in numbers and last in numbers for first, last in found)
    if len(ranges(_texts(numbers), 100)) <= most:
        assert sum(last - first + 1 for first, last in found) == len(numbers)


def test_the_nearest_ranges_become_one() -> None:
    addresses = ["10.0.0.1", "10.0.0.2", "10.0.0.9", "10.0.1.1", "10.0.0.3", "10.0.0.4"]
    assert ranges(addresses) == [("10.0.0.1", "10.0.0.4"), ("10.0.0.9", "10.0.0.9"), ("10.0.1.1", "10.0.1.1")]
    assert ranges(addresses, 2) == [("10.0.0.1", "10.0.0.9"), ("10.0.1.1", "10.0.1.1")]
    assert ranges(["10.0.0.1", "unknown", 7, None, "fe80::1"]) == [("10.0.0.1", "10.0.0.1")]


def test_own_addresses_are_those_of_the_network_and_not_of_the_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outgoing:
        try:
            outgoing.connect(("203.0.113.7", 9))  # sends nothing
        except OSError:
            pytest.skip("this host has no network")
        assert outgoing.getsockname()[0] in own_addresses()
    assert not any(address.startswith("127.") for address in own_addresses())


def _texts(numbers: set[int]) -> list[str]:
    return [str(IPv4Address(number)) for number in numbers]
