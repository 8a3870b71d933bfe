"""The store of torch's rendezvous as an attempt's agents make it."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed import DistNetworkError, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.torch_version import TorchVersion

import launcher.runner.rendezvous
from launcher.connections import job_socket
from launcher.runner.port import free_port
from launcher.runner.rendezvous import JobRendezvous


def task(**changes: Any) -> dict[str, Any]:
    facts = {
        "master_addr": "127.0.0.1",
        "master_port": free_port(),
        "node_rank": 0,
        "nodes": 1,
        "run_id": "r",
        "attempt": 0,
    }
    return facts | {"rendezvous_timeout_s": 20, "hosts": []} | changes


def client(port: int) -> TCPStore:
    return TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=20))


@pytest.mark.parametrize("version", ["2.6.0+cpu", "2.7.1"])
def test_the_store_listens_on_our_socket_with_old_releases_of_torch_too(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    facts = task()
    store = JobRendezvous(facts)
    store.next_rendezvous()
    assert store._store is not None and not store._store.libuvBackend
    client(facts["master_port"]).set("a", "b")
    assert client(facts["master_port"]).get("a") == b"b"


@pytest.mark.skipif(bool(job_socket.filter_refused()), reason="this kernel allows this user no socket filters")
def test_workers_of_the_job_use_the_store_and_a_neighbour_does_not_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_socket, "_LOOPBACK", ("127.0.0.1", "127.0.0.1"))  # the others play other hosts
    facts = task(hosts=[["127.0.0.2", "127.0.0.3"]])
    rendezvous = JobRendezvous(facts)
    rendezvous.next_rendezvous().store.set("from the agent", "1")
    assert client(facts["master_port"]).num_keys() > 0
    address = ("127.0.0.1", facts["master_port"])
    socket.create_connection(address, 5, ("127.0.0.3", 0)).close()
    with pytest.raises(TimeoutError):
        socket.create_connection(address, 0.5, ("127.0.0.9", 0))


def test_where_the_kernel_allows_no_filter_the_store_works_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job_socket, "_SO_ATTACH_FILTER", 9999)
    facts = task()
    rendezvous = JobRendezvous(facts)
    rendezvous.next_rendezvous()
    client(facts["master_port"]).set("a", "b")
    assert "accepts connections from every host" in caplog.text and "Protocol not available" in caplog.text


def test_a_node_that_comes_before_the_first_leaves_nothing_to_torchs_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, looked = task(nodes=2), threading.Event()
    connect, rendezvous = socket.create_connection, StaticTCPRendezvous.next_rendezvous

    def look(*args: Any) -> socket.socket:
        try:
            return connect(*args)
        finally:
            looked.set()

    def torchs(self: StaticTCPRendezvous) -> RendezvousInfo:
        if self.rank:
            connect(("127.0.0.1", facts["master_port"]), 5).close()  # it would have to try again
        return rendezvous(self)

    monkeypatch.setattr(socket, "create_connection", look)
    monkeypatch.setattr(StaticTCPRendezvous, "next_rendezvous", torchs)
    second = JobRendezvous(task(nodes=2, node_rank=1, master_port=facts["master_port"]))
    with ThreadPoolExecutor() as threads:
        coming = threads.submit(second.next_rendezvous)
        assert looked.wait(20)
        found = [JobRendezvous(facts).next_rendezvous(), coming.result(20)]
    found[0].store.set("from the first", "1")
    assert found[1].store.get("from the first") == b"1"


def test_a_first_node_that_does_not_come_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher.runner.rendezvous, "_LOOKS_S", 0.05)
    with pytest.raises(DistNetworkError, match="timed out"):
        JobRendezvous(task(nodes=2, node_rank=1, rendezvous_timeout_s=1)).next_rendezvous()


def test_the_store_is_bound_to_the_address_that_the_workers_are_given() -> None:
    facts = task()
    rendezvous = JobRendezvous(facts)
    rendezvous.next_rendezvous()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", facts["master_port"]), 5)
