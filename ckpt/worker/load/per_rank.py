"""Plain tensors that are one rank's shards of something larger: refused at another world size.

Rank r would load those of saved rank r, which are other rows there. The parameters of torch's first
FullyShardedDataParallel (FSDP1) are such shards, and so is all that an optimizer keeps for them. DTensors are not
plain: they can be loaded at any world size.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ckpt.errors import StateError
from ckpt.format.json_values import Path, name_of
from ckpt.worker.lazy_torch import is_dtensor
from ckpt.worker.save.replicas import modules_in

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Worlds:
    """The world size of a save, that of its load, and the state that is loaded."""

    saved: int
    live: int
    state: Any

    def check_optimizer(self, parameters: list[Any], saved: Mapping[int, list[Shape]], path: Path) -> None:
        """Raises StateError if an optimizer's state consists of this rank's shards.

        Args:
            parameters: the live ones.
            saved: the shapes of the plain tensors that were saved for each parameter, by its number.
        """
        if self.saved == self.live:
            return
        is_fsdp1 = any(getattr(parameter, "_fsdp_flattened", False) for parameter in parameters)
        if is_fsdp1 and self._shards_over_all():
            raise self._refusal(path, "FSDP1")
        total = sum(parameter.numel() for parameter in parameters if not is_dtensor(parameter))
        for index, shapes in saved.items():
            live = parameters[index] if index in range(len(parameters)) else None
            if live is None or is_dtensor(live) or (live.ndim != 1 and not is_fsdp1):
                continue
            mine, others = tuple(live.shape), [shape for shape in shapes if shape]
            flat = is_fsdp1 or all(len(shape) == 1 for shape in others)
            if others and flat and mine not in others and all(math.prod(shape) != total for shape in others):
                raise self._refusal(path, f"shape {list(others[0])} for parameter {index}, which has {list(mine)} here")

    def _shards_over_all(self) -> bool:
        """Whether FSDP1 cuts parameters over all ranks: a node's own shards are those of another node too."""
        fsdp = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", ())
        found = [part for module in modules_in(self.state) for part in module.modules() if isinstance(part, fsdp)]
        if not found:
            return self.live > 1
        return any(p.process_group.size() == self.live > 1 and p.sharding_strategy.name != "NO_SHARD" for p in found)

    def _refusal(self, path: Path, what: str) -> StateError:
        return StateError(
            f"{name_of(path)}: each of {self.saved} ranks has saved its own shards ({what}), and {self.live} ranks "
            f"load: run it with {self.saved} ranks, or change to FSDP2 (fully_shard), whose state loads at any size; "
            "load(state, strict=False) without it starts it anew"
        )
