"""One conformance program over the in-process fake and MPI; and a world of one."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from agent_kit import FakeWorld
from mpi_kit import mpirun
from transport_conformance import check

from ckpt.agent.process.launch import environment
from ckpt.agent.rpc.transport import SoloTransport, TransportError


def test_the_fake_conforms():
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(check, FakeWorld(3).transports))


def test_mpi_conforms_whatever_its_order_of_ranks():
    program = Path(__file__).with_name("transport_conformance.py")
    command = mpirun(*([f"TRANSPORT_NODE={node}", sys.executable, str(program)] for node in ("c", "a", "b")))
    done = subprocess.run(
        command,
        env={**os.environ, **environment(loopback=True)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n"))[-3:] == [f"rank {rank} conforms" for rank in range(3)]


def test_a_world_of_one_has_nobody_to_talk_to():
    solo = SoloTransport()
    assert (solo.rank, solo.size, solo.receive()) == (0, 1, None)
    with pytest.raises(TransportError, match="one node"):
        solo.send(1, b"x")
    for move in (solo.send_range, solo.receive_range):
        with pytest.raises(TransportError, match="one node"):
            move(0, 1, memoryview(bytearray(1)))
    assert solo.done([]) == []
    solo.close()
