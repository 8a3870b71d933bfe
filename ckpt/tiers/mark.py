"""The mark, a file in a namespace's folder that names its namespace and user. It protects steps from other runs.

A damaged mark says nothing. Steps are read without it, because each manifest names its namespace, and a tier that is
prepared for saves gets a new one.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass

import xxhash

from ckpt.errors import NamespaceError
from ckpt.format.atomic_files import dump_json
from ckpt.format.shard_record import RECORD_FORMAT

MARK = "holdfast.json"
MAX_MARK_BYTES = 65536


@dataclass(frozen=True, kw_only=True)
class Mark:
    """The content of a mark. Values are not validated; see `check_mark`."""

    namespace: object
    uid: object  # uid of the user who may use the folder
    node: str | None  # the node, if the folder is on a node's own disk
    created_s: float


class DamagedMark(NamespaceError):
    """A mark is not as it was written."""


def new_mark(namespace: str, *, node: str | None = None) -> bytes:
    """Make the mark of a new folder, for the current user."""
    optional = {} if node is None else {"node": node}
    content = {"format": RECORD_FORMAT, "namespace": namespace, "uid": os.getuid(), **optional, "created": time.time()}
    return dump_json(content | {"checksum": _checksum(content)})


def parse_mark(data: bytes, where: str) -> Mark:
    """Read a mark. Raises DamagedMark if the data are not a mark."""
    try:
        value = json.loads(data[:MAX_MARK_BYTES])
        if value.pop("checksum") != _checksum(value):
            raise ValueError("its checksum differs")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedMark(f"{where}: is damaged ({error}); the next save to this place writes it anew") from None
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


def _checksum(content: dict[str, object]) -> str:
    return xxhash.xxh3_64_hexdigest(dump_json(content))
