"""Torch's rendezvous with hosts of their own: network namespaces on a bridge, the job's two and a neighbour's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from launcher.runner.port import free_port

pytestmark = pytest.mark.slurm  # root makes the namespaces, as it does those of a cluster

SERVE = """
import json, sys
from launcher.runner.rendezvous import JobRendezvous
task = json.loads(sys.argv[1])
rendezvous = JobRendezvous(task)
store = rendezvous.next_rendezvous().store
if task["node_rank"] == 0:
    store.set("secret", "of the job")
    print("ready", flush=True)
    sys.stdin.read()
else:
    print(store.get("secret").decode())
"""
NEIGHBOUR = """
import datetime, sys
from torch.distributed import DistNetworkError, TCPStore
try:
    store = TCPStore(sys.argv[1], int(sys.argv[2]), is_master=False, timeout=datetime.timedelta(seconds=2))
    store.set("planted", "x")
    print("wrote, and counted", store.num_keys())
except DistNetworkError as error:
    print("not connected")
"""


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Three namespaces; host i has the address 10.199.0.i."""
    bridge = f"hfrdv{os.getpid() % 100000}"
    names = [f"{bridge}-{index}" for index in (1, 2, 3)]
    with ExitStack() as stack:
        ip("link", "add", bridge, "type", "bridge")
        stack.callback(ip, "link", "delete", bridge)
        ip("link", "set", bridge, "up")
        for index, name in enumerate(names, 1):
            ip("netns", "add", name)
            stack.callback(ip, "netns", "delete", name)
            ip("link", "add", f"{bridge}v{index}", "type", "veth", "peer", "name", "eth0", "netns", name)
            stack.callback(ip, "link", "delete", f"{bridge}v{index}")  # at once: with its namespace it goes later
            ip("link", "set", f"{bridge}v{index}", "master", bridge, "up")
            ip("-n", name, "address", "add", f"10.199.0.{index}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def start(host: str, code: str, *arguments: str) -> subprocess.Popen[str]:
    argv = ["ip", "netns", "exec", host, sys.executable, "-c", code, *arguments]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(host: str, code: str, *arguments: str) -> str:
    out, _ = start(host, code, *arguments).communicate(timeout=60)
    return out.strip()


@pytest.mark.parametrize(("allowed", "could"), [(2, "not connected"), (3, "wrote, and counted")])
def test_a_neighbour_on_another_host_neither_lists_nor_writes_the_store(
    hosts: list[str], allowed: int, could: str
) -> None:
    """The second case shows that the first has teeth: the neighbour's host is let in."""
    port = free_port()
    task: dict[str, Any] = {"master_addr": "10.199.0.1", "master_port": port, "nodes": 2, "run_id": "r", "attempt": 0}
    task |= {"rendezvous_timeout_s": 60, "hosts": [["10.199.0.1", f"10.199.0.{allowed}"]]}
    with start(hosts[0], SERVE, json.dumps(task | {"node_rank": 0})) as serving:
        try:
            assert said(hosts[1], SERVE, json.dumps(task | {"node_rank": 1})) == "of the job"
            assert serving.stdout is not None and serving.stdout.readline() == "ready\n"
            assert said(hosts[2], NEIGHBOUR, "10.199.0.1", str(port)).startswith(could)
        finally:
            serving.kill()
