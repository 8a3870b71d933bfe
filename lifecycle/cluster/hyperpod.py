"""The requests for SageMaker HyperPod, whose API configures Slurm (SlurmConfig of the instance groups)."""

from __future__ import annotations

from typing import Any

from lifecycle.cluster.calls import Call
from lifecycle.cluster.lustre import lustre_calls
from lifecycle.cluster.request import ClusterRequest, Group
from lifecycle.cluster.scripts import ENTRY, INIT_COMPLETE


def hyperpod_calls(request: ClusterRequest) -> list[Call]:
    """The file system, if one is to be made, and the cluster."""
    slurm: dict[str, Any] = {"SlurmConfigStrategy": "Merge"}  # Managed would undo the lines that OnInitComplete adds
    if request.database:
        host, _, port = request.database.partition(":")
        slurm["AccountingDatabase"] = {
            "Endpoint": host,
            "Port": int(port or 3306),
            "SecretArn": request.database_secret,
        }
    cluster: dict[str, Any] = {
        "ClusterName": request.name,
        "InstanceGroups": [_controller(request), *(_compute(request, group) for group in request.groups)],
        "VpcConfig": {"SecurityGroupIds": [request.security_group], "Subnets": [request.subnet]},
        "Orchestrator": {"Slurm": slurm},
        "NodeRecovery": "Automatic",
        "NodeProvisioningMode": "Continuous",
    }
    return [*lustre_calls(request), Call(service="sagemaker", operation="CreateCluster", request=cluster)]


def _controller(request: ClusterRequest) -> dict[str, Any]:
    group = _group(request, "controller", f"ml.{request.controller_instance}", 1)
    group["LifeCycleConfig"]["OnInitComplete"] = INIT_COMPLETE
    return group | {"SlurmConfig": {"NodeType": "Controller"}}


def _compute(request: ClusterRequest, group: Group) -> dict[str, Any]:
    found = _group(request, group.name, f"ml.{request.instance}", group.nodes)
    found["SlurmConfig"] = {"NodeType": "Compute", "PartitionNames": [group.name]}
    if request.machine.efa:
        found["NetworkInterface"] = {"InterfaceType": "efa"}
    if group.is_fixed:
        found["OnStartDeepHealthChecks"] = ["InstanceStress", "InstanceConnectivity"]
    else:
        found["MinInstanceCount"] = 0
    if group.capacity == "spot":
        found["CapacityRequirements"] = {"Spot": {}}
    elif request.training_plan and group.is_fixed:
        found["TrainingPlanArn"] = request.training_plan
    return found


def _group(request: ClusterRequest, name: str, instance: str, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "InstanceGroupName": name,
        "InstanceType": instance,
        "InstanceCount": count,
        "ExecutionRole": request.role,
        "LifeCycleConfig": {"SourceS3Uri": request.script_url, "OnCreate": ENTRY},
    }
    if request.has_fsx:
        lustre = {"DnsName": request.fsx_dns, "MountName": request.fsx_mount_name, "MountPath": "/fsx"}
        found["InstanceStorageConfigs"] = [{"FsxLustreConfig": lustre}]
    return found
