"""Switches as Slurm prints them."""

from __future__ import annotations

import os
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from ckpt.agent.process.launch import srun
from slurm import Slurm, Topology
from slurm.testbed import TestCluster
from slurm.topology import Switch

# `scontrol show topology` of 22.05, four nodes on two switches of one rack beside a second rack
TREE = """\
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n[3-4]
SwitchName=s3 Level=0 LinkSpeed=1 Nodes=n5
SwitchName=rack1 Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=s[1-2]
SwitchName=top Level=2 LinkSpeed=1 Nodes=n[1-5] Switches=rack1,s3
"""
# of topology/block (23.11 and later)
BLOCKS = "BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\nBlockName=b2 BlockIndex=1 Nodes=n[3-4] BlockSize=2\n"


@pytest.mark.parametrize(
    ("text", "one", "other", "distance"),
    [
        (TREE, "n1", "n1", 0),
        (TREE, "n1", "n2", 1),
        (TREE, "n1", "n3", 2),
        (TREE, "n1", "n5", 3),
        (TREE, "n1", "elsewhere", 4),
        (BLOCKS, "n1", "n2", 1),
        (BLOCKS, "n1", "n3", 2),
        ("", "n1", "n2", 1),
    ],
)
def test_nodes_are_as_far_apart_as_the_switches_between_them(text: str, one: str, other: str, distance: int) -> None:
    assert Topology.parse(text).distance(one, other) == distance


@given(st.lists(st.tuples(st.integers(0, 3), st.frozensets(st.sampled_from("abcdef"))), max_size=6))
def test_the_distance_is_the_level_of_the_lowest_common_switch(levels: list[tuple[int, frozenset[str]]]) -> None:
    switches = [Switch(name=f"s{at}", level=level, nodes=nodes) for at, (level, nodes) in enumerate(levels)]
    topology = Topology(switches)
    apart = 1 + max((switch.level + 1 for switch in switches), default=0)
    for one, other in combinations("abcdef", 2):
        common = [1 + switch.level for switch in switches if {one, other} <= switch.nodes]
        assert topology.distance(one, other) == topology.distance(other, one) == min(common, default=apart)


def test_a_node_hangs_on_its_lowest_switch() -> None:
    topology = Topology.parse(TREE)
    assert [topology.leaf(node) for node in ("n2", "n4", "n5", "elsewhere")] == ["s1", "s2", "s3", ""]


@pytest.mark.slurm
def test_a_cluster_without_switches_has_none(slurm_cluster: TestCluster) -> None:
    topology = Slurm(env=os.environ | slurm_cluster.env).topology()
    assert (topology.leaf("n1"), topology.distance("n1", "n2")) == ("", 1)


@pytest.mark.slurm
@pytest.mark.faults
def test_steps_have_the_order_of_nodes_whatever_the_order_of_switches() -> None:
    """Else Slurm 26.05 gives the tasks the order of switches, and a rank's or a failed task's node would be another."""
    cluster = TestCluster.up(f"pytest-{os.getpid()}-switches", nodes=3, switches=2)
    try:
        slurm = Slurm(env=os.environ | cluster.env)
        topology = slurm.topology()
        wrap = "--wrap=sleep 300"
        submitted = cluster.run_as_user(["sbatch", "--parsable", "--nodes=3", "--output=/dev/null", wrap])
        job_id = int(submitted.stdout.split(";")[0])
        until(lambda: slurm.states([str(job_id)])[str(job_id)][0] == "RUNNING", "the job's start")
        argv = [*srun(job_id, cluster.nodes), "bash", "-c", "echo $SLURM_PROCID $SLURMD_NODENAME"]
        order = cluster.run_as_user(argv).stdout.splitlines()
    finally:
        cluster.down()
    assert [topology.leaf(node) for node in cluster.nodes] == ["s1", "s2", "s1"]
    assert (topology.distance("n1", "n2"), topology.distance("n1", "n3")) == (2, 1)
    assert sorted(order) == ["0 n1", "1 n2", "2 n3"]
