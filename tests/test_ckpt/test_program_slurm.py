"""An MPI program on several nodes of a real Slurm, started by plain srun, where torch is not installed."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from slurm_job import run_job
from test_heat import HEAT
from test_without_torch import BLOCKER
from trainer_kit import solo_namespace
from waiting import until

from ckpt.agent.process.launch import environment, srun_world
from slurm import Slurm
from slurm.testbed import TestCluster

ROOT = Path(__file__).resolve().parents[2]
# The second run has its ranks on other nodes than the first: what a node holds is found by whose it is.
SCRIPT = """
heat() {
    srun --mpi=pmix --overlap -N3 -n6 --ntasks-per-node=2 --overcommit -w $1 $PYTHON $HEAT --redundancy xor \\
        --folder $HOME/heat-mpi --steps $2 || exit 1
}
on() { srun --overlap --mpi=none -N1 -n1 -w $1 bash -c "$2" || exit 2; }
memory=/dev/shm/holdfast-$UID/slurm-$SLURM_CLUSTER_NAME-$SLURM_JOB_ID
nodes=($(scontrol show hostnames $SLURM_JOB_NODELIST))
heat ${nodes[0]},${nodes[1]},${nodes[2]} 50
on ${nodes[1]} "rm -r $memory"
heat ${nodes[0]},${nodes[2]},${nodes[3]} 60
for node in ${nodes[0]} ${nodes[2]} ${nodes[3]}; do
    on $node "timeout 20 flock $memory/mpi-*/agent.lock rm -r $memory"
done
"""

# The second process leaves MPI_Init a second late. Each prints when it began to wait for the others, and when it ended.
LATE = """
import os, time
from ckpt.agent.rpc.transport import await_all_initialised, load_mpi
mpi = load_mpi()
mpi.Init()
if os.environ["SLURM_PROCID"] == "1":
    time.sleep(1)
began = time.time()
await_all_initialised()
print("waited", began, time.time(), flush=True)
mpi.Finalize()  # without it Slurm's PMIx ends the others
"""


@pytest.mark.slurm
@pytest.mark.pmix
def test_no_agent_sends_before_all_have_left_mpi_init(slurm_cluster: TestCluster) -> None:
    """Open MPI ends a process that is late with SIGSEGV otherwise."""
    (slurm_cluster.home / "late.py").write_text(LATE)
    variables = {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "LATE": str(slurm_cluster.home / "late.py")}
    srun = "srun --mpi=pmix -N3 -n3 --overcommit $PYTHON $LATE"
    said = run_job(slurm_cluster, srun, variables, nodes=3, timeout_s=60)
    waits = [line.split()[1:] for line in said.splitlines() if line.startswith("waited")]
    assert len(waits) == 3, said
    assert max(float(began) for began, _ in waits) < min(float(ended) for _, ended in waits)


TOGETHER = """
import os, time
from pathlib import Path
from ckpt.agent.rpc.transport import await_all_initialised, load_mpi
mpi, here = load_mpi(), Path(__file__).parent
(here / ("ready-" + os.environ["SLURM_NODEID"])).touch()
while not (here / "go").exists():
    time.sleep(0.01)
mpi.Init()
await_all_initialised()
print("together", flush=True)
mpi.Finalize()  # without it Slurm's PMIx ends the other
"""


@pytest.mark.slurm
@pytest.mark.pmix
def test_two_nodes_that_connect_at_the_same_moment_do_not_wait_for_ever(slurm_cluster: TestCluster) -> None:
    """Nor without the job's first node: Slurm's PMIx must number the nodes by the step alone.

    The first message of each node goes through the other's slurmd, which hangs until both are there.
    """
    home, pair = slurm_cluster.home / "together", slurm_cluster.nodes[1:3]
    port = Slurm(env=slurm_cluster.env).slurmd_port()
    slurm_cluster.run_as_user(["mkdir", str(home)])
    (home / "together.py").write_text(TOGETHER)

    def is_addressed(node: str) -> bool:
        """Whether its slurmd has a message that it has not read."""
        table = slurm_cluster.run_on_node(node, ["cat", "/proc/net/tcp"]).stdout
        sockets = [line.split() for line in table.splitlines()[1:]]
        return any(
            local.endswith(f":{port:04X}") and int(queues.partition(":")[2], 16)
            for _, local, _, _, queues, *_ in sockets
        )

    step = [*srun_world("$SLURM_JOB_ID", pair), sys.executable, str(home / "together.py")]
    script = f"""
[ "$(scontrol show hostnames $SLURM_JOB_NODELIST | tail -2 | xargs)" = "{" ".join(pair)}" ] || exit 2
timeout --kill-after=1 20 {" ".join(step)}
"""
    variables = environment() | {"PYTHONPATH": str(ROOT)}
    with ThreadPoolExecutor() as pool:
        job = pool.submit(run_job, slurm_cluster, script, variables, nodes=3, timeout_s=90)
        until(lambda: job.done() or len([*home.glob("ready-*")]) == 2)
        for node in pair:
            slurm_cluster.freeze_daemon(node)
        try:
            (home / "go").touch()
            until(lambda: job.done() or all(map(is_addressed, pair)))
        finally:
            for node in pair:
                slurm_cluster.thaw_daemon(node)
        assert job.result().splitlines().count("together") == 2


@pytest.mark.slurm
@pytest.mark.pmix
def test_over_several_nodes_it_goes_on_from_the_memory_of_the_others_with_the_same_heat(
    slurm_cluster: TestCluster, tmp_path: Path
) -> None:
    home = slurm_cluster.home
    (home / "sitecustomize.py").write_text(BLOCKER)
    variables = {
        "PYTHON": sys.executable, "HEAT": str(HEAT), "PYTHONPATH": f"{home}:{ROOT}", "HOME": str(home),
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }  # fmt: skip
    subprocess.run(["rm", "-rf", home / "heat-mpi"], check=True)
    said = run_job(slurm_cluster, SCRIPT, variables, nodes=4, timeout_s=150)
    assert "started at step 0, done at step 50" in said
    assert (
        re.search(r"loaded step 50 of namespace .* from memory", said) and "started at step 50, done at step 60" in said
    ), said

    with solo_namespace() as namespace:
        alone = [sys.executable, HEAT, "--folder", tmp_path, "--steps", "60", "--namespace", namespace]
        whole = subprocess.run(alone, check=True, capture_output=True, text=True, timeout=60).stdout
    assert said.split("done at step 60, heat ")[1].splitlines()[0] == whole.split("heat ")[1].strip()
