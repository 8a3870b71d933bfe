"""The door to ISA-L, in the copy that the pyeclib wheel brings: Intel's library for storage, also for ARM."""

from __future__ import annotations

import ctypes
import functools
from importlib.util import find_spec
from pathlib import Path


@functools.cache
def isal() -> ctypes.CDLL | None:
    """Its functions, whose calls give Python's lock away meanwhile; None where it is not there."""
    spec = find_spec("pyeclib")
    home = Path(spec.origin).parent.parent if spec and spec.origin else None
    for path in sorted(home.glob("pyeclib.libs/libisal*")) if home else []:
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            continue
    return None
