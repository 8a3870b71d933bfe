"""Slurm's network topology: which nodes are on one switch, and the distance between two nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from slurm.hostlist import expand

_FIELD = re.compile(r"(\w+)=(\S*)")


@dataclass(frozen=True, kw_only=True)
class Switch:
    """A switch, or a block of topology/block.

    Attributes:
        name: its name.
        level: 0 for a leaf, to which nodes are connected.
        nodes: all nodes below it.
    """

    name: str
    level: int
    nodes: frozenset[str]


class Topology:
    """The switches of a cluster. Without switches, all nodes have the same distance."""

    def __init__(self, switches: Iterable[Switch] = ()) -> None:
        self._above: dict[str, list[Switch]] = {}  # the switches above each node, the lowest first
        by_level = sorted(switches, key=lambda switch: switch.level)
        for switch in by_level:
            for node in switch.nodes:
                self._above.setdefault(node, []).append(switch)
        self._apart = by_level[-1].level + 2 if by_level else 1  # the distance of nodes without a common switch

    @classmethod
    def parse(cls, text: str) -> Topology:
        """Reads `scontrol show topology`, of topology/tree or topology/block."""
        switches = []
        for line in text.splitlines():
            fields = dict(_FIELD.findall(line))
            name = fields.get("SwitchName") or fields.get("BlockName")
            if name and fields.get("Nodes"):
                level = int(fields.get("Level") or 0)
                switches.append(Switch(name=name, level=level, nodes=frozenset(expand(fields["Nodes"]))))
        return cls(switches)

    def leaf(self, node: str) -> str:
        """The leaf switch of a node; "" if Slurm knows none."""
        above = self._above.get(node)
        return above[0].name if above else ""

    def distance(self, one: str, other: str) -> int:
        """0 for the same node, 1 on the same leaf switch, 2 with one switch between, and so on."""
        if one == other:
            return 0
        return next((1 + switch.level for switch in self._above.get(one, ()) if other in switch.nodes), self._apart)
