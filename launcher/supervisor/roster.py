"""The job's nodes: which are ready, which train, which are out and why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence


class Roster:
    """Keeps the nodes of a job.

    A node that is out stays out, unless it was only lost and is taken back. A replacement takes the position of the
    node it replaces, so that the ranks of all others stay where their memory is.

    Args:
        nodes: all nodes in allocation order, spares included.
        sizes: how many of them may train, the largest number first.
        out: nodes that are out already, with the reason (from before a requeue).
        distance: how far apart two nodes are in the network; a spare takes the place of the node it is nearest to.
    """

    def __init__(
        self,
        nodes: Iterable[str],
        sizes: Sequence[int],
        out: Mapping[str, str],
        distance: Callable[[str, str], int] = lambda one, other: 1,
    ) -> None:
        self.nodes = tuple(nodes)
        self._sizes = tuple(sizes)
        self._has_shrunk = False
        self._distance = distance
        self._members = frozenset(self.nodes)
        self._out = {node: reason for node, reason in out.items() if node in self._members}
        self._ready: set[str] = set()
        self._absent = dict.fromkeys(node for node in self.nodes if node not in self._out)  # in order
        self._positions: tuple[str, ...] = ()

    def add_ready(self, node: str) -> None:
        """A node's runner has come. Ignored for a node that is out."""
        if node in self._members and node not in self._out:
            self._ready.add(node)
            self._absent.pop(node, None)

    def await_again(self, node: str) -> None:
        """A node's runner has gone, and is to come again."""
        if node in self._ready:
            self._ready.discard(node)
            self._absent[node] = None

    def put_out(self, node: str, reason: str) -> None:
        """Excludes a node; the first reason stays."""
        self._ready.discard(node)
        self._absent.pop(node, None)
        self._out.setdefault(node, reason)

    def take_back(self, node: str) -> None:
        """A node that was lost is the job's again; its runner is to come."""
        if self._out.pop(node, None) is not None:
            self._absent[node] = None

    def resume(self, positions: Iterable[str]) -> None:
        """The attempt that runs was begun by another supervisor, on these nodes."""
        self._positions = tuple(positions)

    @property
    def out(self) -> dict[str, str]:
        """Nodes that are out, with the reason."""
        return dict(self._out)

    @property
    def ready(self) -> list[str]:
        """Nodes that can train or do, in allocation order."""
        return [node for node in self.nodes if node in self._ready]

    @property
    def absent(self) -> list[str]:
        """Nodes that have not come yet, in allocation order."""
        return list(self._absent)

    @property
    def is_complete(self) -> bool:
        """Whether no node is absent."""
        return not self._absent

    @property
    def spares(self) -> list[str]:
        """Ready nodes beyond those chosen last."""
        chosen = frozenset(self._positions)
        return [node for node in self.ready if node not in chosen]

    @property
    def has_shrunk(self) -> bool:
        """Whether the nodes chosen last are fewer than those before."""
        return self._has_shrunk

    @property
    def is_full(self) -> bool:
        """Whether as many nodes are ready as may train."""
        return len(self._ready) >= self._sizes[0]

    @property
    def can_suffice(self) -> bool:
        """Whether enough nodes for the smallest size are ready or may still come."""
        return len(self._ready) + len(self._absent) >= self._sizes[-1]

    def choose(self, avoid: Collection[str] = ()) -> tuple[str, ...] | None:
        """The nodes of the next attempt in node-rank order; None when too few are ready.

        Args:
            avoid: nodes that train only where there are not enough others.
        """
        size = next((size for size in self._sizes if size <= len(self._ready)), None)
        if size is None:
            return None
        spares = sorted(self.spares, key=lambda node: node in avoid)
        place = {node: node for node in self._positions}
        self._replace([node for node in self._positions if node not in self._ready], spares, place)
        good = [node for node in spares if node not in avoid]
        self._replace([node for node in self._positions if node in self._ready and node in avoid], good, place)
        kept = [place[node] for node in self._positions if place[node] in self._ready][:size]
        self._has_shrunk = size < len(self._positions)
        spares = [node for node in spares if node not in kept]
        self._positions = (*kept, *spares[: size - len(kept)])
        return self._positions

    def _replace(self, leaving: list[str], spares: list[str], place: dict[str, str]) -> None:
        """Gives the places of nodes to spares, the closest pair first; among equals their order decides."""
        while leaving and spares:
            node, spare = min(
                ((node, spare) for node in leaving for spare in spares), key=lambda pair: self._distance(*pair)
            )
            place[node] = spare
            leaving.remove(node)
            spares.remove(spare)
