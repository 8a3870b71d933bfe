"""Failure domains on their way from Slurm's topology to the workers and agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckpt.config import Place
from launcher.env import failure_domains
from launcher.job.jobfile import JobSpec
from launcher.runner.variables import attempt_environment
from slurm import Topology

TOPOLOGY = Topology.parse(
    "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-2]\nSwitchName=s2 Level=0 LinkSpeed=1 Nodes=n[3-4]\n"
)
NODES = ["n3", "n1", "n4"]


def job(failure_domain: str) -> JobSpec:
    checkpoint = {"namespace": "x", "redundancy": {"scheme": "xor", "failure_domain": failure_domain}}
    found: dict[str, Any] = {"name": "x", "script": __file__, "nodes": 3, "checkpoint": checkpoint}
    return JobSpec.from_mapping(found, Path("/"))


@pytest.mark.parametrize(
    ("failure_domain", "topology", "expected"),
    [("switch", TOPOLOGY, ("s2", "s1", "s2")), ("node", TOPOLOGY, ()), ("switch", Topology(), ())],
)
def test_ckpt_learns_each_nodes_switch_where_the_job_asks_for_it(
    failure_domain: str, topology: Topology, expected: tuple[str, ...], tmp_path: Path
) -> None:
    told = failure_domains.to_environment(failure_domains.switches_of(topology, NODES))
    switches = failure_domains.from_environment(told)
    env = attempt_environment(job(failure_domain), "run", tmp_path, 0, NODES, switches)
    place = Place.from_env(env | {"HOLDFAST_NODE": "n1", "HOLDFAST_RAM_DIR": str(tmp_path)})
    assert place.domains == expected


def test_one_node_without_a_switch_leaves_the_domains_out() -> None:
    checkpoint = job("switch").checkpoint
    assert failure_domains.for_ckpt(checkpoint, [*NODES, "n9"], failure_domains.switches_of(TOPOLOGY, NODES)) == {}
