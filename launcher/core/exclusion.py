"""Which nodes a requeued job is not to get again."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Exclusion:
    """The choice.

    Attributes:
        nodes: the nodes to exclude.
        left: number of nodes beside all those that are out of use.
        kept: nodes that are out of use and not excluded.
    """

    nodes: frozenset[str]
    left: int
    kept: tuple[str, ...] = ()


def exclusion(
    out: Collection[str],
    *,
    before: Collection[str],
    there: Collection[str],
    usable: Callable[[], Collection[str]],
    least: int,
    wanted: int,
) -> Exclusion:
    """Excludes the nodes that are out of use, as far as enough others are left for the places of spares.

    With fewer nodes than it asks for the job would wait for ever: Slurm does not start it, and `update NumNodes=3-4` of
    a job with tasks per node makes it wait with BadConstraints (seen on 22.05).

    Args:
        out: the nodes that are out of use.
        before: the nodes that are excluded already.
        there: all nodes that the job could get.
        usable: returns the nodes that are available now. They are kept first. Called only if some are to be kept.
        least, wanted: number of nodes without which the job cannot train, and for which it asks, with its spares.
    """
    excluded = {*before, *out}
    left = sum(node not in excluded for node in there)
    if left >= wanted or left < least:
        return Exclusion(nodes=frozenset(excluded), left=left)
    available = usable()
    kept = tuple(sorted(out, key=lambda node: node not in available)[: wanted - left])
    return Exclusion(nodes=frozenset(excluded.difference(kept)), left=left, kept=kept)
