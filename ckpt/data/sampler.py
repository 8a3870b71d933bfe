"""The order of an epoch's samples, and the position of all ranks in it."""

from __future__ import annotations

import hashlib
import logging
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any, Literal, get_args

import numpy as np

from ckpt.data.batch_plan import BatchPlan
from ckpt.errors import ConfigError, StateError

Tail = Literal["carry", "drop", "pad"]

_CHUNK = 4096  # samples that are looked up at once

# What determines the order, by its key in the state. `shards` is a checksum, and missing without shards.
_ORDERED_BY = (("samples", "number of samples"), ("seed", "seed"), ("shuffle", "shuffle"), ("shards", "shards"))

log = logging.getLogger(__name__)


class ElasticSampler:
    """Gives each rank its samples of an epoch, and continues where any number of ranks has stopped.

        plan = batch_plan(global_batch=512, max_micro_batch=16)
        sampler = ElasticSampler(dataset, plan, seed=1)
        loader = ElasticLoader(DataLoader(dataset, plan.micro_batch, sampler=sampler, num_workers=4))

    A seed and an epoch determine one order of all samples. Each step takes the next `global_batch` samples, whatever
    the world size; rank r takes every world_size-th of them, starting with the r-th. The position is one number for all
    ranks, so any rank's checkpoint serves every rank of any world size.

    `advance()` moves the position after the training loop has consumed a step, not when a DataLoader prefetches
    samples. ElasticLoader calls it; a loop without ElasticLoader calls it after each step. Without shuffling the order
    needs no memory. With shuffling it needs 4 bytes a sample (8 from 2**31 samples on), and twice that in the last
    step.

    `tail` selects what happens if the epoch's samples are not a multiple of the global batch:
            carry  the last step is filled from the next epoch, which then begins after these samples. Every sample is
            seen
                       exactly once an epoch.
        drop   the samples that do not fill a step are not seen in this epoch.
        pad    the last step is filled with the epoch's first samples, which are seen twice.
    """

    def __init__(
        self,
        dataset: Sized | int,
        plan: BatchPlan,
        *,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        tail: Tail = "carry",
        shards: Sequence[int] | None = None,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        """Starts at epoch 0; `load_state_dict` changes the position.

        Args:
            dataset: a map-style dataset, or its number of samples.
            plan: from `batch_plan`.
            rank: rank of this process; default: RANK, or 0.
            shuffle: whether each epoch has a new order; else the order is 0, 1, 2, ...
            seed: seed of all orders, at least 0; the same on all ranks.
            tail: see the class docstring.
            shards: number of samples of each shard of the dataset, in order. With it, an epoch shuffles the shards, and
                the samples within each shard, so that a cache of a few shards serves all reads.
            env: the environment.

        Raises:
            ConfigError: an argument is unusable, or `drop` would drop all samples.
        """
        samples = dataset if isinstance(dataset, int) else len(dataset)
        if isinstance(samples, bool) or samples < 1:
            raise ConfigError(f"ElasticSampler: got a dataset of {samples} samples, expected at least 1")
        if tail not in get_args(Tail):
            raise ConfigError(f"ElasticSampler: tail: got {tail!r}, expected one of {list(get_args(Tail))}")
        if tail == "drop" and samples < plan.global_batch:
            raise ConfigError(
                f"ElasticSampler: tail='drop' drops all {samples} samples, which do not fill one global batch of "
                f"{plan.global_batch}"
            )
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ConfigError(f"ElasticSampler: seed: got {seed!r}, expected a whole number of at least 0")
        if shards is not None and (sum(shards) != samples or min(shards, default=0) < 0):
            raise ConfigError(
                f"ElasticSampler: shards: got {sum(shards)} samples in {len(shards)} shards, expected the dataset's "
                f"{samples}"
            )
        text = env.get("RANK", "0") if rank is None else str(rank)
        if not text.isdecimal() or int(text) >= plan.world_size:
            raise ConfigError(f"ElasticSampler: rank: got {text}, expected 0 to {plan.world_size - 1}, as in the plan")
        self.plan = plan
        self.epoch = 0
        self.position = 0  # samples of this epoch that all ranks together have consumed
        self._samples = samples
        self._rank = int(text)
        self._shuffle = bool(shuffle)
        self._seed = seed
        self._tail = tail
        self._shards = None if shards is None else np.asarray(shards, np.int64)
        self._orders: dict[int, np.ndarray] = {}
        self._given_to_the_end: tuple[int, int] | None = None  # where an iteration that reached the end began

    def __iter__(self) -> Iterator[int]:
        """This rank's samples, from the position to the end of the epoch."""
        if self._given_to_the_end == (self.epoch, self.position):
            log.warning(
                "ElasticSampler: epoch %d begins again at sample %d: call advance() after each step, or use "
                "ElasticLoader", self.epoch, self.position,
            )  # fmt: skip
        return _Indices(self)

    def __len__(self) -> int:
        """The number of this rank's samples in a whole epoch. With `carry`, some epochs have one step less."""
        whole, rest = divmod(self._samples, self.plan.global_batch)
        return (whole + (rest > 0 and self._tail != "drop")) * self.plan.rank_batch

    @property
    def seed_here(self) -> int:
        """A seed for this rank at this position, for what else is drawn there."""
        text = f"{self._seed} {self.epoch} {self.position} {self._rank}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1

    def advance(self, steps: int = 1) -> None:
        """Counts steps as consumed. All ranks call it between a step and the save of its state."""
        for _ in range(steps):
            self.position += self.plan.global_batch
            self._begin_epochs()

    def state_dict(self) -> dict[str, Any]:
        """The position, and all that determines the order. The same on all ranks."""
        return self._state(self.epoch, self.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Moves to a saved position. The world size and the global batch may differ from those at the save.

        Raises:
            StateError: the number of samples, the seed, `shuffle` or the shards differ, which would change the order.
        """
        mine = self.state_dict()
        for key, what in _ORDERED_BY:
            theirs, own = state.get(key), mine.get(key)
            if theirs != own:
                raise StateError(
                    f"ElasticSampler: {what}: the checkpoint has {theirs!r}, this sampler has {own!r}; "
                    "expected the same, as another order would repeat some samples and leave out others. To begin "
                    "with a new epoch, load without the sampler (strict=False)"
                )
        epoch, position = state.get("epoch"), state.get("position")
        for name, value in (("epoch", epoch), ("position", position)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise StateError(f"ElasticSampler: {name}: got {value!r:.100}, expected a whole number of at least 0")
        self.epoch, self.position = int(epoch or 0), int(position or 0)
        self._given_to_the_end = None
        self._begin_epochs()

    def _begin_epochs(self) -> None:
        """Moves to the next epoch if this one has no step left."""
        if self._tail == "drop":
            if self._samples - self.position < self.plan.global_batch:
                self.epoch, self.position = self.epoch + 1, 0
        elif self._tail == "pad":
            if self.position >= self._samples:
                self.epoch, self.position = self.epoch + 1, 0
        else:
            epochs, self.position = divmod(self.position, self._samples)
            self.epoch += epochs

    def _state(self, epoch: int, position: int) -> dict[str, Any]:
        order = {"samples": self._samples, "seed": self._seed, "shuffle": self._shuffle}
        if self._shards is not None:
            order["shards"] = zlib.crc32(self._shards.astype("<i8").tobytes())
        return {"epoch": epoch, "position": position, **order}

    def _steps_left(self) -> int:
        left = self._samples - self.position
        return left // self.plan.global_batch if self._tail == "drop" else -(-left // self.plan.global_batch)

    def _samples_at(self, epoch: int, positions: np.ndarray) -> list[int]:
        """The samples at some positions of an epoch, which may be beyond its end; int64 [n]."""
        later, inside = np.divmod(positions, self._samples)
        if not self._shuffle:
            return inside.tolist()
        if self._tail != "carry":
            later[:] = 0
        for known in [known for known in self._orders if known < epoch]:
            del self._orders[known]
        found = np.empty(len(positions), np.int64)
        for epochs in np.unique(later):
            at = later == epochs
            found[at] = self._order(epoch + int(epochs))[inside[at]]
        return found.tolist()

    def _order(self, epoch: int) -> np.ndarray:
        """All samples in an epoch's order; int32 or int64 [samples]."""
        if epoch not in self._orders:
            # NumPy never changes RandomState's streams, so the order is the same with another version of NumPy.
            bits = np.random.MT19937(np.random.SeedSequence([self._seed, epoch]))
            stream = np.random.RandomState(bits)
            order = stream.permutation(self._samples) if self._shards is None else _by_shard(stream, self._shards)
            self._orders[epoch] = order.astype(np.int32) if self._samples < 1 << 31 else order
        return self._orders[epoch]


def _by_shard(stream: np.random.RandomState, shards: np.ndarray) -> np.ndarray:
    """All samples, shard after shard in a random order of the shards; int64 [samples]."""
    begins = np.cumsum(shards) - shards
    order = stream.permutation(len(shards))
    return np.concatenate([begins[shard] + stream.permutation(shards[shard]) for shard in order])


class _Indices:
    """One rank's samples of the rest of an epoch.

    torchdata's StatefulDataLoader saves an iterator's state with each batch that it requests. This state is also a
    position in all ranks' samples, so it serves another world size too.
    """

    def __init__(self, sampler: ElasticSampler) -> None:
        self._sampler = sampler
        self._begin()

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self._next == self._total:
            self._sampler._given_to_the_end = self._epoch, self._position
            raise StopIteration
        at = self._next % _CHUNK
        if at == 0 or not self._chunk:
            self._look_up()
        self._next += 1
        return self._chunk[at]

    def state_dict(self) -> dict[str, Any]:
        """The position after the whole steps that were returned."""
        plan = self._sampler.plan
        steps = self._next // plan.rank_batch
        return self._sampler._state(self._epoch, self._position + steps * plan.global_batch)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sampler.load_state_dict(state)
        self._begin()

    def _begin(self) -> None:
        sampler = self._sampler
        self._epoch, self._position = sampler.epoch, sampler.position
        self._total = sampler._steps_left() * sampler.plan.rank_batch
        self._next = 0
        self._chunk: list[int] = []

    def _look_up(self) -> None:
        sampler = self._sampler
        first = self._next - self._next % _CHUNK
        local = np.arange(first, min(first + _CHUNK, self._total), dtype=np.int64)
        positions = self._position + sampler._rank + sampler.plan.world_size * local
        self._chunk = sampler._samples_at(self._epoch, positions)
