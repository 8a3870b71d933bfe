"""A real Slurm of several nodes on this one machine, for tests, demonstrations and CI.

plan.py        the description of one cluster, on disk: its names, addresses and paths
daemons.py     the commands and configuration of munge, slurmctld and slurmd
namespaces.py  starts, finds, kills and connects machines
machine.py     the first process of each machine: sets up mounts and network, starts the daemons
hooks.py       Holdfast's Slurm hooks on the machines
view.py        makes Holdfast and its Python readable for the user of the jobs
host.py        the host: its requirements, the clusters on it, the lock for changes
cluster.py     TestCluster: up, down, and failures of nodes and daemons

As root: `cluster = TestCluster.up("ci", nodes=4)`, `cluster.run_as_user(["srun", "hostname"])`, `cluster.down()`.
"""

from slurm.testbed.cluster import TestCluster
from slurm.testbed.plan import TestbedError

__all__ = ["TestCluster", "TestbedError"]
