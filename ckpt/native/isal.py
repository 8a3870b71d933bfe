"""Loads ISA-L, Intel's storage library (also for ARM), from the pyeclib wheel."""

from __future__ import annotations

import ctypes
import functools
from importlib.util import find_spec
from pathlib import Path


@functools.cache
def isal() -> ctypes.CDLL | None:
    """ISA-L's functions, whose calls release the GIL; None if the library is not installed."""
    spec = find_spec("pyeclib")
    home = Path(spec.origin).parent.parent if spec and spec.origin else None
    for path in sorted(home.glob("pyeclib.libs/libisal*")) if home else []:
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            continue
    return None
