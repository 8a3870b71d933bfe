"""Talks to Slurm. Imports the standard library and holdfast.base alone.

environment.py  the variables that Slurm sets for a process inside a job
batch_script.py  writes batch scripts; the variables that override them
client.py       Slurm's commands as methods
records.py      jobs, nodes and partitions as Slurm prints them
qos.py          qualities of service
hyperpod.py     the orders in a node's reason that HyperPod carries out
limits.py       limits for which a job waits
preemption.py   which jobs Slurm preempts for others
hostlist.py     expands n[1-4] and compresses names
requeue.py      how long a requeued job waits
topology.py     which nodes are on one switch
time_limit.py   sbatch's notations of a time limit
command.py      runs programs; their failure is a SlurmError
trust.py        whether only certain users can change a path
conf.py         prints and lints the lines of slurm.conf that the hooks need
preemption_conf.py  prints and lints the lines that elastic jobs need
errors.py       the base class of all errors
hooks/          the programs that Slurm calls on every node
testbed/        a real Slurm of several nodes on this one machine
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it: see slurm/hooks/__init__.py
if TYPE_CHECKING:
    from slurm.client import Slurm
    from slurm.command import CommandError
    from slurm.environment import JobEnvironment
    from slurm.errors import SlurmError
    from slurm.hostlist import compress, expand
    from slurm.records import Job, Node, state_below
    from slurm.topology import Topology

__all__ = [
    "CommandError",
    "Job",
    "JobEnvironment",
    "Node",
    "Slurm",
    "SlurmError",
    "Topology",
    "compress",
    "expand",
    "state_below",
]

_HOMES = ("client", "command", "environment", "errors", "hostlist", "records", "topology")


def __getattr__(name: str) -> object:
    """Imports a name when it is first used. Hooks run for every job and need none of them."""
    from importlib import import_module

    if name in __all__:
        for home in _HOMES:
            if name in vars(module := import_module(f"slurm.{home}")):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
