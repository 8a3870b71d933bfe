"""How a launcher starts the agents of an attempt: one process per node, all in one MPI world. Standard library only."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ckpt.agent.process.shim import SOCKET

# For programs of ours. -P: a module in the working directory, a user's ckpt.py, is not taken for one of Holdfast's.
PYTHON = (sys.executable, *(("-P",) if sys.version_info >= (3, 11) else ()))

UNTIL_UNUSED = "--until-unused"
JOBS = "HOLDFAST_JOBS"
# In the memory directory, one for each agent: it is found without a look at every process of the node.
PID_FILE = "agent-{pid}.pid"
_SHIM = Path(__file__).with_name("shim.py")
# Room in /proc/PID/environ of what is forked from a template: it has no more than the template's own took.
RESERVE = {"HOLDFAST_RESERVE": 4096 * "-"}

# For the srun of agents. Where one dies before MPI knows of it the others would wait for it: srun sends them a SIGTERM,
# after which they soon leave. They see none of the job's GPUs.
ONE_WORLD = ("--mpi=pmix", "--kill-on-bad-exit=1", "--gres=none")

# What sbatch says to srun of the job's GPUs. Without a word a step has all that the job has on each node, whichever way
# they were asked for; with these a step that wants none fails (seen on 22.05).
_OF_THE_JOBS_GPUS = (
    "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND",
    "SLURM_GPU_FREQ", "SLURM_CPUS_PER_GPU", "SLURM_MEM_PER_GPU", "SLURM_NTASKS_PER_GPU", "SLURM_TRES_PER_TASK",
    "SLURM_JOB_GPUS",  # the batch host's, wrong elsewhere
)  # fmt: skip

# What Slurm, PMIx and Open MPI have told the process that we run in: said again to srun or to an agent's MPI, it would
# make them part of that process's step and world. Settings (*_MCA_*, Slurm's configuration file) are the site's and
# stay.
_OF_OUR_STEP = ("SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMI2_", "PMIX_", "PRTE_", "OMPI_", "HYDI_", "HYDRA_", "MPIEXEC_")
_SETTINGS = ("SLURM_CONF", "OMPI_MCA_", "PMIX_MCA_", "PRTE_MCA_")
_OF_MPIRUN = ("OMPI_MCA_ess", "OMPI_MCA_orte", "PRTE_MCA_ess", "PRTE_MCA_prte")


def command(*, until_unused: bool = False, from_template: bool = False) -> list[str]:
    """The agent's command line, the same on every node. HOLDFAST_* in its environment say the rest.

    Args:
        until_unused: nobody will tell the agents to end: they do so together when no process is connected any more.
        from_template: where the node has a template, agents are forked from it (template.py).
    """
    before = f'true 2>/dev/null >"$HOLDFAST_RAM_DIR/{PID_FILE.format(pid="$$")}"'
    if from_template:
        shim = " ".join(map(shlex.quote, (sys.executable, "-I", "-S", str(_SHIM))))
        before += f'; test -S "$HOLDFAST_RAM_DIR/{SOCKET}" && test -r {shlex.quote(str(_SHIM))} && set -- {shim} "$@"'
    # A preemption sends SIGTERM to every process of the job: Python takes it only once it runs (ckpt.agent.lifetime).
    argv = [*PYTHON, "-m", "ckpt.agent", *([UNTIL_UNUSED] if until_unused else [])]
    return unmoved(argv, f'trap "" TERM; {before}')


def template(runner_pid: int) -> list[str]:
    """The command line of what a node's agents are forked from, a child of the node's runner. RESERVE goes into its
    environment."""
    return unmoved([*PYTHON, "-m", "ckpt.agent.process.template", str(runner_pid)], 'trap "" TERM INT HUP')


def unmoved(argv: Sequence[str], before: str = ":") -> list[str]:
    """A program that no warning of the job's time limit ends before it has said that it ignores them.

    Without a B:, `--signal=USR1@N` reaches every process of the job's steps, up to a minute before its time.

    Args:
        argv: the program.
        before: a shell command to run first, in the process that becomes the program.
    """
    return ["sh", "-c", f'trap "" USR1 USR2; {before}; exec "$@"', "sh", *argv]


def srun(job_id: int | str, nodes: Sequence[str], *options: str) -> list[str]:
    """A step of one task on each of these nodes of a job, beside whatever runs there, that outlives the loss of one."""
    count = len(nodes)
    return [
        *("env", *(f"--unset={name}" for name in _OF_THE_JOBS_GPUS)),
        *("srun", f"--jobid={job_id}", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"),
        *(f"--nodelist={','.join(nodes)}", "--no-kill", "--kill-on-bad-exit=0", "--overlap", "--export=ALL"),
        *("--cpu-bind=none", "--wait=0", "--quiet", *options),
    ]


def mpirun_over_srun(
    mpirun: str, jobs: Mapping[str, str], environments: Mapping[str, Mapping[str, str]], session_dir: str
) -> tuple[list[str], dict[str, str]]:
    """Starts one process on each of these nodes, in one MPI world: where srun has no PMIx, or the nodes are of several
    jobs.

    mpirun starts a daemon on each node by an srun of its own. When a process or a node is lost, mpirun ends the others,
    as Slurm's PMIx does.

    Args:
        mpirun: Open MPI's.
        jobs: the Slurm job that each node belongs to, in node-rank order.
        environments: variables of their own for the processes in each job; HOLDFAST_RAM_DIR among them, where mpirun's
            daemons keep their own files too. On this node mpirun's own environment counts.
        session_dir: for mpirun's own files on this node.

    Returns:
        The command line, to be followed by the program, and what to add to its environment.
    """
    options = {
        "plm": "ssh", "ras": "^slurm", "plm_ssh_agent": " ".join([*PYTHON, "-m", "ckpt.agent.process.daemon"]),
        "plm_ssh_no_tree_spawn": "1", "prte_tmpdir_base": session_dir,
    }  # fmt: skip
    hosts = ",".join(f"{node}:1" for node in jobs)
    argv = [mpirun, *(word for name, value in options.items() for word in ("--prtemca", name, value))]
    argv += ["--host", hosts, "--map-by", "ppr:1:node", "--bind-to", "none"]
    own = {job: dict(environment) for job, environment in environments.items()}
    return argv, {JOBS: json.dumps({"nodes": dict(jobs), "environments": own, "session_dir": session_dir})}


def outside_our_step(env: Mapping[str, str]) -> dict[str, str]:
    """An environment for agents that are started from within a step or an MPI program, and shall be neither's part."""
    return {
        name: value
        for name, value in env.items()
        if not name.startswith(_OF_OUR_STEP) or (name.startswith(_SETTINGS) and not name.startswith(_OF_MPIRUN))
    }


