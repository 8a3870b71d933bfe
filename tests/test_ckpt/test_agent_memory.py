"""An agent's own memory: its program and fixed buffers, whatever the state's size. The slots are the node's."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from agent_kit import NAMESPACE
from mpi_kit import AgentProcesses
from s3_kit import S3Server, s3_server

from ckpt.tiers.nvme import NvmeTier

NODES = ["a", "b", "c"]
WAIT_S = 120.0
LIMIT_MIB = 200
SMALL_MIB, LARGE_MIB = 16, 112  # the difference is far more than all buffers
BUFFERS_MIB = 64  # what a larger state may fill that a small one does not: parts and ranges of S3, windows, stripes


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def memory() -> Iterator[Path]:
    """Memory that counts as shared, as nodes have it."""
    with tempfile.TemporaryDirectory(prefix="holdfast-test-", dir="/dev/shm") as root:
        yield Path(root)


def own_mib(pid: int) -> float:
    """What a process has in memory, but for what it shares."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssFile:"))) / 1024


@contextmanager
def peak_mib(agents: AgentProcesses, into: dict[str, float], phase: str) -> Iterator[None]:
    """The most that any agent is seen to have meanwhile."""
    pids, over, most = agents.pids().values(), threading.Event(), [0.0]

    def watch() -> None:
        while not over.wait(0.01):
            with suppress(OSError, ProcessLookupError):
                most[0] = max(most[0], *map(own_mib, pids))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    into[phase] = max(most[0], *map(own_mib, pids))


def peaks(memory: Path, disk: Path, tiers: dict[str, Any], scheme: dict[str, Any], mib: int) -> dict[str, float]:
    """By phase: a save with its flush to every tier; a rebuild from peers; restores from each tier alone."""
    found: dict[str, float] = {}
    nvme = {"path": str(disk / "nvme"), "every_steps": 1}
    section = {"memory": {"keep": 2}, "redundancy": scheme, "nvme": nvme, **tiers}
    with AgentProcesses(memory, NODES, 0, section) as agents, peak_mib(agents, found, "save, protect, flush"):
        for worker in agents.workers:  # no worker saves before it has the plan: the namespace is claimed by then
            assert worker.request("plan", timeout_s=WAIT_S)["step"] is None
        agents.save(1, 0, mib << 20)
        for worker in agents.workers:
            worker.request("await_saves", timeout_s=WAIT_S)
    assert all(NvmeTier(disk / "nvme", NAMESPACE, node=node).steps() for node in NODES)
    for attempt, (phase, lost) in enumerate(
        [("rebuild", [memory / "b", disk / "nvme" / "b"]), ("nvme", [memory / node for node in NODES]),
         (", ".join(tiers), [disk / "nvme", *(memory / node for node in NODES)])], start=1,
    ):  # fmt: skip
        for path in lost:
            shutil.rmtree(path)
        with AgentProcesses(memory, NODES, attempt, section) as agents, peak_mib(agents, found, f"restore: {phase}"):
            for worker in agents.workers:
                assert worker.request("plan", timeout_s=WAIT_S)["step"] == 1
    return found


@pytest.mark.timeout(600)  # it checksums, copies and uploads gigabytes
@pytest.mark.parametrize("scheme", ["partner", "rs"])
def test_an_agent_takes_no_more_for_a_large_state(tmp_path: Path, memory: Path, server: S3Server, scheme: str) -> None:
    """Through a save, its redundancy, its flush, a rebuild, and restores."""
    found = []
    for mib in (SMALL_MIB, LARGE_MIB):
        (ram := memory / str(mib)).mkdir(mode=0o700)
        below: dict[str, Any] = {"shared": {"path": str(tmp_path / f"shared-{mib}"), "every_steps": 1}}
        if scheme == "partner":
            below = {"s3": {**server.section(f"run-{mib}"), "every_steps": 1}}
        peers = {"scheme": scheme, **({"parity": 2} if scheme == "rs" else {})}
        found.append(peaks(ram, tmp_path / str(mib), below, peers, mib))
        shutil.rmtree(ram)
    small, large = found
    for phase in small:  # a phase of the small state may be over before its peak is seen
        assert large[phase] - max(small.values()) < BUFFERS_MIB and large[phase] < LIMIT_MIB + BUFFERS_MIB, (
            phase,
            found,
        )
