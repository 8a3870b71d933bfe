"""The directory for a node's copies of training data, of which the training program's libraries are the owners."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from holdfast.base.environment import Variable


def cache_dir(node: str, env: Mapping[str, str]) -> Path:
    """The directory of a node. It is outside of any job's, so a requeue and the next job find it warm.

    Nodes of the local cluster share a machine, and on a cluster the directory may be shared by mistake, so each node's
    is named after the node. Nothing of Holdfast writes there or removes anything.

    Args:
        node: the node's name.
        env: the node's environment, as it was at submission: HOLDFAST_CACHE_DIR is the directory above. Default: the
            user's directory on the node's own disk, which the prolog makes, or one for temporary files.
    """
    if given := env.get(Variable.CACHE_DIR):
        return Path(given) / node
    disk = env.get(Variable.DISK_DIR)
    above = Path(disk) if disk else Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}"
    return above / "cache" / node
