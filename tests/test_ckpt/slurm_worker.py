"""A worker of one node in the test on a real Slurm: `slurm_worker.py work ATTEMPT` saves a step, or restores it.

`slurm_worker.py shutdown ATTEMPT` ends the node's agent, once the workers of all nodes are done: each needs the others.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from agent_kit import LINE, content, layout

from ckpt.agent.rpc.client import AgentClient, Monitor

NBYTES = 20_000_000  # several blocks, several of MPI's own fragments
STEP = 10


def work(attempt: int) -> None:
    nodes, node = os.environ["HOLDFAST_NODES"].split(","), os.environ["SLURMD_NODENAME"]
    ram_dir, rank = Path(os.environ["HOLDFAST_RAM_DIR"]), nodes.index(node)
    worker = AgentClient.connect(ram_dir / f"agent-{attempt}.sock", rank=rank, local_rank=0, timeout_s=60)
    plan = worker.request("plan", timeout_s=60)
    if attempt == 0:
        data = content(rank, STEP, NBYTES)
        (ram_dir / "own-0-0.data").write_bytes(data)
        worker.send(
            "staged",
            slot=0,
            step=STEP,
            rank=rank,
            layout=layout(len(data)).to_json(),
            descent=LINE.to_json(),
            flush=False,
        )
        while not any(event["event"] == "committed" for event in worker.events(60)):
            pass
        worker.request("await_saves", timeout_s=60)
    else:
        for saved in range(plan["world_size"]):
            reply = worker.request("open", timeout_s=60, rank=saved, blocks=None)
            assert Path(reply["path"]).read_bytes()[:NBYTES] == content(saved, STEP, NBYTES)
    step = plan["save"] and plan["save"].step
    print(f"{node} attempt {attempt} step {step} of {plan['world_size']} ranks from {plan['tier']}", flush=True)


def shutdown(attempt: int) -> None:
    Monitor.connect(Path(os.environ["HOLDFAST_RAM_DIR"]), attempt, 60).shutdown()


if __name__ == "__main__":
    {"work": work, "shutdown": shutdown}[sys.argv[1]](int(sys.argv[2]))
