"""The agents' MPI world as Slurm starts it: one node each, over the network between them."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from agent_kit import NAMESPACE, RUN_ID
from slurm_kit import run_job

from ckpt.agent.launch import command, environment

HERE = Path(__file__).parent


@pytest.mark.slurm
def test_a_node_that_lost_its_memory_gets_it_back_from_its_partner(slurm_cluster):
    cluster = slurm_cluster
    variables = {
        **environment(),
        "HOLDFAST_RUN_ID": RUN_ID,
        "HOLDFAST_RANKS_PER_NODE": "1",
        "HOLDFAST_CHECKPOINT": json.dumps({"namespace": NAMESPACE}),
        "HOLDFAST_RAM_DIR": "/dev/shm/holdfast-agents",
        "PYTHONPATH": f"{HERE.parents[1]}:{HERE}",
    }
    everywhere = "srun --overlap --mpi=none -N3 -n3 --ntasks-per-node=1"
    worker = shlex.join([sys.executable, str(HERE / "slurm_worker.py")])
    script = f"""
export HOLDFAST_NODES=$(scontrol show hostnames $SLURM_JOB_NODELIST | tac | paste -sd,)  # not MPI's order
{everywhere} mkdir -m 700 $HOLDFAST_RAM_DIR
for attempt in 0 1; do
    export HOLDFAST_ATTEMPT=$attempt
    srun --mpi=pmix --overlap --no-kill -N3 -n3 --ntasks-per-node=1 {shlex.join(command())} &
    {everywhere} {worker} work $attempt || exit 1
    {everywhere} {worker} shutdown $attempt || exit 3
    wait $! || exit 2
    srun --overlap --mpi=none -N1 -n1 -w ${{HOLDFAST_NODES%%,*}} bash -c 'rm $HOLDFAST_RAM_DIR/*-*-*'
done
{everywhere} rm -r $HOLDFAST_RAM_DIR
"""
    said = run_job(cluster, script, variables, nodes=3, timeout_s=150)
    for node in cluster.nodes[:3]:
        assert f"{node} attempt 0 step 0 of 0 ranks from none" in said
        assert f"{node} attempt 1 step 10 of 3 ranks from memory" in said
