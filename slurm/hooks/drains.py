"""Drains by Holdfast, recognised by their reason and user, and the limit on their number."""

from __future__ import annotations

import fcntl
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from slurm.client import Slurm
from slurm.errors import SlurmError
from slurm.hooks.log import log
from slurm.hooks.places import read_of_root
from slurm.records import Node

TAG = "holdfast:"  # the prefix of the reason of every drain by Holdfast
OUT = frozenset(("DRAIN", "FAIL"))  # a node with one of these flags gets no jobs

_OURS = frozenset(("root", "slurm"))  # hooks and healing run as these users; administrators drain in their own name
_WHOLE = re.compile(r"(?P<text>.*?)\s*\[(?P<who>[^\s@\]]+)@[^\]]*\]", re.DOTALL)
_AMOUNT = re.compile(r"([0-9]{1,6})(%?)")
_MAX_REASON = 250


def is_ours(node: Node) -> bool:
    """Whether Holdfast has drained the node."""
    found = _WHOLE.fullmatch(node.reason)
    return bool(node.flags & OUT) and found is not None and found["who"] in _OURS and found["text"].startswith(TAG)


def why(node: Node) -> str:
    """The reason without Holdfast's prefix, user and time."""
    found = _WHOLE.fullmatch(node.reason)
    return _untagged(found["text"] if found else node.reason)


def _untagged(reason: str) -> str:
    return reason.removeprefix(TAG).strip()


def whose(node: Node) -> str:
    """The user who drained a node; "somebody" if Slurm does not report it."""
    found = _WHOLE.fullmatch(node.reason)
    return found["who"] if found else "somebody"


def reason(text: str) -> str:
    """A drain reason with Holdfast's prefix, in one line that Slurm does not cut."""
    return f"{TAG} {' '.join(text.split())}"[:_MAX_REASON]


def drain_node(slurm: Slurm, name: str, text: str, most: str, draining: str) -> str:
    """Drains a node, unless too many nodes are drained already: then the check itself is probably wrong.

    Nodes that fail at the same moment do not see each other's drain. So each looks a second time, and takes its own
    drain back if there are too many. A node that is already out of service is not changed. A hook that is killed before
    its second look leaves the reason in `draining`, and `settle_drain` looks in its place.

    Args:
        slurm: the cluster.
        name: the node.
        text: what is wrong with it.
        most: max_drained.
        draining: the file.

    Returns:
        Why it was not drained; empty when it is.
    """
    nodes = slurm.nodes()
    if any(node.flags & OUT for node in nodes if node.name == name):
        return ""
    if held := _too_many(nodes, name, most):
        return held
    with _noting(draining, reason(text)):
        slurm.drain(name, reason(text))
        if held := _too_many(slurm.nodes(), name, most):
            slurm.resume(name)
    return held


def settle_drain(slurm: Slurm, name: str, most: str, draining: str, is_unfit: Callable[[str], bool]) -> str:
    """Takes the second look at this node's drain, if its hook was killed before it. Further calls change nothing.

    Args:
        slurm: the cluster.
        name: the node.
        most: max_drained.
        draining: the file that records the drain.
        is_unfit: whether the node still fails its checks, if it was drained for them.

    Returns:
        Why the drain was taken back; empty if it stays, or there was none.
    """
    try:
        noted = _untagged(read_of_root(draining, _MAX_REASON * 4))
        begun = os.open(draining, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        fcntl.flock(begun, fcntl.LOCK_EX | fcntl.LOCK_NB)
        nodes = slurm.nodes()
        held = "nothing is wrong with it now" if not is_unfit(noted) else _too_many(nodes, name, most)
        is_the_one = any(is_ours(node) and why(node) == noted for node in nodes if node.name == name)
        if is_the_one and held:
            slurm.resume(name)
        os.unlink(draining)
        return held if is_the_one else ""
    except BlockingIOError:
        return ""  # the hook that drained it still runs and looks a second time itself
    finally:
        os.close(begun)


@contextmanager
def _noting(draining: str, text: str) -> Iterator[None]:
    """Records a drain in the file until the drain and the second look are done."""
    begun = -1
    try:
        os.makedirs(os.path.dirname(draining), 0o755, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        begun = os.open(draining, flags, 0o600)
        fcntl.flock(begun, fcntl.LOCK_SH | fcntl.LOCK_NB)  # while it is held, no other process takes the second look
        os.write(begun, text.encode())
    except OSError as error:  # the node is drained all the same: a broken disk may be the reason
        log.warning("%s: %s; if this hook is ended now, nobody looks at the drain again", draining, error.strerror)
    try:
        yield
        with suppress(OSError):
            os.unlink(draining)
    finally:
        if begun >= 0:
            os.close(begun)


def _too_many(nodes: Sequence[Node], name: str, most: str) -> str:
    """Why no further node may be drained; empty if one may."""
    others = sum(is_ours(node) for node in nodes if node.name != name)
    allowed = at_most(most, len(nodes))
    return f"{others} others are drained, max_drained is {most} of {len(nodes)}" if others >= allowed else ""


def at_most(amount: str, nodes: int) -> int:
    """The number of nodes that a limit allows: "4", or "10%" of all nodes, at least one.

    Raises:
        SlurmError: it is neither.
    """
    found = _AMOUNT.fullmatch(amount.strip())
    if found is None or (found[2] and int(found[1]) > 100):
        raise SlurmError(f"max_drained: got {amount!r}, expected a number of nodes or a share such as 10%")
    return max(1, math.floor(nodes * int(found[1]) / 100)) if found[2] else int(found[1])
