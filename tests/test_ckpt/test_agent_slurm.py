"""The agents' MPI world as Slurm starts it: one node each, over the network between them."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_kit import NAMESPACE, RUN_ID
from s3_kit import BUCKET, KEY, SECRET
from slurm_job import run_job

from ckpt.agent.process.launch import command, environment
from slurm.testbed import TestCluster

HERE = Path(__file__).parent
EVERYWHERE = "srun --overlap --mpi=none -N3 -n3 --ntasks-per-node=1 -w $HOLDFAST_NODES"
WORKER = shlex.join([sys.executable, str(HERE / "slurm_worker.py")])
ATTEMPT = f"""
attempt() {{
    export HOLDFAST_ATTEMPT=$1
    srun --mpi=pmix --overlap --no-kill -N3 -n3 --ntasks-per-node=1 -w $HOLDFAST_NODES {shlex.join(command())} &
    {EVERYWHERE} {WORKER} work $1 || exit 1
    {EVERYWHERE} {WORKER} shutdown $1 || exit 3
    wait $! || exit 2
}}
on() {{ srun --overlap --mpi=none -N1 -n1 -w $1 bash -c "$2" || exit 4; }}
nodes=($(scontrol show hostnames $SLURM_JOB_NODELIST))
export HOLDFAST_NODES=${{nodes[2]}},${{nodes[1]}},${{nodes[0]}}  # not MPI's order
{EVERYWHERE} mkdir -m 700 $HOLDFAST_RAM_DIR
trap '{EVERYWHERE} rm -r $HOLDFAST_RAM_DIR' EXIT
"""
WIPE = "rm -f $HOLDFAST_RAM_DIR/*-*-* $HOLDFAST_RAM_DIR/parity-*"


def variables(**section: Any) -> dict[str, str]:
    return {
        **environment(),
        "HOLDFAST_RUN_ID": RUN_ID,
        "HOLDFAST_RANKS_PER_NODE": "1",
        "HOLDFAST_CHECKPOINT": json.dumps({"namespace": NAMESPACE, **section}),
        "HOLDFAST_RAM_DIR": "/dev/shm/holdfast-agents",
        "PYTHONPATH": f"{HERE.parents[1]}:{HERE}",
    }


@pytest.mark.slurm
@pytest.mark.pmix
def test_a_node_that_lost_its_memory_gets_it_back_from_its_partner(slurm_cluster: TestCluster) -> None:
    script = f"""{ATTEMPT}
attempt 0
on ${{nodes[2]}} '{WIPE}'
attempt 1
"""
    said = run_job(slurm_cluster, script, variables(), nodes=3, timeout_s=150)
    for node in slurm_cluster.nodes[:3]:
        assert f"{node} attempt 0 step None of 0 ranks from none" in said
        assert f"{node} attempt 1 step 10 of 3 ranks from memory" in said


@pytest.mark.slurm
@pytest.mark.pmix
@pytest.mark.faults
def test_a_lost_node_comes_back_by_parity_two_memories_from_their_disks_and_two_lost_nodes_from_s3(
    slurm_cluster: TestCluster,
) -> None:
    """The S3 server runs on the fourth node."""
    nvme, bucket = slurm_cluster.nvme / "parity-test", f"/dev/shm/s3/{BUCKET}"
    rclone = Path(sys.executable).with_name("rclone")
    serve = (
        f"{rclone} serve s3 --addr :9000 --auth-key {KEY},{SECRET} --vfs-cache-mode off --config /dev/null /dev/shm/s3"
    )
    script = f"""{ATTEMPT}
export S3_HOST=${{nodes[3]}}
on $S3_HOST 'mkdir -p {bucket}'
srun --overlap --mpi=none -N1 -n1 -w $S3_HOST {serve} &
server=$!
trap 'kill $server; wait; {EVERYWHERE} rm -rf $HOLDFAST_RAM_DIR {nvme}; on $S3_HOST "rm -r /dev/shm/s3"' EXIT
on ${{nodes[0]}} 'timeout 30 bash -c "until echo > /dev/tcp/$S3_HOST/9000; do sleep 0.1; done" 2> /dev/null'
attempt 0
on ${{nodes[1]}} '{WIPE}; rm -r {nvme}'
attempt 1
for node in ${{nodes[0]}} ${{nodes[2]}}; do on $node '{WIPE}'; done
attempt 2
for node in ${{nodes[0]}} ${{nodes[1]}}; do on $node '{WIPE}; rm -rf {nvme}'; done
attempt 3
"""
    s3 = {"url": f"s3://{BUCKET}/run", "endpoint_url": f"http://{slurm_cluster.nodes[3]}:9000", "region": "us-east-1"}
    given = variables(
        redundancy={"scheme": "xor"},
        nvme={"path": str(nvme), "every_steps": 10},
        s3={**s3, "path_style": True, "every_steps": 10},
    )
    given |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_EC2_METADATA_DISABLED": "true"}
    said = run_job(slurm_cluster, script, given, nodes=4, timeout_s=240)
    for node in slurm_cluster.nodes[:3]:
        for attempt, tier in ((1, "memory"), (2, "nvme"), (3, "s3")):
            assert f"{node} attempt {attempt} step 10 of 3 ranks from {tier}" in said, said
