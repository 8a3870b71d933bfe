"""The supervisor's place in the job: which nodes train, who takes over from it, and whether it continues a start."""

from __future__ import annotations

from collections.abc import Iterable

from launcher.core.gains import Event


def training_order(nodes: Iterable[str], own: str | None) -> tuple[str, ...]:
    """The nodes in the order in which they should train. The supervisor's node comes last, so that it is a spare if
    there is one. Its loss is then no fault.

    Args:
        nodes: the nodes of the base, in allocation order.
        own: the supervisor's node; None if it is on none of them.
    """
    return tuple(sorted(nodes, key=lambda node: node == own))


def successors(nodes: Iterable[str], own: str | None, predecessor: str | None) -> tuple[str, ...]:
    """The nodes that may take over from this supervisor, in this order.

    Args:
        nodes: the nodes of the base, in allocation order.
        own: the supervisor's node. If it is on none of them, nobody can take over.
        predecessor: the node of the supervisor before, which comes last: it may be lost or frozen.
    """
    others = [node for node in nodes if node != own] if own is not None else []
    return tuple(sorted(others, key=lambda node: node == predecessor))


def has_begun(events: Iterable[Event], restart_count: int) -> bool:
    """Whether the events are of this start of the job, so that they name its nodes and runners.

    A supervisor may be lost before it has recorded that the scheduler has started the job again.
    """
    starts = [event.get("restart_count", 0) for event in events if event["event"] == "job_start"]
    return bool(starts) and starts[-1] == restart_count
