"""Torch, imported when it is first used: a program with NumPy arrays alone never needs it.

A state that holds something of torch's has imported torch already. So what asks whether a value is of torch's does not
import it, and everything that has to do with such a value may use `torch` from here.
"""

from __future__ import annotations

import contextlib
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
else:

    class _Torch:
        """Stands for the module."""

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module("torch"), name)

    torch = _Torch()


def in_use() -> bool:
    """Whether this process has imported torch."""
    return sys.modules.get("torch") is not None


def is_tensor(value: Any) -> bool:
    return in_use() and isinstance(value, torch.Tensor)


def is_dtensor(value: Any) -> bool:
    """A DTensor can exist only where its module has been imported."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def is_module(value: Any) -> bool:
    return in_use() and isinstance(value, torch.nn.Module)


def is_optimizer(value: Any) -> bool:
    return in_use() and isinstance(value, torch.optim.Optimizer)


def no_grad() -> contextlib.AbstractContextManager[Any]:
    """torch.no_grad() where there is a torch."""
    return torch.no_grad() if in_use() else contextlib.nullcontext()
