"""The start of an attempt's agents: one process per node, all in one MPI world. Standard library only."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ckpt.agent.process.shim import SOCKET
from holdfast.base.environment import Variable

# For Holdfast's programs. -P: a module in the working directory, such as a user's ckpt.py, must not hide Holdfast's.
PYTHON = (sys.executable, "-P")

# Slurm sends them to every process of a job's steps, before it ends the job.
SIGNALS = frozenset((signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2))
_BLOCKED = (
    "import os, signal, sys; "
    f"signal.pthread_sigmask(signal.SIG_BLOCK, {sorted(map(int, SIGNALS))}); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
UNTIL_UNUSED = "--until-unused"
# one for each agent, in the memory directory: finds agents without a look at every process of the node
PID_FILE = "agent-{pid}.pid"
_SHIM = Path(__file__).with_name("shim.py")
# reserves space in /proc/PID/environ of forked agents, which cannot be larger than the template's own
RESERVE = {Variable.RESERVE: 4096 * "-"}

# Variables with which sbatch passes the job's GPUs to srun. Without them a step has all that the job has on each node,
# however it was requested. With them a step without GPUs fails (seen on 22.05).
_OF_THE_JOBS_GPUS = (
    "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND",
    "SLURM_GPU_FREQ", "SLURM_CPUS_PER_GPU", "SLURM_MEM_PER_GPU", "SLURM_NTASKS_PER_GPU", "SLURM_TRES_PER_TASK",
    "SLURM_JOB_GPUS",  # that of the batch host, wrong elsewhere
)  # fmt: skip

# Variables that Slurm, PMIx and Open MPI have set for this process. If they were passed to srun or to an agent's MPI,
# it would become part of this process's step and world. Settings (*_MCA_*, Slurm's configuration file) belong to the
# site and are passed on.
_OF_OUR_STEP = ("SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMI2_", "PMIX_", "PRTE_", "OMPI_", "HYDI_", "HYDRA_", "MPIEXEC_")
_SETTINGS = ("SLURM_CONF", "OMPI_MCA_", "PMIX_MCA_", "PRTE_MCA_")
_OF_MPIRUN = ("OMPI_MCA_ess", "OMPI_MCA_orte", "PRTE_MCA_ess", "PRTE_MCA_prte")


def command(*, until_unused: bool = False, from_template: bool = False) -> list[str]:
    """The agent's command line, the same on every node. HOLDFAST_* variables have the rest.

    Args:
        until_unused: whether the agents end together by themselves once no process is connected.
        from_template: whether to fork agents from the node's template, if it has one (template.py).
    """
    before = f'true 2>/dev/null >"$HOLDFAST_RAM_DIR/{PID_FILE.format(pid="$$")}"'
    if from_template:
        shim = " ".join(map(shlex.quote, (sys.executable, "-I", "-S", str(_SHIM))))
        before += f'; test -S "$HOLDFAST_RAM_DIR/{SOCKET}" && test -r {shlex.quote(str(_SHIM))} && set -- {shim} "$@"'
    # A preemption sends SIGTERM to every process of the job; Python handles it only once it runs (see lifetime.py).
    argv = [*PYTHON, "-m", "ckpt.agent", *([UNTIL_UNUSED] if until_unused else [])]
    return unmoved(argv, f'trap "" TERM; {before}')


def template(runner_pid: int) -> list[str]:
    """The command line of a node's template, which is a child of the node's runner. Add RESERVE to its environment."""
    return unmoved([*PYTHON, "-m", "ckpt.agent.template", str(runner_pid)], 'trap "" TERM INT HUP')


def unmoved(argv: Sequence[str], before: str = ":") -> list[str]:
    """A program that ignores the time limit's warning signals from its start, before it can do so itself.

    Without "B:", `--signal=USR1@N` reaches every process of the job's steps, up to a minute early.

    Args:
        before: a shell command to run first, in the process that becomes the program.
    """
    return ["sh", "-c", f'trap "" USR1 USR2; {before}; exec "$@"', "sh", *argv]


def blocked(argv: Sequence[str]) -> list[str]:
    """A program that starts with SIGNALS blocked: mpirun and its daemons, which would end the world at a SIGTERM.

    mpirun is in the batch step, and its world has agents of other jobs too. mpirun and its daemons give their children
    an empty mask.
    """
    return [*PYTHON, "-c", _BLOCKED, *argv]


def srun(job_id: int | str, nodes: Sequence[str], *options: str) -> list[str]:
    """A step with one task on each of these nodes, beside the job's other steps. It survives the loss of a node.

    Its tasks have the order of the nodes in the job. Without `cyclic`, they have that of the switches since 26.05, and
    srun's "task 2 launch failed" would name another node.
    """
    count = len(nodes)
    return [
        *("env", *(f"--unset={name}" for name in _OF_THE_JOBS_GPUS)),
        *("srun", f"--jobid={job_id}", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"),
        *(f"--nodelist={','.join(nodes)}", "--no-kill", "--kill-on-bad-exit=0", "--overlap", "--export=ALL"),
        *("--cpu-bind=none", "--distribution=cyclic", "--wait=0", "--quiet", *options),
    ]


def srun_world(job_id: int | str, nodes: Sequence[str], *options: str) -> list[str]:
    """The agents' step: one MPI world, which gets none of the job's GPUs.

    If an agent dies before MPI knows of it, the others would wait for it; srun sends them a SIGTERM, after which they
    soon exit.

    Two nodes of a step may connect to each other at the same moment. Slurm's PMIx then accepts the connection if its
    own number in the step is above the other's number in the job (pmixp_dconn.h, 22.05 to 24.11). In a step without the
    job's first node that may be true of neither, and both would wait for ever. Slurm takes a node's number in the job
    from SLURM_JOB_NODELIST. Where that is not set, srun sets it to the step's nodes, so the two numbers are the same.
    """
    world = ("--mpi=pmix", "--kill-on-bad-exit=1", "--gres=none")
    return ["env", "--unset=SLURM_JOB_NODELIST", *srun(job_id, nodes, *options, *world)]


def mpirun_over_srun(
    mpirun: str, jobs: Mapping[str, str], environments: Mapping[str, Mapping[str, str]], session_dir: str
) -> tuple[list[str], dict[str, str]]:
    """Starts one process on each of these nodes, in one MPI world, if srun has no PMIx or the nodes belong to several
    jobs.

    mpirun starts a daemon on each node with an srun. When a process or a node is lost, mpirun ends the others,
    as Slurm's PMIx does.

    Args:
        jobs: the Slurm job of each node, in node-rank order.
        environments: variables for the processes of each job, including HOLDFAST_RAM_DIR, where mpirun's daemons also
            keep their files. On this node mpirun's own environment is used.
        session_dir: for mpirun's own files on this node.

    Returns:
        The command line, to which the program is appended, and the variables to add to its environment.
    """
    options = {
        "plm": "ssh", "ras": "^slurm", "plm_ssh_agent": " ".join([*PYTHON, "-m", "ckpt.agent.process.daemon"]),
        "plm_ssh_no_tree_spawn": "1", "prte_tmpdir_base": session_dir,
    }  # fmt: skip
    hosts = ",".join(f"{node}:1" for node in jobs)
    argv = [*blocked([mpirun]), *(word for name, value in options.items() for word in ("--prtemca", name, value))]
    argv += ["--host", hosts, "--map-by", "ppr:1:node", "--bind-to", "none"]
    nodes: dict[str, list[str]] = {}
    for node, job in jobs.items():
        nodes.setdefault(job, []).append(node)
    own = {job: dict(environment) for job, environment in environments.items()}
    return argv, {Variable.JOBS: json.dumps({"nodes": nodes, "environments": own, "session_dir": session_dir})}


def outside_our_step(env: Mapping[str, str]) -> dict[str, str]:
    """An environment for agents that are started from a step or an MPI program, without its step and MPI variables."""
    return {
        name: value
        for name, value in env.items()
        if not name.startswith(_OF_OUR_STEP) or (name.startswith(_SETTINGS) and not name.startswith(_OF_MPIRUN))
    }


def mpirun_options() -> list[str]:
    """Options of Open MPI's mpirun on one machine: if an agent dies, the others continue to serve their workers.

    `--with-ft ulfm` is not used. It also makes mpirun notify the others of the death. Open MPI 5.0 takes every process
    in that notice for dead, including the receiver, which then aborts ("I have been reported dead").
    """
    return ["--runtime-options", "recoverable", "--oversubscribe", "--bind-to", "none"]


def environment(*, loopback: bool = False) -> dict[str, str]:
    """The variables to export to mpirun or srun, in addition to HOLDFAST_*.

    Args:
        loopback: whether all agents run on this machine, which may have no other network.
    """
    # Slurm's PMIx has a tree and a ring for its fences, and by default alternates. With the tree a process may continue
    # before all have arrived (22.05). Open MPI reports MPI_COMM_WORLD as ready before a fence, and gives it its queues
    # after it (ompi_mpi_init of 5.0.11). A first message in between kills the agent. It was seen in 1 start of 10 to 30
    # on a busy machine with the tree and with the default, never with the ring.
    settings = {"SLURM_PMIX_FENCE": "ring"}
    if loopback:
        # No shared memory between agents, because its backing files would outlive a killed agent. Otherwise MPI chooses
        # the fastest fabric. Fault tolerance would exclude some fabrics, and Slurm's PMIx ends the step anyway.
        settings |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo"}
        # A lost agent is an error in the others, not their end. They notice it by their connections. Heartbeats (the
        # detector) would make a slow agent abort. "put" is left out: a survivor that is receiving a long message from a
        # dying agent would spin in ob1 for ever.
        settings |= {"OMPI_MCA_mpi_ft_enable": "1", "OMPI_MCA_mpi_ft_detector": "0"}
        settings |= {"OMPI_MCA_btl_tcp_flags": "send,inplace"}
    if os.getuid() == 0:
        settings |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return settings
