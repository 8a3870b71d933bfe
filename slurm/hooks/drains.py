"""Drains of ours: told from an admin's by their reason and by who gave it. How many there may be at once."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from slurm.client import Slurm
from slurm.errors import SlurmError
from slurm.records import Node

TAG = "holdfast:"  # begins the reason of every drain of ours: who may undo it sees whose it was
OUT = frozenset(("DRAIN", "FAIL"))  # a node with one of these flags gets no jobs

_OURS = frozenset(("root", "slurm"))  # for whom our hooks and the healing run; an admin drains in his own name
_WHOLE = re.compile(r"(?P<text>.*?)\s*\[(?P<who>[^\s@\]]+)@[^\]]*\]", re.DOTALL)
_AMOUNT = re.compile(r"([0-9]{1,6})(%?)")
_MAX_REASON = 250


def is_ours(node: Node) -> bool:
    """Whether a node is drained, and it was we who did it."""
    found = _WHOLE.fullmatch(node.reason)
    return bool(node.flags & OUT) and found is not None and found["who"] in _OURS and found["text"].startswith(TAG)


def why(node: Node) -> str:
    """The reason without its tag, and without who gave it and when."""
    found = _WHOLE.fullmatch(node.reason)
    return (found["text"] if found else node.reason).removeprefix(TAG).strip()


def whose(node: Node) -> str:
    """Who drained a node; "somebody" where Slurm does not say."""
    found = _WHOLE.fullmatch(node.reason)
    return found["who"] if found else "somebody"


def reason(text: str) -> str:
    """A reason of ours, in one line that Slurm takes whole."""
    return f"{TAG} {' '.join(text.split())}"[:_MAX_REASON]


def drain_node(slurm: Slurm, name: str, text: str, most: str) -> str:
    """Drains a node, unless so many are drained that it is rather the check that is wrong, or the whole site.

    Nodes that fail at the same moment do not see each other's drain yet: each looks again, and takes its own back where
    there are too many. One that is out already stays as it is.

    Args:
        slurm: the cluster.
        name: the node.
        text: what is wrong with it.
        most: max_drained.

    Returns:
        Why it was not drained; empty when it is.
    """
    nodes = slurm.nodes()
    if any(node.flags & OUT for node in nodes if node.name == name):
        return ""
    if held := _too_many(nodes, name, most):
        return held
    slurm.drain(name, reason(text))
    if held := _too_many(slurm.nodes(), name, most):
        slurm.resume(name)
    return held


def _too_many(nodes: Sequence[Node], name: str, most: str) -> str:
    """Why no node may be drained beside the others; empty when one may."""
    others = sum(is_ours(node) for node in nodes if node.name != name)
    allowed = at_most(most, len(nodes))
    return f"{others} others are drained, max_drained is {most} of {len(nodes)}" if others >= allowed else ""


def at_most(amount: str, nodes: int) -> int:
    """How many nodes a limit allows: "4", or "10%" of all, one at least.

    Raises:
        SlurmError: it is neither.
    """
    found = _AMOUNT.fullmatch(amount.strip())
    if found is None or (found[2] and int(found[1]) > 100):
        raise SlurmError(f"max_drained: got {amount!r}, expected a number of nodes or a share such as 10%")
    return max(1, math.floor(nodes * int(found[1]) / 100)) if found[2] else int(found[1])
