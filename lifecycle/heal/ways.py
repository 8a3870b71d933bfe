"""Ways to reboot or replace a node. Each only requests it; the new start of its slurmd shows that it happened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lifecycle.errors import LifecycleError
from lifecycle.heal.settings import HealSettings
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
        "hyperpod": lambda node, _: slurm.fail(node.name, "Action:Reboot"),
    }


def replacements(slurm: Slurm, settings: HealSettings, run: CommandRunner) -> Mapping[str, Way]:
    """The ways to replace a node, by the word in heal.yaml."""
    return {
        "hyperpod": lambda node, _: slurm.fail(node.name, "Action:Replace"),
        "ec2": lambda node, _: _terminate(node),
        "command": lambda node, _: _run_command(node, settings, run),
    }


def _run_command(node: Node, settings: HealSettings, run: CommandRunner) -> None:
    words = {"{node}": node.name, "{address}": node.address}
    run([words.get(word, word) for word in settings.command], timeout_s=_COMMAND_TIMEOUT_S)


def _terminate(node: Node) -> None:
    """Ends the node's EC2 instance; its Auto Scaling group starts another one.

    Raises:
        LifecycleError: AWS refuses, or it is not clear which instance the node is.
    """
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise LifecycleError("replace: ec2 needs boto3: pip install 'holdfast-hpc[s3]' on the controller") from None
    try:
        session = boto3.session.Session()
        instance = _instance_of(node, session.client("ec2"))
        session.client("autoscaling").terminate_instance_in_auto_scaling_group(
            InstanceId=instance, ShouldDecrementDesiredCapacity=False
        )
    except (BotoCoreError, ClientError) as error:
        raise LifecycleError(f"replace {node.name}: {error}") from None


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
