"""The orders in a node's reason that SageMaker HyperPod carries out.

HyperPod's health monitoring agent writes them, or an administrator: `scontrol update node=N state=fail
reason="Action:Replace"`. HyperPod acts on exactly these words and ignores every other spelling
(awslabs/awsome-distributed-ai, hyperpod-mental-model.md).
"""

from __future__ import annotations

import re

REPLACE, REBOOT = "Action:Replace", "Action:Reboot"
_ORDER = re.compile(r"(Action:(?:Replace|Reboot))(?: \[[^\]]*\])?")  # scontrol adds [user@time]


def order_in(reason: str) -> str | None:
    """REPLACE or REBOOT if a node's reason is this order; None if it is none."""
    found = _ORDER.fullmatch(reason)
    return found[1] if found else None
