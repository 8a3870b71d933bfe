"""The requests for AWS PCS: the cluster, a launch template with EFA, groups of nodes and queues."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from lifecycle.cluster.calls import Call
from lifecycle.cluster.lustre import lustre_calls
from lifecycle.cluster.request import BOOST, ClusterRequest, Group
from lifecycle.cluster.scripts import CHECK, LOGIN_SETTINGS, PROVISION, SETTINGS, scripts, source_argument

_SMALL, _MEDIUM = 32, 512  # nodes that a cluster of these sizes may have
_PURCHASE = {"ondemand": "ONDEMAND", "block": "CAPACITY_BLOCK", "spot": "SPOT"}


def pcs_calls(request: ClusterRequest) -> list[Call]:
    """All requests, in the order in which they are sent."""
    nodes = sum(group.nodes for group in request.groups) + 1
    accounting = {"mode": "STANDARD" if request.has_accounting else "NONE"}
    cluster = Call(
        service="pcs",
        operation="CreateCluster",
        request={
            "clusterName": request.name,
            "scheduler": {"type": "SLURM", "version": request.slurm_version},
            "size": "SMALL" if nodes <= _SMALL else "MEDIUM" if nodes <= _MEDIUM else "LARGE",
            "networking": {"subnetIds": [request.subnet], "securityGroupIds": [request.security_group]},
            "slurmConfiguration": {
                "accounting": accounting,
                "slurmCustomSettings": _settings(request.slurm_settings()),
            },
        },
        output={"CLUSTER_ID": "cluster.id"},
        wait=("GetCluster", {"clusterIdentifier": "$CLUSTER_ID"}, "cluster.status", "ACTIVE"),
    )
    calls = [*lustre_calls(request), cluster]
    calls += _template(request, "login", None, 0)
    calls.append(_node_group(request, "login", 0, request.controller_instance, 1, 1, "ONDEMAND"))
    for number, group in enumerate(request.groups, 1):
        calls += _template(request, group.name, group, number)
        least = group.nodes if group.is_fixed else 0
        purchase = _PURCHASE[group.capacity]
        calls.append(_node_group(request, group.name, number, request.instance, least, group.nodes, purchase))
    for number, group in enumerate(request.groups, 1):
        calls.append(_queue(group.name, [number], request.queue_settings(group)))
    if request.is_elastic:
        calls.append(_queue(BOOST, list(range(1, len(request.groups) + 1)), request.boost_settings()))
    return calls


def _template(request: ClusterRequest, name: str, group: Group | None, number: int) -> list[Call]:
    """The launch template of a group: EFA interfaces, placement and reservation; and its placement group."""
    data: dict[str, Any] = {"MetadataOptions": {"HttpTokens": "required"}}
    calls = []
    if group is None or not request.machine.efa:
        data["SecurityGroupIds"] = [request.security_group]
    else:
        data["NetworkInterfaces"] = [_interface(request, card) for card in range(request.machine.efa)]
    if group is not None and group.is_fixed:
        if group.capacity != "block":  # a capacity block is one cluster of machines already
            placement = f"{request.name}-{name}"
            place = {"GroupName": placement, "Strategy": "cluster"}
            calls.append(Call(service="ec2", operation="CreatePlacementGroup", request=place))
            data["Placement"] = {"GroupName": placement}
        else:
            data["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
        if request.reservation:
            target = {"CapacityReservationId": request.reservation}
            data["CapacityReservationSpecification"] = {"CapacityReservationTarget": target}
    template = {"LaunchTemplateName": f"{request.name}-{name}", "LaunchTemplateData": data}
    output = {f"TEMPLATE_ID_{number}": "LaunchTemplate.LaunchTemplateId"}
    return [*calls, Call(service="ec2", operation="CreateLaunchTemplate", request=template, output=output)]


def _interface(request: ClusterRequest, card: int) -> dict[str, Any]:
    """One EFA interface for each network card. Only the first has an IP address."""
    return {
        "NetworkCardIndex": card,
        "DeviceIndex": 1 if card else 0,
        "InterfaceType": "efa-only" if card else "efa",
        "Groups": [request.security_group],
        "DeleteOnTermination": True,
    }


def _node_group(
    request: ClusterRequest, name: str, number: int, instance: str, least: int, most: int, purchase: str
) -> Call:
    has_gpus = name != "login"
    return Call(
        service="pcs",
        operation="CreateComputeNodeGroup",
        request={
            "clusterIdentifier": "${CLUSTER_ID}",
            "computeNodeGroupName": name,
            "amiId": request.image,
            "subnetIds": [request.subnet],
            "purchaseOption": purchase,
            "customLaunchTemplate": {"id": f"${{TEMPLATE_ID_{number}}}", "version": "1"},
            "iamInstanceProfileArn": request.role,
            "scalingConfiguration": {"minInstanceCount": least, "maxInstanceCount": most},
            "instanceConfigs": [{"instanceType": instance}],
            "nodeLifecycleActions": _actions(request, has_gpus),
        },
        output={f"GROUP_ID_{number}": "computeNodeGroup.id"},
        wait=(
            "GetComputeNodeGroup",
            {"clusterIdentifier": "$CLUSTER_ID", "computeNodeGroupIdentifier": f"$GROUP_ID_{number}"},
            "computeNodeGroup.status",
            "ACTIVE",
        ),
    )


def _actions(request: ClusterRequest, has_gpus: bool) -> dict[str, Any]:
    """NodeBootstrapped provisions the node before slurmd starts; NodeReady checks it."""
    settings = SETTINGS if has_gpus else LOGIN_SETTINGS
    mounts = (request.fsx_dns, request.fsx_mount_name) if request.has_fsx else ()
    stages: dict[str, Any] = {
        "nodeBootstrapped": [
            _script(request, "settings", settings, "EVERY_BOOT", *mounts),
            _script(request, "provision", PROVISION, "EVERY_BOOT", "--source", source_argument(request)),
        ]
    }
    if has_gpus:
        stages["nodeReady"] = [_script(request, "check", CHECK, "FIRST_BOOT_ONLY")]
    return {"stages": stages, "scriptCachingPolicy": "CACHE_ONCE"}


def _script(request: ClusterRequest, name: str, file: str, policy: str, *arguments: str) -> dict[str, Any]:
    source = {"scriptLocation": f"{request.script_url}/{file}"}
    content = scripts(request)[file]
    source["checksum"] = hashlib.sha256(content).hexdigest()
    found: dict[str, Any] = {"name": name, "scriptSource": source, "onError": "TERMINATE", "executionPolicy": policy}
    return found | ({"arguments": list(arguments)} if arguments else {})


def _queue(name: str, groups: list[int], settings: Mapping[str, str]) -> Call:
    return Call(
        service="pcs",
        operation="CreateQueue",
        request={
            "clusterIdentifier": "${CLUSTER_ID}",
            "queueName": name,
            "computeNodeGroupConfigurations": [{"computeNodeGroupId": f"${{GROUP_ID_{number}}}"} for number in groups],
            "slurmConfiguration": {"slurmCustomSettings": _settings(settings)},
        },
    )


def _settings(found: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"parameterName": name, "parameterValue": value} for name, value in found.items()]
