"""Tensors that are equal on several ranks: the proof that they are, and the part that each rank stores.

The proof is structural; values are never compared. These tensors are replicas:

- a DTensor that is replicated over a dimension of its mesh;
- a parameter of a DistributedDataParallel module in the state. DDP makes parameters equal at its construction, and
  gradients at every step. Ignored parameters and modules with a communication hook are excepted;
- what torch's own optimizers, wrapped or not, keep for such a parameter in the parameter's shape;
- everything below a key that the user declares.

Each rank stores everything else itself. This includes DDP's buffers, which differ from forward to forward, and plain
tensors taken from a DDP module by hand. Every rank also stores all tensors below SMALL_BYTES, because reading them from
another rank would cost more.

The tensors of a group are laid end to end, and the total is divided into equal parts, at rows of a tensor. Each member
stores one part. All members compute the same division without messages, because they see the same structure. The agents
check this at the commit: each rank sends a token of the structure, and a save whose tokens differ is dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ckpt.format.atomic_files import dump_json
from ckpt.format.boxes import Box
from ckpt.format.checksums import checksum
from ckpt.worker.lazy_torch import in_use, is_module, is_optimizer, torch
from ckpt.worker.placement import Group, Piece, as_group
from ckpt.worker.tensors import Local, dtype_name

SMALL_BYTES = 16 << 10


@dataclass(frozen=True, kw_only=True)
class World:
    """This process's rank, the world size, and the keys that the user declares as equal on all ranks."""

    rank: int = 0
    world_size: int = 1
    declared: tuple[str, ...] = ()  # paths of tensors or of containers, parts joined by '/'

    def declares(self, key: str) -> bool:
        return any(key == prefix or key.startswith(f"{prefix}/") for prefix in self.declared)

    @property
    def everyone(self) -> range:
        return range(self.world_size)

    @property
    def is_torchs(self) -> bool:
        """Whether torch's process groups use the same rank numbers and world size as this World."""
        if not in_use():
            return False
        dist = torch.distributed
        if not dist.is_available() or not dist.is_initialized():
            return False
        return (dist.get_rank(), dist.get_world_size()) == (self.rank, self.world_size)


class Proofs:
    """The replicas that the objects of a state prove."""

    def __init__(self, state: Any, world: World) -> None:
        self._groups: dict[int, Group] = {}  # by id of a parameter
        if world.world_size > 1 and world.is_torchs:
            for module in modules_in(state):
                self._learn(module)

    def of_module(self, module: torch.nn.Module) -> Iterator[tuple[tuple[Any, ...], torch.Tensor, Group]]:
        """For each replicated parameter: its path in the module's state, the parameter and its group."""
        for name, parameter in module.named_parameters(remove_duplicate=False) if self._groups else ():
            if (group := self._groups.get(id(parameter))) is not None:
                yield (name,), parameter, group

    def of_optimizer(
        self, optimizer: torch.optim.Optimizer, state: dict[str, Any]
    ) -> Iterator[tuple[tuple[Any, ...], torch.Tensor, Group]]:
        """For each tensor that the optimizer keeps for a replicated parameter: its path, the tensor and its group."""
        if not self._groups or (torchs := _unwrapped(optimizer)) is None:
            return
        parameters = [parameter for group in torchs.param_groups for parameter in group["params"]]
        for index, parameter in enumerate(parameters):
            if (group := self._groups.get(id(parameter))) is None:
                continue
            kept = torchs.state.get(parameter, {})
            for name, value in state.get("state", {}).get(index, {}).items():
                if isinstance(value, torch.Tensor) and value is kept.get(name) and value.shape == parameter.shape:
                    yield ("state", index, name), value, group

    def _learn(self, module: torch.nn.Module) -> None:
        for part in module.modules():
            if not isinstance(part, torch.nn.parallel.DistributedDataParallel) or part._comm_hooks:
                continue
            group = as_group(torch.distributed.get_process_group_ranks(part.process_group))
            ignored = set(part.parameters_to_ignore)
            for name, parameter in part.module.named_parameters(remove_duplicate=False):
                if name not in ignored and len(group) > 1:
                    self._groups[id(parameter)] = group


