"""A run of several attempts: every rank's real loader, and which samples each step of the surviving history saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, Dataset

from ckpt.data import ElasticLoader, ElasticSampler, batch_plan


@dataclass(frozen=True)
class Attempt:
    """One life of the ranks."""

    world_size: int
    steps: int  # that it trains
    saved: int | None = None  # the last of these steps that a checkpoint survives of; None: all of them


class Numbers(Dataset):
    """Sample i is the number i."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        return index


MakeLoader = Callable[..., Any]


def make_loaders(
    world_size: int, samples: int, global_batch: int, *, make: MakeLoader = DataLoader, max_micro_batch: int = 2,
    loader_options: dict[str, Any] | None = None, **options: Any,
) -> list[ElasticLoader]:  # fmt: skip
    """One for each rank."""
    plan = batch_plan(global_batch, world_size, max_micro_batch=max_micro_batch, env={})
    samplers = [ElasticSampler(samples, plan, rank=rank, **options) for rank in range(world_size)]
    data = Numbers(samples)
    return [
        ElasticLoader(make(data, batch_size=plan.micro_batch, sampler=sampler, **(loader_options or {})))
        for sampler in samplers
    ]


def run(attempts: Sequence[Attempt], samples: int, global_batch: int, **options: Any) -> list[list[int]]:
    """The samples of each step of the surviving history, each step's sorted."""
    history: list[list[int]] = []
    state: dict[str, Any] | None = None
    for attempt in attempts:
        loaders = make_loaders(attempt.world_size, samples, global_batch, **options)
        if state is not None:
            for loader in loaders:
                loader.load_state_dict(state)
        saved = attempt.steps if attempt.saved is None else min(attempt.saved, attempt.steps)
        batches = [loader.endless() for loader in loaders]
        for step in range(attempt.steps):
            seen: list[int] = []
            for loader, its in zip(loaders, batches, strict=True):
                for _ in range(loader.sampler.plan.accumulation):
                    seen += next(its).tolist()
                assert loader.ends_step
            if step < saved:
                history.append(sorted(seen))
            states = [loader.state_dict() for loader in loaders]
            assert all(one == states[0] for one in states)
            if step + 1 == saved:
                state = states[0]
        for its in batches:
            its.close()
    return history
