"""Objects, which are not tensors, of a step that is saved through torch's DCP.

They are stored as JSON. Bytes that a planner has serialised itself, as Megatron's dist_checkpointing does, are stored
and returned as they are: nothing here looks into them.
"""

from __future__ import annotations

import io
from typing import Any

from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem

from ckpt.errors import CorruptError, StateError
from ckpt.format.json_values import decode, encode, name_of

_SERIALISED = "#serialised"


class Serialised(bytes):
    """What a planner has made of an object, to be given to a planner again."""


def encode_object(item: WriteItem, planner: SavePlanner) -> Any:
    """The JSON form of an object of a plan.

    Raises:
        StateError: it cannot be stored as JSON. The message names it.
    """
    path = (item.index.fqn,)
    if isinstance(planner, DefaultSavePlanner):
        found = planner.lookup_object(item.index)
        if not (isinstance(found, io.BytesIO) and _keeps_bytes(planner)):
            return encode(found, path)
    else:
        found = planner.resolve_data(item)
        if not isinstance(found, io.BytesIO):
            raise StateError(
                f"{name_of(path)}: {type(planner).__name__}.resolve_data() returned a {type(found).__name__}, expected "
                "an io.BytesIO"
            )
    return {_SERIALISED: encode(found.getvalue(), path)}


def decode_object(node: Any) -> Any:
    """The object; of bytes that a planner had serialised, a `Serialised`."""
    return decode(node, _resolve)


def _keeps_bytes(planner: DefaultSavePlanner) -> bool:
    """Whether a planner has a serialisation of its own. Torch's would pickle a BytesIO once more."""
    return type(planner).transform_object is not DefaultSavePlanner.transform_object


def _resolve(tag: str, content: Any) -> Serialised:
    if tag != _SERIALISED or not isinstance(found := decode(content), bytes):
        raise CorruptError(f"value: malformed {tag!r:.40}")
    return Serialised(found)
