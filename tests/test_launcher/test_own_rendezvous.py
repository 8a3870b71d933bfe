"""A script may open process groups at a port of its own; at the agent's port, the agent's store serves them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.runner.port import free_port

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import datetime, os, sys
import torch.distributed as dist
import torch.multiprocessing as mp
from holdfast.own_rendezvous import serve_other_ports

def child(rank, port):
    os.environ["MASTER_PORT"] = port
    dist.init_process_group("gloo", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60))
    dist.barrier()
    print(f"met at {port}", flush=True)

if __name__ == "__main__":
    agents, asked, method = sys.argv[1:]
    server = dist.TCPStore("127.0.0.1", int(agents), None, True, wait_for_workers=False)  # the agent's
    serve_other_ports(int(agents))
    mp.start_processes(child, args=(asked,), nprocs=2, start_method=method)
    assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"
"""


@pytest.mark.parametrize(("own", "method"), [(True, "spawn"), (True, "fork"), (False, "spawn")])
def test_spawned_processes_meet_at_their_own_port_and_at_the_agents(tmp_path: Path, own: bool, method: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    agents = free_port()
    port = str(free_port() if own else agents)
    env = os.environ | {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, tmp_path / "script.py", str(agents), port, method]
    done = subprocess.run(argv, check=False, timeout=100, env=env, capture_output=True, text=True)
    assert done.stdout.count(f"met at {port}") == 2, done.stderr