def mpirun_options() -> list[str]:
    """For Open MPI's mpirun on one machine: when an agent dies the others stay, and go on serving their workers.

    Not `--with-ft ulfm`: it also has mpirun notify the others of the death, and Open MPI 5.0 takes every process named
    in that notice for dead, the receiver's own name included: then it aborts ("I have been reported dead").
    """
    return ["--runtime-options", "recoverable", "--oversubscribe", "--bind-to", "none"]


def environment(*, loopback: bool = False) -> dict[str, str]:
    """What to export to mpirun or srun, besides HOLDFAST_*.

    Args:
        loopback: all agents run on this machine, which may have no other network.
    """
    # Slurm's PMIx knows a tree and a ring for its fences, and by default takes now one, now the other. Through the tree
    # a process may go on before all have come (22.05). Open MPI lists MPI_COMM_WORLD as ready before a fence and gives
    # it its queues after it (ompi_mpi_init of 5.0.11): a first message that comes in between kills the agent. Seen in
    # 1 start of 10 to 30 on a busy machine with the tree and with the default, with the ring never.
    settings = {"SLURM_PMIX_FENCE": "ring"}
    if loopback:
        # No shared memory between agents: its backing files would outlive one that is killed. Elsewhere MPI chooses the
        # fastest fabric it finds: fault tolerance would forbid it some, and Slurm's PMIx ends the step in any case.
        settings |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo"}
        # A lost agent is an error in the others, not their end. They see it by their connections; heartbeats (the
        # detector) would make a slow agent abort. Without "put": a survivor that is receiving a long message from an
        # agent that dies spins in ob1 for ever.
        settings |= {"OMPI_MCA_mpi_ft_enable": "1", "OMPI_MCA_mpi_ft_detector": "0"}
        settings |= {"OMPI_MCA_btl_tcp_flags": "send,inplace"}
    if os.getuid() == 0:
        settings |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return settings
