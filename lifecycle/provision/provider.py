"""Reads a node's settings from files of its provider: two of SageMaker HyperPod, or one of AWS ParallelCluster."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Any

from lifecycle.errors import NodeUsageError
from lifecycle.hyperpod import read_cluster, read_object, text_of

_ROLES = {"HeadNode": "controller", "ComputeFleet": "compute", "LoginNode": "login"}  # by ParallelCluster's names


def hyperpod(resource_config: Path, parameters: Path | None, addresses: Collection[str]) -> dict[str, Any]:
    """Read HyperPod's files as keys of `Site`: the node's role, instance type, Lustre file system and slurmctld.

    If HyperPod's API configures a cluster's Slurm, resource_config.json has the roles and the controllers, and HyperPod
    mounts Lustre. Older clusters have all that in provisioning_parameters.json. If a cluster has both,
    resource_config.json decides, and the other file only names a Lustre file system.

    Args:
        resource_config: resource_config.json.
        parameters: provisioning_parameters.json: `controller_group, login_group, fsx_dns_name, fsx_mountname`; None if
            the cluster has none.
        addresses: this node's own IP addresses, by which its instance is found in resource_config.json.

    Raises:
        UsageError: a file is missing or malformed, or no instance has one of the addresses.
    """
    cluster = read_cluster(resource_config)
    mine = cluster.instance_at(addresses)
    wanted = read_object(parameters) if parameters else {}
    # HyperPod's own service formats the instance store as one file system and mounts it there.
    site: dict[str, Any] = {"nvme": {"mount": "/opt/dlami/nvme"}}
    if cluster.has_slurm_config:
        site["role"], controllers = cluster.role_of(mine), cluster.controllers
    elif parameters:
        groups = {text_of(wanted, "controller_group", parameters): "controller", wanted.get("login_group"): "login"}
        site["role"] = groups.get(mine.group, "compute")
        controllers = [
            one.address for one in cluster.instances if groups.get(one.group) == "controller" and one.address
        ]
        controllers = controllers if wanted.get("workload_manager") == "slurm" else []
    else:
        raise NodeUsageError(
            f"{resource_config}: got no SlurmConfig and no provisioning_parameters.json, expected one of them: "
            "configure Slurm by HyperPod's API (SlurmConfig of the instance groups), or copy that file beside "
            "on_create.sh"
        )
    if mine.instance_type:
        site["instance"] = mine.instance_type.removeprefix("ml.")
    fsx = {key: wanted.get(f"fsx_{key}") for key in ("dns_name", "mountname")}
    if parameters and any(fsx.values()):
        for key in fsx:
            text_of(wanted, f"fsx_{key}", parameters)
        site["fsx"] = {"dns": fsx["dns_name"], "mountname": fsx["mountname"]}
    if site["role"] != "controller" and controllers:
        site["slurm"] = {"conf_server": ",".join(controllers)}
    return site


def parallelcluster(facts: Path) -> dict[str, Any]:
    """Read ParallelCluster's file as keys of `Site`: the node's role, and where its instance store is mounted.

    `slurm.start` is false, because ParallelCluster starts slurmd itself, with the node's name, after OnNodeConfigured.

    Args:
        facts: /etc/parallelcluster/cfnconfig, shell assignments such as `cfn_node_type=ComputeFleet`.

    Raises:
        UsageError: the file cannot be read, or its cfn_node_type is not known.
    """
    try:
        lines = facts.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise NodeUsageError(f"{facts}: cannot be read ({error})") from None
    variables = {key: _unquoted(value) for key, _, value in (line.partition("=") for line in lines)}
    kind = variables.get("cfn_node_type", "")
    if kind not in _ROLES:
        raise NodeUsageError(f"{facts}: cfn_node_type: got {kind!r}, expected {', '.join(_ROLES)}")
    site: dict[str, Any] = {"role": _ROLES[kind], "slurm": {"start": False}}
    if variables.get("cfn_ephemeral_dir"):
        site["nvme"] = {"mount": variables["cfn_ephemeral_dir"]}
    return site


def _unquoted(value: str) -> str:
    """A shell word without its quotes; "" if the value is not exactly one word."""
    try:
        words = shlex.split(value)
    except ValueError:
        return ""
    return words[0] if len(words) == 1 else ""
