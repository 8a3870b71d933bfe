"""Reads a node's settings from files of its provider: two of SageMaker HyperPod, or one of AWS ParallelCluster."""

from __future__ import annotations

import ipaddress
import json
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Any

from lifecycle.errors import NodeUsageError

_ROLES = {"HeadNode": "controller", "ComputeFleet": "compute", "LoginNode": "login"}  # by ParallelCluster's names


def hyperpod(resource_config: Path, parameters: Path, addresses: Collection[str]) -> dict[str, Any]:
    """Read HyperPod's files as keys of `Site`: the node's role, instance type, Lustre file system and slurmctld.

    Args:
        resource_config: resource_config.json: `InstanceGroups[].{Name, InstanceType, Instances[].CustomerIpAddress}`.
        parameters: provisioning_parameters.json: `controller_group, login_group, fsx_dns_name, fsx_mountname`.
        addresses: this node's own IP addresses, by which its instance is found in resource_config.json.

    Raises:
        UsageError: a file is missing or malformed, or no instance has one of the addresses.
    """
    group, controllers = _group(resource_config, parameters, addresses)
    wanted = _read(parameters)
    _text(wanted, "controller_group", parameters)
    # HyperPod's own service formats the instance store as one file system and mounts it there.
    site: dict[str, Any] = {"role": "compute", "nvme": {"mount": "/opt/dlami/nvme"}}
    for role in ("controller", "login"):
        if wanted.get(f"{role}_group") == group["Name"]:
            site["role"] = role
    if group.get("InstanceType"):
        site["instance"] = _text(group, "InstanceType", resource_config).removeprefix("ml.")
    fsx = {key: wanted.get(f"fsx_{key}") for key in ("dns_name", "mountname")}
    if any(fsx.values()):
        for key in fsx:
            _text(wanted, f"fsx_{key}", parameters)
        site["fsx"] = {"dns": fsx["dns_name"], "mountname": fsx["mountname"]}
    if wanted.get("workload_manager") == "slurm" and site["role"] != "controller" and controllers:
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


def _group(resource_config: Path, parameters: Path, addresses: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """This node's instance group, and the IP addresses of the controllers."""
    groups = _read(resource_config).get("InstanceGroups")
    if not isinstance(groups, list):
        raise NodeUsageError(f"{resource_config}: InstanceGroups: got {type(groups).__name__}, expected a list")
    controller_group = _read(parameters).get("controller_group")
    mine, controllers, seen = None, [], []
    for number, group in enumerate(groups):
        where = f"{resource_config}: InstanceGroups[{number}]"
        if not isinstance(group, dict) or not isinstance(group.get("Instances"), list):
            raise NodeUsageError(f"{where}: expected an object with Name and Instances")
        _text(group, "Name", where)
        for instance in group["Instances"]:
            address = _address(instance, where)
            seen.append(address)
            if address in addresses:
                mine = group
            if group["Name"] == controller_group:
                controllers.append(address)
    if mine is None:
        raise NodeUsageError(
            f"{resource_config}: got instances {', '.join(seen) or 'none'}, expected one with an address of this node "
            f"({', '.join(sorted(addresses)) or 'it has none'}); check that this node belongs to the cluster"
        )
    return mine, controllers


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise NodeUsageError(f"{path}: no such file; expected a JSON file of HyperPod") from None
    except (OSError, ValueError, RecursionError) as error:
        raise NodeUsageError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(found, dict):
        raise NodeUsageError(f"{path}: got {type(found).__name__}, expected an object")
    return found


def _text(found: dict[str, Any], key: str, where: object) -> str:
    value = found.get(key)
    if not isinstance(value, str) or not value:
        raise NodeUsageError(f"{where}: {key}: got {value!r}, expected text that is not empty")
    return value


def _address(instance: Any, where: str) -> str:
    value = instance.get("CustomerIpAddress") if isinstance(instance, dict) else None
    try:
        return str(ipaddress.ip_address(str(value)))
    except ValueError:
        raise NodeUsageError(f"{where}: CustomerIpAddress: got {value!r}, expected an IP address") from None
