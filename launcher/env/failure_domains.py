"""Failure domains: the leaf switch of each node. The supervisor passes it to the runners, and both pass it to ckpt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from ckpt import CheckpointConfig
from holdfast.base.environment import Variable
from slurm import Topology
from slurm.hostlist import compress, expand


def switches_of(topology: Topology, nodes: Iterable[str]) -> dict[str, str]:
    """Node -> leaf switch, for the nodes whose switch Slurm knows."""
    return {node: leaf for node in nodes if (leaf := topology.leaf(node))}


def to_environment(switches: Mapping[str, str]) -> dict[str, str]:
    """The runners' variable: JSON, switch -> hostlist; no variable without switches."""
    below: dict[str, list[str]] = {}
    for node, switch in switches.items():
        below.setdefault(switch, []).append(node)
    return (
        {Variable.SWITCHES: json.dumps({switch: compress(nodes) for switch, nodes in below.items()})} if below else {}
    )


def from_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Node -> leaf switch, from the runners' variable."""
    below: dict[str, str] = json.loads(env.get(Variable.SWITCHES, "{}"))
    return {node: switch for switch, hostlist in below.items() for node in expand(hostlist)}


def for_ckpt(checkpoint: CheckpointConfig | None, nodes: Sequence[str], switches: Mapping[str, str]) -> dict[str, str]:
    """ckpt's variable, if the job wants sets across switches and the switch of every node is known."""
    if not wants_switches(checkpoint) or not all(node in switches for node in nodes):
        return {}
    return {Variable.DOMAINS: ",".join(switches[node] for node in nodes)}


def wants_switches(checkpoint: CheckpointConfig | None) -> bool:
    """Whether the job asks for redundancy that survives the loss of a switch."""
    return checkpoint is not None and checkpoint.redundancy.failure_domain == "switch"
