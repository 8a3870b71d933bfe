"""A real Slurm of several nodes on this one machine, for tests, demonstrations and CI.

plan.py        what a cluster consists of; the record from which it can always be removed
daemons.py     munge, slurmctld, slurmd and their configuration
namespaces.py  machines started, found, killed and connected
machine.py     the first process of each machine: mounts, address, daemons
hooks.py       this project's hooks on them; view.py: its Python, visible to the ordinary user
host.py        this machine: what it must have, what is taken, who may change that now
cluster.py     TestCluster: up, down, and nodes that are lost and come back

As root: `cluster = TestCluster.up("ci", nodes=4)`, `cluster.run_as_user(["srun", "hostname"])`, `cluster.down()`.
"""

from slurm.testbed.cluster import TestCluster
from slurm.testbed.plan import TestbedError

__all__ = ["TestCluster", "TestbedError"]
