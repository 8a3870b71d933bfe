"""The orders in a node's reason that SageMaker HyperPod carries out.

HyperPod's health monitoring agent writes them, or an administrator: `scontrol update node=N state=fail
reason="Action:Replace"`. HyperPod acts on exactly these words, once no job runs on the node.
"""

from __future__ import annotations

import re

REPLACE, REBOOT = "Action:Replace", "Action:Reboot"
_ORDER = re.compile(r"\s*Action:\s*(Replace|Reboot)\b", re.IGNORECASE)
_ORDERS = {"replace": REPLACE, "reboot": REBOOT}


def order_in(reason: str) -> str | None:
    """REPLACE or REBOOT if a node's reason begins with this order in any spelling; None if it has none."""
    found = _ORDER.match(reason)
    return _ORDERS[found[1].lower()] if found else None
