"""What SageMaker HyperPod says about a cluster, in resource_config.json on each of its nodes.

A cluster whose Slurm is configured by HyperPod's API has a SlurmConfig: at the cluster the controllers' addresses, and
at an instance group its NodeType. Other clusters have neither.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lifecycle.errors import NodeUsageError
from slurm.hostlist import compress

RESOURCE_CONFIG = Path("/opt/ml/config/resource_config.json")
_LAYER = re.compile(r"(?:.*/)?network-node-layer-(\d+)")
_ROLES = {"Controller": "controller", "Login": "login", "Compute": "compute"}


@dataclass(frozen=True, kw_only=True)
class Instance:
    """An instance of the cluster.

    Attributes:
        group: name of its instance group.
        instance_type: such as ml.p5.48xlarge; empty if the group may have several.
        instance_id: EC2's id; empty while there is none.
        address: IP address in the customer's network; empty while the instance is being made.
        role: controller, login or compute; empty if the group has no SlurmConfig.
        layers: names of the network nodes above it, the highest first; empty if unknown.
    """

    group: str
    instance_type: str
    instance_id: str
    address: str
    role: str
    layers: tuple[str, ...]

    @property
    def node_name(self) -> str:
        """The name that HyperPod gives the node in Slurm."""
        return f"ip-{self.address.replace('.', '-')}"


@dataclass(frozen=True, kw_only=True)
class HyperPodCluster:
    """A cluster.

    Attributes:
        source: the file.
        name: the cluster's name; empty if it is missing.
        instances: all instances.
        controllers: addresses of the hosts of slurmctld, the primary first; empty without SlurmConfig.
        has_slurm_config: whether Slurm is configured by HyperPod's API.
    """

    source: Path
    name: str
    instances: tuple[Instance, ...]
    controllers: list[str]
    has_slurm_config: bool

    def instance_at(self, addresses: Collection[str]) -> Instance:
        """The instance that has one of the addresses.

        Raises:
            UsageError: there is none.
        """
        for instance in self.instances:
            if instance.address and instance.address in addresses:
                return instance
        seen = ", ".join(instance.address for instance in self.instances if instance.address)
        raise NodeUsageError(
            f"{self.source}: got instances {seen or 'none'}, expected one with an address of this node "
            f"({', '.join(sorted(addresses)) or 'it has none'}); check that this node belongs to the cluster"
        )

    def role_of(self, instance: Instance) -> str:
        """The role that SlurmConfig gives an instance.

        A group without NodeType is compute: HyperPod's login nodes also run slurmd. On a controller the address of the
        primary one is empty.
        """
        if instance.role:
            return instance.role
        return "controller" if instance.address in self.controllers or not self.controllers else "compute"

    def topology_lines(self) -> list[str]:
        """Lines of topology.conf (topology/tree): the network nodes above the instances. Empty if none are known."""
        below: dict[str, set[str]] = {}
        nodes: dict[str, list[str]] = {}
        for instance in self.instances:
            if not instance.layers or not instance.address or self.role_of(instance) == "controller":
                continue
            for upper, lower in zip(instance.layers, instance.layers[1:], strict=False):
                below.setdefault(upper, set()).add(lower)
            nodes.setdefault(instance.layers[-1], []).append(instance.node_name)
        lines = [f"SwitchName={switch} Nodes={compress(names)}" for switch, names in sorted(nodes.items())]
        return lines + [
            f"SwitchName={switch} Switches={','.join(sorted(lower))}" for switch, lower in sorted(below.items())
        ]


def read_cluster(path: Path) -> HyperPodCluster:
    """Reads resource_config.json.

    Raises:
        UsageError: it is missing or malformed.
    """
    found = read_object(path)
    groups = found.get("InstanceGroups")
    if not isinstance(groups, list):
        raise NodeUsageError(f"{path}: InstanceGroups: got {type(groups).__name__}, expected a list")
    instances = tuple(
        instance
        for number, group in enumerate(groups)
        for instance in _instances(group, f"{path}: InstanceGroups[{number}]")
    )
    config = {} if found.get("ClusterConfig") is None else found["ClusterConfig"]
    if not isinstance(config, dict):
        raise NodeUsageError(f"{path}: ClusterConfig: got {type(config).__name__}, expected an object")
    slurm = config.get("SlurmConfig", found.get("SlurmConfig"))
    named = _addresses(slurm, f"{path}: SlurmConfig") if slurm is not None else []
    of_groups = [instance.address for instance in instances if instance.role == "controller" and instance.address]
    return HyperPodCluster(
        source=path,
        name=str(config.get("ClusterName") or ""),
        instances=instances,
        controllers=named or of_groups,
        has_slurm_config=slurm is not None or any(instance.role for instance in instances),
    )


def read_object(path: Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        UsageError: the file is missing, or is not a JSON object.
    """
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise NodeUsageError(f"{path}: no such file; expected a JSON file of HyperPod") from None
    except (OSError, ValueError, RecursionError) as error:
        raise NodeUsageError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(found, dict):
        raise NodeUsageError(f"{path}: got {type(found).__name__}, expected an object")
    return found


