"""A worker of one node in the test on a real Slurm cluster: saves a step, or restores it. `slurm_worker.py ATTEMPT`.

`slurm_worker.py ATTEMPT end` ends the node's agent: when all workers are done, for each is served by all agents.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from agent_kit import content, layout

from ckpt.agent.client import AgentClient, Monitor

NBYTES = 20_000_000  # several blocks, several of MPI's own fragments
STEP = 10


def main(attempt: int) -> None:
    nodes, node = os.environ["HOLDFAST_NODES"].split(","), os.environ["SLURMD_NODENAME"]
    ram_dir, rank = Path(os.environ["HOLDFAST_RAM_DIR"]), nodes.index(node)
    worker = AgentClient.connect(ram_dir / f"agent-{attempt}.sock", rank=rank, local_rank=0, timeout_s=60)
    plan = worker.request("plan", timeout_s=60)
    if attempt == 0:
        data = content(rank, STEP, NBYTES)
        (ram_dir / "own-0-0.data").write_bytes(data)
        worker.send("sealed", slot=0, step=STEP, rank=rank, layout=layout(len(data)).to_json(), drain=False)
        while not any(event["event"] == "committed" for event in worker.events(60)):
            pass
    else:
        for saved in range(plan["world_size"]):
            reply = worker.request("open", timeout_s=60, rank=saved, blocks=None)
            assert Path(reply["path"]).read_bytes()[:NBYTES] == content(saved, STEP, NBYTES)
    print(f"{node} attempt {attempt} step {plan['step']} of {plan['world_size']} ranks from {plan['tier']}", flush=True)


def end(attempt: int) -> None:
    Monitor.connect(os.environ["HOLDFAST_RAM_DIR"], attempt, 60).shutdown(30)


if __name__ == "__main__":
    (end if sys.argv[2:] == ["end"] else main)(int(sys.argv[1]))
