"""The configuration for AWS ParallelCluster 3.15."""

from __future__ import annotations

from typing import Any

from lifecycle.cluster.lustre import EVENTS, THROUGHPUT_MB_S_PER_TIB, association_path
from lifecycle.cluster.request import BOOST, ClusterRequest, Group
from lifecycle.cluster.scripts import PROVISION, SETTINGS, source_argument

CONFIG = "cluster.yaml"
# ParallelCluster has its own; head_hooks.sh links Holdfast's into the directory that its own run.
_DENIED = ("Prolog", "Epilog")


def parallelcluster_config(request: ClusterRequest) -> dict[str, Any]:
    """cluster.yaml."""
    slurm: dict[str, Any] = {"CustomSlurmSettings": _settings(request)}
    if request.database:
        slurm["Database"] = {
            "Uri": request.database,
            "UserName": "slurm",
            "PasswordSecretArn": request.database_secret,
        }
    found: dict[str, Any] = {
        "Region": request.region,
        "Image": {"Os": "ubuntu2204"},
        "HeadNode": {
            "InstanceType": request.controller_instance,
            "Networking": {"SubnetId": request.subnet, "AdditionalSecurityGroups": [request.security_group]},
            "CustomActions": {"OnNodeConfigured": _actions(request, "head_hooks.sh")},
            "Iam": _iam(request),
        },
        "Scheduling": {
            "Scheduler": "slurm",
            "SlurmSettings": slurm,
            "SlurmQueues": [_queue(request, group) for group in request.groups],
        },
    }
    if request.has_fsx:
        found["SharedStorage"] = [_lustre(request)]
    return found


def _settings(request: ClusterRequest) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {name: value} for name, value in request.slurm_settings().items() if name not in _DENIED
    ]
    if request.is_elastic:
        found.append({"PartitionName": BOOST, "Nodes": "ALL", **request.boost_settings()})
    return found


def _queue(request: ClusterRequest, group: Group) -> dict[str, Any]:
    resource: dict[str, Any] = {
        "Name": f"{group.name}-nodes",
        "InstanceType": request.instance,
        "MinCount": group.nodes if group.is_fixed else 0,
        "MaxCount": group.nodes,
        "Efa": {"Enabled": bool(request.machine.efa)},
    }
    is_reserved = bool(request.reservation) and group.is_fixed
    if is_reserved:
        resource["CapacityReservationTarget"] = {"CapacityReservationId": request.reservation}
    # A capacity block is one cluster of machines already, and cannot be placed.
    is_placed = group.is_fixed and group.capacity != "block"
    return {
        "Name": group.name,
        "CapacityType": {"ondemand": "ONDEMAND", "block": "CAPACITY_BLOCK", "spot": "SPOT"}[group.capacity],
        "CustomSlurmSettings": request.queue_settings(group),
        "HealthChecks": {"Gpu": {"Enabled": bool(request.machine.gpus)}},
        "Networking": {
            "SubnetIds": [request.subnet],
            "AdditionalSecurityGroups": [request.security_group],
            "PlacementGroup": {"Enabled": is_placed},
        },
        "ComputeResources": [resource],
        "CustomActions": {"OnNodeConfigured": _actions(request)},
        "Iam": _iam(request),
    }


def _actions(request: ClusterRequest, *more: str) -> dict[str, Any]:
    url = request.script_url
    provision = {"Script": f"{url}/{PROVISION}", "Args": ["--source", source_argument(request)]}
    return {"Sequence": [{"Script": f"{url}/{SETTINGS}"}, provision, *({"Script": f"{url}/{name}"} for name in more)]}


def _iam(request: ClusterRequest) -> dict[str, Any]:
    buckets = dict.fromkeys(url.removeprefix("s3://").split("/", 1)[0] for url in (request.scripts, *request.data))
    return {"S3Access": [{"BucketName": bucket} for bucket in buckets]}


def _lustre(request: ClusterRequest) -> dict[str, Any]:
    settings: dict[str, Any] = {"FileSystemId": request.fsx}
    if request.makes_fsx:
        settings = {
            "StorageCapacity": request.fsx_gib,
            "DeploymentType": "PERSISTENT_2",
            "PerUnitStorageThroughput": THROUGHPUT_MB_S_PER_TIB,
            "DataCompressionType": "LZ4",
            "DataRepositoryAssociations": [
                {
                    "Name": f"data{number}",
                    "BatchImportMetaDataOnCreate": True,
                    "DataRepositoryPath": url,
                    "FileSystemPath": association_path(url),
                    "AutoImportPolicy": EVENTS,
                }
                for number, url in enumerate(request.data)
            ],
        }
    return {"Name": "fsx", "StorageType": "FsxLustre", "MountDir": "/fsx", "FsxLustreSettings": settings}
