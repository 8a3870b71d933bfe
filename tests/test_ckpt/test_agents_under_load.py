"""Worlds of many agents on a busy machine: slow agents stay in the world, and steps commit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from mpi_kit import AgentProcesses

_FROZEN_S = 3.0  # ten times the patience that the site gives the detector

# A busy process. It ends when its stdin closes: with the test, however that ends.
_BUSY = """
import sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), __import__("os")._exit(0)), daemon=True).start()
while True:
    pass
"""


@pytest.fixture
def root() -> Iterator[Path]:
    """In memory, as the real directories are."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        yield Path(folder)


@pytest.fixture
def load() -> Iterator[None]:
    """Four busy processes for each core, until the test ends."""
    count = 4 * len(os.sched_getaffinity(0))
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY], stdin=subprocess.PIPE) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.communicate()


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [8, 24])
def test_no_living_agent_is_taken_for_dead(root: Path, load: None, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Open MPI's failure detector would abort such a world at once: the site has it on, and impatient."""
    monkeypatch.setenv("OMPI_MCA_mpi_ft_detector", "1")
    monkeypatch.setenv("OMPI_MCA_mpi_ft_detector_period", "0.1")
    monkeypatch.setenv("OMPI_MCA_mpi_ft_detector_timeout", "0.3")
    monkeypatch.setattr("mpi_kit.WAIT_S", 240.0)
    with AgentProcesses(root, [f"n{i}" for i in range(count)], 0) as agents:
        before = agents.pids()
        agents.save(10, 0)
        frozen = before[f"n{count // 2}"]
        os.kill(frozen, signal.SIGSTOP)  # as slow as an agent can be: the others wait for it
        agents.seal(20, 1)
        with pytest.raises(subprocess.TimeoutExpired):
            agents.process.wait(_FROZEN_S)
        os.kill(frozen, signal.SIGCONT)
        agents.save(30, 0)
        assert agents.pids() == before
        assert "dead" not in agents.log() and "failed" not in agents.log(), agents.log()
        for monitor in agents.monitors:
            monitor.shutdown()
        assert agents.process.wait(240) == 0, agents.log()
