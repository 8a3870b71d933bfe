"""Torch, imported on first use: a program with only NumPy arrays never needs it.

A process that has a torch object has already imported torch. So the checks for torch objects do not import it, and code
that works on such objects may use `torch` from here.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
else:

    class _Torch:
        """A placeholder that imports torch when an attribute is first used."""

        def __getattr__(self, name: str) -> Any:
            return getattr(_imported(), name)

    torch = _Torch()


@functools.cache  # a load asks some ten times per tensor, and import_module() takes its locks each time
def _imported() -> Any:
    return import_module("torch")


def in_use() -> bool:
    """Whether this process has imported torch."""
    return sys.modules.get("torch") is not None


def is_tensor(value: Any) -> bool:
    return in_use() and isinstance(value, _imported().Tensor)


def is_dtensor(value: Any) -> bool:
    """Whether a value is a DTensor. One can exist only if its module has been imported."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def is_module(value: Any) -> bool:
    return in_use() and isinstance(value, torch.nn.Module)


def is_optimizer(value: Any) -> bool:
    return in_use() and isinstance(value, torch.optim.Optimizer)


def no_grad() -> contextlib.AbstractContextManager[Any]:
    """torch.no_grad() if torch is imported; else a context manager that does nothing."""
    return torch.no_grad() if in_use() else contextlib.nullcontext()
