"""Tensors that several ranks hold alike: what proves it, and who stores which part of them.

Proof is structural, values are never looked at:

- a DTensor that is replicated over a dimension of its mesh;
- a parameter of a DistributedDataParallel module in the state, unless it is ignored or the module has a communication
  hook: DDP makes parameters equal at its construction, and gradients at every step;
- what one of torch's own optimizers, wrapped or not, keeps for such a parameter in the parameter's shape;
- what lies below a key that the user declares.

Everything else is kept by each rank for itself: DDP's buffers too, which differ from forward to forward, and plain
tensors taken from a DDP module by hand. Tensors below SMALL_BYTES are stored by every rank: reading them elsewhere
would cost more.

The members of a group lay its tensors end to end and cut the line into equal parts, at rows of a tensor; each stores
one part. All find the same cuts by themselves, since they see the same structure. Whether they do is checked at the
commit, by the agents: each rank tells a token of the structure, and a save whose tokens do not match is dropped.
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
from ckpt.worker.placement import Group, as_group
from ckpt.worker.tensors import Local

SMALL_BYTES = 16 << 10


@dataclass(frozen=True, kw_only=True)
class World:
    """Which rank of how many this is, and what the user says is the same on all of them."""

    rank: int = 0
    world_size: int = 1
    declared: tuple[str, ...] = ()  # keys: the paths of tensors or of what holds them, parts joined by '/'

    def declares(self, key: str) -> bool:
        return any(key == prefix or key.startswith(f"{prefix}/") for prefix in self.declared)

    @property
    def everyone(self) -> range:
        return range(self.world_size)

    @property
    def is_torchs(self) -> bool:
        """Whether torch's process groups count the ranks as we do: then what they say of ranks holds here."""
        if not in_use():
            return False
        dist = torch.distributed
        if not dist.is_available() or not dist.is_initialized():
            return False
        return (dist.get_rank(), dist.get_world_size()) == (self.rank, self.world_size)


class Proofs:
    """What the objects of a state prove about their tensors."""

    def __init__(self, state: Any, world: World) -> None:
        self._groups: dict[int, Group] = {}  # by id of a parameter
        if world.world_size > 1 and world.is_torchs:
            for module in _modules(state, set()):
                self._learn(module)

    def of_module(self, module: torch.nn.Module) -> Iterator[tuple[tuple[Any, ...], torch.Tensor, Group]]:
        """Path in the module's state, parameter and group of each replicated parameter."""
        for name, parameter in module.named_parameters(remove_duplicate=False) if self._groups else ():
            if (group := self._groups.get(id(parameter))) is not None:
                yield (name,), parameter, group

    def of_optimizer(
        self, optimizer: torch.optim.Optimizer, state: dict[str, Any]
    ) -> Iterator[tuple[tuple[Any, ...], torch.Tensor, Group]]:
        """Path in the optimizer's state, tensor and group of what it keeps for replicated parameters."""
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
    """What this rank stores of a replicated tensor: some rows along one dimension of the local tensor."""

    dim: int
    start: int
    rows: int
    owners: tuple[int, int]  # first and last member of the group that stores some of it

    def of(self, tensor: Local) -> Local:
        if isinstance(tensor, np.ndarray):
            return tensor[(*(slice(None),) * self.dim, slice(self.start, self.start + self.rows))]
        return tensor.narrow(self.dim, self.start, self.rows)

    def box(self, box: Box) -> Box:
        """The part of the local tensor's box."""
        offsets, sizes = list(box.offsets), list(box.sizes)
        offsets[self.dim] += self.start
        sizes[self.dim] = self.rows
        return Box(tuple(offsets), tuple(sizes))


@dataclass(frozen=True, kw_only=True)
class Replica:
    """A local tensor that the ranks of a group hold alike."""

    group: Group
    key: str
    dtype: str
    box: Box
    nbytes: int


def share_out(replicas: dict[int, Replica], rank: int) -> tuple[dict[int, Share], dict[str, int]]:
    """Cuts groups' tensors among their members.

    Args:
        replicas: by any number, which the shares are given back by; in the order of the state.
        rank: ours.

    Returns:
        Our share of each tensor that is not stored by all; and for each group a token of its structure, with the
        number of ranks that have to tell it.
    """
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, replica in replicas.items():
        if replica.nbytes >= SMALL_BYTES and rank in replica.group:
            groups[tuple(replica.group)].append(number)
    shares: dict[int, Share] = {}
    tokens: dict[str, int] = {}
    for ranks, numbers in groups.items():
        shares |= _cut({number: replicas[number] for number in numbers}, ranks.index(rank), len(ranks))
        rows = [(r.key, r.dtype, r.box.offsets, r.box.sizes) for r in map(replicas.__getitem__, numbers)]
        tokens[checksum(dump_json({"ranks": ranks, "tensors": rows}))] = len(ranks)
    return shares, tokens


def _cut(replicas: dict[int, Replica], member: int, members: int) -> dict[int, Share]:
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
    """One of torch's own optimizers: this one, or what it wraps as its attribute `optimizer` (as accelerate does)."""
    seen: set[int] = set()
    while is_optimizer(optimizer) and id(optimizer) not in seen:
        if type(optimizer).__module__.startswith("torch.optim."):
            torchs: torch.optim.Optimizer = optimizer
            return torchs
        seen.add(id(optimizer))
        optimizer = getattr(optimizer, "optimizer", None)
    return None


def _modules(value: Any, seen: set[int]) -> Iterator[torch.nn.Module]:
    """All modules in a state, not those inside of them."""
    if is_module(value):
        yield value
    elif isinstance(value, (dict, list, tuple)) and id(value) not in seen:
        seen.add(id(value))
        for item in value.values() if isinstance(value, dict) else value:
            yield from _modules(item, seen)