def text_of(found: dict[str, Any], key: str, where: object) -> str:
    """A key's text.

    Raises:
        UsageError: it is not text, or empty.
    """
    value = found.get(key)
    if not isinstance(value, str) or not value:
        raise NodeUsageError(f"{where}: {key}: got {value!r}, expected text that is not empty")
    return value


def _instances(group: Any, where: str) -> Iterable[Instance]:
    """The instances of a group. One that is being made has no address yet, and a group may have no list of them."""
    if not isinstance(group, dict) or not isinstance(group.get("Instances"), list | None):
        raise NodeUsageError(f"{where}: expected an object with Name and Instances")
    name, role = text_of(group, "Name", where), ""
    if (config := group.get("SlurmConfig")) is not None:
        kind = config.get("NodeType") if isinstance(config, dict) else None
        if kind not in _ROLES:
            raise NodeUsageError(f"{where}: SlurmConfig.NodeType: got {kind!r}, expected one of {', '.join(_ROLES)}")
        role = _ROLES[kind]
    type_ = text_of(group, "InstanceType", where) if group.get("InstanceType") else ""
    for each in group.get("Instances") or ():
        facts = each if isinstance(each, dict) else {}
        yield Instance(
            group=name,
            instance_type=type_,
            instance_id=str(facts.get("InstanceId") or ""),
            address=_address(facts.get("CustomerIpAddress"), f"{where}: CustomerIpAddress"),
            role=role,
            layers=_layers(facts.get("InstanceLabel")),
        )


def _addresses(slurm: Any, where: str) -> list[str]:
    """The controllers' addresses of a cluster's SlurmConfig; a list, or text with commas, has the secondary ones."""
    if not isinstance(slurm, dict):
        raise NodeUsageError(f"{where}: got {type(slurm).__name__}, expected an object")
    more = slurm.get("SecondaryControllerIps") or []
    more = more.split(",") if isinstance(more, str) else more
    if not isinstance(more, list):
        raise NodeUsageError(f"{where}: SecondaryControllerIps: got {more!r}, expected a list of IP addresses")
    given = [slurm.get("PrimaryControllerIp"), *more]
    found = (_address(each, f"{where}: controllers") for each in given)
    return list(dict.fromkeys(address for address in found if address))


def _address(value: Any, where: str) -> str:
    if value in (None, ""):
        return ""
    try:
        return str(ipaddress.ip_address(str(value).strip()))
    except ValueError:
        raise NodeUsageError(f"{where}: got {value!r}, expected an IP address") from None


def _layers(label: Any) -> tuple[str, ...]:
    """The network nodes in an instance's labels, the highest first."""
    if not isinstance(label, dict):
        return ()
    found = {int(hit[1]): str(value) for key, value in label.items() if value and (hit := _LAYER.fullmatch(str(key)))}
    return tuple(found[layer] for layer in sorted(found))
