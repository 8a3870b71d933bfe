"""Why Slurm drains a node, in words for the job's user."""

from __future__ import annotations

from slurm.hooks.drains import TAG
from slurm.hyperpod import REPLACE, order_in
from slurm.records import DrainedNode


def in_words(node: DrainedNode) -> str:
    """Who wants the node, and why."""
    order = order_in(node.reason)
    if order is not None:
        return f"HyperPod {'replaces' if order == REPLACE else 'reboots'} it ({order}, by {node.user})"
    if node.reason.startswith(TAG):
        return f"its health check failed: {node.reason.removeprefix(TAG).strip()}"
    return f"drained by {node.user}: {node.reason or 'no reason given'}"
