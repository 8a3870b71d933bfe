"""The mark, a file in a namespace's folder that names its namespace and user. It protects steps from other runs."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass

from ckpt.errors import NamespaceError
from ckpt.format.atomic_files import dump_json
from ckpt.format.shard_record import FORMAT

MARK = "holdfast.json"
MAX_BYTES = 65536


@dataclass(frozen=True, kw_only=True)
class Mark:
    """The content of a mark. Values are not validated; see `check_mark`."""

    namespace: object
    uid: object  # uid of the user who may use the folder
    node: str | None  # the node, if the folder is on a node's own disk
    created_s: float


def new_mark(namespace: str, *, node: str | None = None) -> bytes:
    """Make the mark of a new folder, for the current user."""
    optional = {} if node is None else {"node": node}
    return dump_json({"format": FORMAT, "namespace": namespace, "uid": os.getuid(), **optional, "created": time.time()})


def parse_mark(data: bytes, where: str) -> Mark:
    """Read a mark. Raises NamespaceError if the data are not a mark."""
    try:
        value = json.loads(data[:MAX_BYTES])
    except (ValueError, RecursionError) as error:
        raise NamespaceError(f"{where}: cannot be read ({error}); restore or remove it") from None
    if not isinstance(value, dict):
        raise NamespaceError(f"{where}: is no JSON object; restore or remove it")
    created, node = value.get("created"), value.get("node")
    return Mark(
        namespace=value.get("namespace"),
        uid=value.get("uid"),
        node=node if isinstance(node, str) else None,
        created_s=created if isinstance(created, float) else 0.0,
    )


def check_mark(mark: Mark, where: str, namespace: str) -> None:
    """Raise NamespaceError if the folder belongs to another namespace or user."""
    if mark.namespace != namespace:
        raise NamespaceError(
            f"{where}: belongs to namespace {mark.namespace!r:.100}, not {namespace!r}; choose another path"
        )
    if mark.uid != os.getuid():
        raise NamespaceError(f"{where}: belongs to uid {mark.uid!r:.20}, we are uid {os.getuid()}; choose another path")
