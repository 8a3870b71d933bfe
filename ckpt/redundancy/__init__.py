"""Where the redundancy of a node's shards lies, so that they survive the loss of nodes.

sets     redundancy sets: which nodes protect each other
scheme   the contract of a scheme
partner  a full copy on the next node of the set
"""

from __future__ import annotations

from ckpt.redundancy.partner import Partner
from ckpt.redundancy.scheme import NoScheme, Scheme

__all__ = ["Scheme", "scheme_named"]

_SCHEMES: dict[str, Scheme] = {scheme.name: scheme for scheme in (NoScheme(), Partner())}


def scheme_named(name: str) -> Scheme:
    """The scheme that the job file calls `name`; the configuration has checked the name."""
    return _SCHEMES[name]
