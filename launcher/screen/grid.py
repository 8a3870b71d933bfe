"""The nodes of a job: a cell for each, with its state and step, or one character for each where they are many."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rich.text import Text

from holdfast.blocks import printable
from launcher.history.status import JobStatus

_GAP = 2
_LONGEST_NAME = 24
_SKEW_S = 1.0  # two nodes' steps are of heartbeats up to half a second apart, or more on a busy machine
_BUSY = {"training": "training", "starting": "starting", "running": "starting", "recovering": "recovering",
         "resizing": "resizing", "stopping": "stopping", "requeued": "waiting", "pending": "waiting"}  # fmt: skip


@dataclass(frozen=True)
class _Look:
    """How a state of a node is drawn: as a character, on a terminal without Unicode as another, and its colour."""

    sign: str
    plain: str
    style: str


_LOOKS: Mapping[str, _Look] = {
    "training": _Look("■", "#", "green"),
    "behind": _Look("▤", "=", "yellow"),
    "slow": _Look("▤", "=", "bold yellow"),
    "starting": _Look("▣", "+", "cyan"),
    "recovering": _Look("▣", "+", "yellow"),
    "resizing": _Look("▣", "+", "yellow"),
    "stopping": _Look("▣", "+", "yellow"),
    "waiting": _Look("□", "-", "dim"),
    "booster": _Look("◆", "B", "blue"),
    "spare": _Look("○", "o", "cyan"),
    "warming": _Look("◌", ".", "dim"),
    "out": _Look("✗", "x", "red"),
    "ended": _Look("□", "-", "dim"),
}


@dataclass(frozen=True, kw_only=True)
class NodeCell:
    """A node, its state (a key of `_LOOKS`) and its step."""

    node: str
    state: str
    step: int | None = None


def node_cells(status: JobStatus) -> list[NodeCell]:
    """The job's nodes in node-rank order, then boosters that do not train yet, spares, and nodes that are out."""
    busy = _BUSY.get(status.state, "ended")
    newest = max(status.node_steps.values(), default=0)
    boosters = {node for booster in status.elastic.boosters for node in booster.nodes} if status.elastic else set()
    cells = [_training(node, status, busy, newest) for node in status.nodes]
    known = {*status.nodes, *status.out, *status.spares}
    cells += [NodeCell(node=node, state="booster") for node in sorted(boosters - known)]
    cells += [
        NodeCell(node=node, state="spare" if status.ready.get(node) else "warming")
        for node in status.spares
        if node not in status.out
    ]
    if not status.nodes:  # before the first attempt
        cells += [NodeCell(node=node, state="starting") for node in sorted({*status.ready} - known - boosters)]
    return cells + [NodeCell(node=node, state="out") for node in status.out if node not in status.nodes]


def _training(node: str, status: JobStatus, busy: str, newest: int) -> NodeCell:
    if node in status.out:
        return NodeCell(node=node, state="out")
    if busy != "training":
        return NodeCell(node=node, state=busy)
    step = status.node_steps.get(node, status.step or None)
    skew = math.ceil(_SKEW_S * (status.steps_per_s or 0.0))
    is_behind = node in status.node_steps and status.node_steps[node] < newest - 1 - skew
    state = "slow" if node in status.slow else "behind" if is_behind else "training"
    return NodeCell(node=node, state=state, step=step)


def grid(cells: list[NodeCell], width: int, height: int, *, is_unicode: bool) -> list[Text]:
    """The nodes in at most `height` lines of `width` characters."""
    detailed = _detailed(cells, width, is_unicode)
    if len(detailed) <= height:
        return detailed
    return _dense(cells, width, height, is_unicode)


def legend(cells: list[NodeCell], *, is_unicode: bool) -> Text:
    """The number of nodes in each state."""
    counts = Counter(cell.state for cell in cells)
    parts = [
        Text.assemble((_sign(state, is_unicode), _LOOKS[state].style), f" {counts[state]} {state}")
        for state in _LOOKS
        if counts[state]
    ]
    return Text("  ").join(parts)


def _detailed(cells: list[NodeCell], width: int, is_unicode: bool) -> list[Text]:
    """A cell for each node: sign, name, and step or state."""
    names = [printable(cell.node)[:_LONGEST_NAME] for cell in cells]
    facts = [str(cell.step) if cell.step is not None else cell.state for cell in cells]
    name_width, fact_width = max(map(len, names), default=0), max(map(len, facts), default=0)
    columns = max(1, (width + _GAP) // (2 + name_width + 1 + fact_width + _GAP))
    texts = [
        Text.assemble(
            (f"{_sign(cell.state, is_unicode)} {name.ljust(name_width)} ", _LOOKS[cell.state].style),
            (fact.rjust(fact_width), "" if cell.step is not None else "dim"),
        )
        for cell, name, fact in zip(cells, names, facts, strict=True)
    ]
    return [Text(" " * _GAP).join(texts[at : at + columns]) for at in range(0, len(texts), columns)]


def _dense(cells: list[NodeCell], width: int, height: int, is_unicode: bool) -> list[Text]:
    """A character for each node, each line with the name of its first node; then the nodes that are not as most are.

    Nodes for which there is no room are counted.
    """
    label_width = min(_LONGEST_NAME, max(len(printable(cell.node)) for cell in cells)) + 1
    columns = max(10, (width - label_width) // 10 * 10)
    rows = [cells[at : at + columns] for at in range(0, len(cells), columns)]
    shown = rows if len(rows) <= height else rows[: max(0, height - 1)]
    lines = [_dense_line(row, label_width, is_unicode) for row in shown]
    if left := sum(map(len, rows[len(shown) :])):
        lines.append(Text(f"and {left} more nodes", style="dim"))
    return lines[:height]


def _dense_line(row: list[NodeCell], label_width: int, is_unicode: bool) -> Text:
    line = Text(printable(row[0].node)[: label_width - 1].ljust(label_width), style="dim")
    start = 0
    for at in range(1, len(row) + 1):  # one span for neighbours of the same state
        if at == len(row) or row[at].state != row[start].state:
            state = row[start].state
            line.append(_sign(state, is_unicode) * (at - start), style=_LOOKS[state].style or "default")
            start = at
    return line


def _sign(state: str, is_unicode: bool) -> str:
    look = _LOOKS[state]
    return look.sign if is_unicode else look.plain