@dataclass(frozen=True, kw_only=True)
class Share:
    """The part of a replicated tensor that this rank stores: rows along one dimension of the local tensor."""

    dim: int
    start: int
    rows: int
    owners: tuple[int, int]  # first and last group member that stores a part of it

    def of(self, tensor: Local) -> Local:
        if isinstance(tensor, np.ndarray):
            return tensor[(*(slice(None),) * self.dim, slice(self.start, self.start + self.rows))]
        return tensor.narrow(self.dim, self.start, self.rows)

    def box(self, box: Box) -> Box:
        """This part's box, given the local tensor's box."""
        offsets, sizes = list(box.offsets), list(box.sizes)
        offsets[self.dim] += self.start
        sizes[self.dim] = self.rows
        return Box(tuple(offsets), tuple(sizes))


def share_out(replicas: dict[int, Piece], rank: int) -> tuple[dict[int, Share], dict[str, int]]:
    """Divides the tensors of each group among its members.

    Args:
        replicas: pieces with a group, by any number, which the returned shares use too; in the order of the state.

    Returns:
        This rank's share of each tensor that not every rank stores. And a token of the structure of each group, with
        the number of ranks that have to send it.
    """
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, replica in replicas.items():
        if replica.group and replica.nbytes >= SMALL_BYTES and rank in replica.group:
            groups[tuple(replica.group)].append(number)
    shares: dict[int, Share] = {}
    tokens: dict[str, int] = {}
    for ranks, numbers in groups.items():
        shares |= _cut({number: replicas[number] for number in numbers}, ranks.index(rank), len(ranks))
        pieces = map(replicas.__getitem__, numbers)
        rows = [(piece.key, dtype_name(piece.data.dtype), piece.box.offsets, piece.box.sizes) for piece in pieces]
        tokens[checksum(dump_json({"ranks": ranks, "tensors": rows}))] = len(ranks)
    return shares, tokens


def _cut(replicas: dict[int, Piece], member: int, members: int) -> dict[int, Share]:
    total = sum(replica.nbytes for replica in replicas.values())
    low, high = (total * m // members for m in (member, member + 1))
    shares, start = {}, 0
    for number, replica in replicas.items():
        sizes, nbytes = replica.box.sizes, replica.nbytes
        dim = next(i for i, size in enumerate(sizes) if size > 1)
        row_bytes = nbytes // sizes[dim]
        first, end = (min(max(0, x - start) // row_bytes, sizes[dim]) for x in (low, high))
        owners = (start * members // total, -(-(start + nbytes) * members // total) - 1)
        shares[number] = Share(dim=dim, start=first, rows=end - first, owners=owners)
        start += nbytes
    return shares


def _unwrapped(optimizer: Any) -> torch.optim.Optimizer | None:
    """The torch optimizer: this one, or the one in its attribute `optimizer` (accelerate wraps optimizers so)."""
    seen: set[int] = set()
    while is_optimizer(optimizer) and id(optimizer) not in seen:
        if type(optimizer).__module__.startswith("torch.optim."):
            torchs: torch.optim.Optimizer = optimizer
            return torchs
        seen.add(id(optimizer))
        optimizer = getattr(optimizer, "optimizer", None)
    return None


def modules_in(value: Any, seen: set[int] | None = None) -> Iterator[torch.nn.Module]:
    """All modules in a state, without their submodules."""
    seen = set() if seen is None else seen
    if is_module(value):
        yield value
    elif isinstance(value, (dict, list, tuple)) and id(value) not in seen:
        seen.add(id(value))
        for item in value.values() if isinstance(value, dict) else value:
            yield from modules_in(item, seen)
