"""Counts the micro-batches that the training loop has taken from a DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ckpt.data.sampler import ElasticSampler
from ckpt.errors import ConfigError, StateError


class ElasticLoader:
    """Wraps a DataLoader over an ElasticSampler; its state is the position of the training loop.

        loader = ElasticLoader(DataLoader(dataset, plan.micro_batch, sampler=sampler, num_workers=4))
        state = {"model": model, "optimizer": optimizer, "data": loader}
        while loader.epoch < epochs:
            for batch in loader:                 # the rest of the epoch, one micro-batch at a time
                (loss_of(batch) / plan.accumulation).backward()
                if not loader.ends_step:         # more micro-batches follow before the optimizer's step
                    continue
                optimizer.step(); optimizer.zero_grad(); step += 1
                if ckpt.should_save(step): ckpt.save(step, state)

    A step counts as consumed when its last micro-batch is returned. Batches that worker processes have prefetched do
    not count. Neither do the micro-batches of an incomplete step, because their gradients are not in the weights. The
    seeds of worker processes follow from the sampler's seed and position, not from torch's global generator. An
    iteration begins at the position, so a loop that was left in the middle of an epoch continues there.
    """

    def __init__(self, loader: Any) -> None:
        """Wraps a loader.

        Args:
            loader: a torch DataLoader, a torchdata StatefulDataLoader, or any iterable with their
                `sampler` and `batch_size`, or a `batch_sampler` with both.

        Raises:
            ConfigError: its sampler is not an ElasticSampler, or its batch size is not the plan's micro-batch.
        """
        batches = getattr(loader, "batch_sampler", None)
        found = [getattr(holder, "sampler", None) for holder in (loader, batches)]
        sampler = next((one for one in found if isinstance(one, ElasticSampler)), None)
        if sampler is None:
            raise ConfigError(
                f"ElasticLoader: got a {type(loader).__name__} whose sampler is a {type(found[0]).__name__}, "
                "expected an ElasticSampler"
            )
        size = next((n for n in (getattr(h, "batch_size", None) for h in (loader, batches)) if n is not None), None)
        if size != sampler.plan.micro_batch:
            raise ConfigError(
                f"ElasticLoader: the loader has batch_size {size}, expected the plan's micro_batch, "
                f"{sampler.plan.micro_batch}"
            )
        self.sampler = sampler
        self.loader = loader
        self._has_own_draws = self._give_draws()
        self._iteration = 0
        self._handed_out = 0  # micro-batches of the current step that were returned

    def __iter__(self) -> Iterator[Any]:
        """The micro-batches of the rest of the epoch.

        Raises:
            StateError: a later iteration has begun, or a state was loaded; samples prefetched here would repeat.
        """
        self._iteration += 1
        iteration = self._iteration
        self._handed_out = 0
        if self._has_own_draws:
            self.loader.generator.manual_seed(self.sampler.seed_here)
        for batch in self.loader:
            if iteration != self._iteration:
                raise StateError(
                    "ElasticLoader: a later iteration has begun, or a state was loaded since this one began; "
                    "iterate over the loader again"
                )
            self._handed_out += 1
            if self.ends_step:
                self.sampler.advance()
            yield batch
            if self.ends_step:
                self._handed_out = 0

    def _give_draws(self) -> bool:
        """Gives a DataLoader without a generator one of its own. Returns whether it did.

        Each iteration draws the seed of the worker processes. From torch's global generator, it would change what the
        training draws after a restart, once load() has restored that generator.
        """
        if getattr(self.loader, "generator", self) is not None:
            return False
        import torch

        self.loader.generator = torch.Generator()
        return True

    def endless(self) -> Iterator[Any]:
        """The micro-batches from the position on, epoch after epoch, for a loop that counts steps."""
        while True:
            yield from self

    def __len__(self) -> int:
        """The number of micro-batches of a whole epoch on one rank, whatever the position."""
        return len(self.sampler) // self.sampler.plan.micro_batch

    @property
    def ends_step(self) -> bool:
        """Whether the micro-batch returned last is the last of its step."""
        return self._handed_out == self.sampler.plan.accumulation

    @property
    def epoch(self) -> int:
        """The epoch of the next step."""
        return self.sampler.epoch

    def state_dict(self) -> dict[str, Any]:
        """The position after the last whole step; the same on all ranks."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Moves to a saved position; see ElasticSampler.load_state_dict."""
        self.sampler.load_state_dict(state)
        self._iteration += 1
        self._handed_out = 0
