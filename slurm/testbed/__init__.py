"""A real Slurm of several nodes on this one machine, for tests, demonstrations and CI.

plan.py        what a cluster consists of; the record from which it can always be removed
machine.py     the first process of each machine: mounts, address, daemons
daemons.py     munge, slurmctld, slurmd and their configuration
namespaces.py  machines started, found, killed and connected
cluster.py     TestCluster: up, down, and nodes that are lost and come back

with_root: cluster = TestCluster.up("ci", nodes=4); cluster.run_as_user(["srun", "-N4", "hostname"]); cluster.down()
"""

from slurm.testbed.cluster import TestCluster
from slurm.testbed.plan import TestbedError

__all__ = ["TestCluster", "TestbedError"]
