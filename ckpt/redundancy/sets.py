"""Redundancy sets: which nodes of an attempt protect each other. Losses in different sets do not add up."""

from __future__ import annotations

Members = tuple[int, ...]  # node ranks, in order


def redundancy_sets(nodes: int) -> tuple[Members, ...]:
    """Cuts the node ranks 0 to nodes-1 into sets; every node is in exactly one. Today: one set of all."""
    return (tuple(range(nodes)),)


def set_of(node: int, sets: tuple[Members, ...]) -> Members:
    """The set that a node is in."""
    return next(members for members in sets if node in members)
