"""Ways to reboot or replace a node. Each only requests it; the new start of its slurmd shows that it happened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lifecycle.errors import LifecycleError
from lifecycle.heal.settings import HealSettings
from lifecycle.hyperpod import RESOURCE_CONFIG, read_cluster
from slurm import hyperpod
from slurm.client import Slurm
from slurm.command import CommandRunner
from slurm.hooks.drains import reason
from slurm.records import Node

Way = Callable[[Node, str], None]  # (the node, what is wrong with it)

_COMMAND_TIMEOUT_S = 120.0


def reboots(slurm: Slurm) -> Mapping[str, Way]:
    """The ways to reboot a node, by the word in heal.yaml."""
    return {
        "slurm": lambda node, why: slurm.reboot(node.name, reason(why)),
        "hyperpod": lambda node, _: slurm.fail(node.name, hyperpod.REBOOT),
        "hyperpod_api": lambda node, _: _ask_hyperpod("reboot", node),
    }


def replacements(slurm: Slurm, settings: HealSettings, run: CommandRunner) -> Mapping[str, Way]:
    """The ways to replace a node, by the word in heal.yaml."""
    return {
        "hyperpod": lambda node, _: slurm.fail(node.name, hyperpod.REPLACE),
        "hyperpod_api": lambda node, _: _ask_hyperpod("replace", node),
        "ec2": lambda node, _: _terminate(node),
        "command": lambda node, _: _run_command(node, settings, run),
    }


def _run_command(node: Node, settings: HealSettings, run: CommandRunner) -> None:
    words = {"{node}": node.name, "{address}": node.address}
    run([words.get(word, word) for word in settings.command], timeout_s=_COMMAND_TIMEOUT_S)


def _ask_hyperpod(action: str, node: Node) -> None:
    """Calls BatchRebootClusterNodes or BatchReplaceClusterNodes, which work also without automatic node recovery.

    Raises:
        LifecycleError: HyperPod refuses, or its file does not have the node.
    """
    session, errors = _aws(f"{action}: hyperpod_api")
    cluster = read_cluster(RESOURCE_CONFIG)
    ids = [one.instance_id for one in cluster.instances if node.address in (one.address, one.node_name)]
    if len(ids) != 1 or not ids[0] or not cluster.name:
        raise LifecycleError(
            f"{action} {node.name}: {RESOURCE_CONFIG}: got {len(ids)} instances with the address {node.address}, "
            f"expected one with an InstanceId, and a ClusterName; or use `{action}: hyperpod`"
        )
    try:
        call = getattr(session.client("sagemaker"), f"batch_{action}_cluster_nodes")
        answer = call(ClusterName=cluster.name, NodeIds=ids)
    except errors as error:
        raise LifecycleError(f"{action} {node.name}: {error}") from None
    for failed in answer.get("Failed", ()):
        raise LifecycleError(f"{action} {node.name}: HyperPod: {failed.get('ErrorCode')}: {failed.get('Message')}")


def _terminate(node: Node) -> None:
    """Ends the node's EC2 instance; its Auto Scaling group starts another one.

    Raises:
        LifecycleError: AWS refuses, or it is not clear which instance the node is.
    """
    session, errors = _aws("replace: ec2")
    try:
        instance = _instance_of(node, session.client("ec2"))
        session.client("autoscaling").terminate_instance_in_auto_scaling_group(
            InstanceId=instance, ShouldDecrementDesiredCapacity=False
        )
    except errors as error:
        raise LifecycleError(f"replace {node.name}: {error}") from None


def _aws(setting: str) -> tuple[Any, tuple[type[Exception], ...]]:
    """A session with AWS, and the exceptions of its calls."""
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise LifecycleError(f"{setting} needs boto3: pip install 'holdfast-hpc[s3]' on the controller") from None
    return boto3.session.Session(), (BotoCoreError, ClientError)


def _instance_of(node: Node, ec2: Any) -> str:
    """The running instance at the node's address, or of its name."""
    for name, values in (
        ("private-ip-address", [node.address]),
        ("private-dns-name", [node.address, f"{node.address}.*"]),
    ):
        filters = [{"Name": name, "Values": values}, {"Name": "instance-state-name", "Values": ["running"]}]
        found = [
            instance["InstanceId"]
            for reservation in ec2.describe_instances(Filters=filters)["Reservations"]
            for instance in reservation["Instances"]
        ]
        if len(found) == 1:
            return str(found[0])
    raise LifecycleError(
        f"replace {node.name}: no single running EC2 instance has its NodeAddr {node.address}; give nodes "
        "their private address or host name there, or use `replace: command`"
    )
