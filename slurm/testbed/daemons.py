"""The daemons on the testbed's machines (munged, slurmctld, slurmd), and their configuration files."""

from __future__ import annotations

import os
import re
import socket
import stat
from pathlib import Path

from slurm.client import Slurm
from slurm.command import CommandRunner
from slurm.testbed.hooks import install_hooks
from slurm.testbed.plan import CONTROLLER, ClusterPlan, TestbedError

PROGRAMS = ("slurmctld", "slurmd", "scontrol", "srun", "sbatch", "munged", "ip", "unshare", "nsenter", "setpriv")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NODE_CPUS = 8
NODE_MEMORY_MB = 64000

# config_overrides lets slurm.conf give every node more CPUs and memory than the host has: the tests' processes are
# small. cred_expire also sets how long a requeued job waits (default 120 s).
SLURM_CONF = """\
ClusterName={name}
SlurmctldHost=ctl({controller})
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={socket},cred_expire={requeue_wait_s}
StateSaveLocation={data_dir}/machines/ctl/spool
SlurmdSpoolDir={data_dir}/machines/%n/spool
SlurmctldPidFile=/tmp/slurmctld.pid
SlurmdPidFile=/tmp/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault={mpi}
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
SlurmdTimeout=30
KillWait=30
MinJobAge=3600
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,nohold_on_prolog_fail
TreeWidth=64
MailProg=/bin/true
PropagateResourceLimits=NONE
{nodes}
PartitionName=train Nodes=ALL Default=YES PriorityTier=5 PreemptMode=REQUEUE GraceTime=10
PartitionName=base Nodes=ALL PriorityTier=5 PreemptMode=OFF
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF
PartitionName=boost Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
"""
REQUEUE_WAIT_S = 5
GPU_TYPE = "a100"


def write_configuration(plan: ClusterPlan, run: CommandRunner) -> None:
    """Write slurm.conf, cgroup.conf, the hosts file and the munge key into the cluster's run directory."""
    gres = f"Gres=gpu:{GPU_TYPE}:{plan.gpus} " if plan.gpus else ""
    nodes = (
        f"NodeName={node} NodeAddr={plan.address(node)} CPUs={NODE_CPUS} RealMemory={NODE_MEMORY_MB} "
        f"{gres}State=UNKNOWN"
        for node in plan.nodes
    )
    text = SLURM_CONF.format(
        name=plan.name,
        controller=plan.address(CONTROLLER),
        socket=plan.munge_socket,
        requeue_wait_s=REQUEUE_WAIT_S,
        data_dir=plan.data_dir,
        nodes="\n".join(nodes),
        mpi="none",
    ) + "".join(f"{line}\n" for line in [*_topology(plan), *_gpus(plan), *install_hooks(plan)])
    plan.slurm_conf.write_text(text)
    # Debian's Slurm 26.05 has no PMIx. srun can say so only with a slurm.conf.
    if "pmix" in Slurm(run=run, env=os.environ | {"SLURM_CONF": str(plan.slurm_conf)}).mpi_types():
        plan.slurm_conf.write_text(text.replace("MpiDefault=none", "MpiDefault=pmix"))
    plan.slurm_conf.with_name("cgroup.conf").write_text(f"CgroupPlugin={_cgroup_plugin(slurm_version(run))}\n")
    addresses = [(plan.address(machine), machine) for machine in plan.machines]
    hosts = [("127.0.0.1", "localhost"), *addresses, (plan.host_address, socket.gethostname())]
    plan.hosts_file.write_text("".join(f"{address} {name}\n" for address, name in hosts))
    _write_secret(plan.munge_key, os.urandom(1024))


def _topology(plan: ClusterPlan) -> list[str]:
    """Writes topology.conf: leaf switches s1, s2, ... below one top switch. They are dealt to the nodes in turn.

    The last node is on s1, so the order of the switches is not that of the nodes' names. Slurm 26.05 gives the tasks of
    a step the order of switches, unless srun has --distribution=cyclic.

    Returns:
        The lines for slurm.conf.
    """
    if not plan.switches:
        return []
    leaves = [plan.nodes[::-1][start :: plan.switches] for start in range(plan.switches)]
    lines = [f"SwitchName=s{number} Nodes={','.join(nodes)}\n" for number, nodes in enumerate(leaves, 1)]
    lines.append(f"SwitchName=top Switches={','.join(f's{number}' for number in range(1, len(leaves) + 1))}\n")
    plan.slurm_conf.with_name("topology.conf").write_text("".join(lines))
    return ["TopologyPlugin=topology/tree"]


def _gpus(plan: ClusterPlan) -> list[str]:
    """Makes the nodes' dummy GPU devices and writes gres.conf.

    Slurm accepts only device files as GPUs. So each is a copy of /dev/null; Slurm numbers them in the order of names.

    Returns:
        The lines for slurm.conf.
    """
    if not plan.gpus:
        return []
    plan.gpu_dir.mkdir()
    for index in range(plan.gpus):
        os.mknod(plan.gpu_dir / f"gpu{index}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    devices = plan.gpu_dir / f"gpu[0-{plan.gpus - 1}]"
    plan.slurm_conf.with_name("gres.conf").write_text(
        f"NodeName={','.join(plan.nodes)} Name=gpu Type={GPU_TYPE} File={devices}\n"
    )
    return ["GresTypes=gpu"]


def slurm_version(run: CommandRunner) -> tuple[int, int]:
    """Release of the installed Slurm, for example (22, 5).

    Raises:
        TestbedError: `slurmd -V` prints no version.
    """
    stdout = run(["slurmd", "-V"]).stdout
    found = re.search(r"\b(\d+)\.(\d+)\.", stdout)
    if found is None:
        raise TestbedError(f"slurmd -V: got {stdout.strip()!r}, expected a version such as 'slurm 22.05.8'")
    return int(found[1]), int(found[2])


def munged(plan: ClusterPlan, machine: str) -> list[str]:
    """The command of a machine's munged. It moves to the background once its socket accepts requests."""
    own = plan.machine_dir(machine) / "munge"
    return [
        "munged",
        f"--key-file={plan.munge_key}",
        f"--socket={plan.munge_socket}",
        "--pid-file=/tmp/munged.pid",
        f"--seed-file={own / 'seed'}",
        f"--log-file={own / 'log'}",
    ]


def slurm_daemon(plan: ClusterPlan, machine: str) -> list[str]:
    """The command of a machine's Slurm daemon, which stays in the foreground."""
    return ["slurmctld", "-D"] if machine == CONTROLLER else ["slurmd", "-D", "-N", machine]


def daemon_environment(plan: ClusterPlan) -> dict[str, str]:
    """The environment of a machine's daemons."""
    return {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "SLURM_CONF": str(plan.slurm_conf)}


def _cgroup_plugin(version: tuple[int, int]) -> str:
    """The value of CgroupPlugin. The testbed uses no cgroups.

    slurmd before 24.05 loads a cgroup plugin even so; the plugin for cgroup v1 has the fewest requirements.
    """
    return "disabled" if version >= (24, 5) else "cgroup/v1"


def _write_secret(path: Path, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with open(file, "wb") as stream:
        stream.write(data)
