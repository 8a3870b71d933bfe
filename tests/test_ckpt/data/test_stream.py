"""A stream continues at another world size where its library begins at a position, and is refused where not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from ckpt.data import ElasticStream, batch_plan
from ckpt.errors import StateError

SAMPLES, GLOBAL_BATCH = 40, 12


def _grain_streams(world_size: int) -> list[ElasticStream]:
    grain = pytest.importorskip("grain", reason="grain is not installed: pip install grain")
    plan = batch_plan(GLOBAL_BATCH, world_size, max_micro_batch=3, env={})
    source = grain.MapDataset.source(list(range(SAMPLES))).shuffle(seed=5).repeat()

    def of_rank(rank: int) -> ElasticStream:
        def begin(position: int) -> Iterable[Any]:
            rest = source[position + rank :: world_size].batch(plan.micro_batch)
            return rest.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=8))

        return ElasticStream(begin, plan)

    return [of_rank(rank) for rank in range(world_size)]


def _train(streams: list[ElasticStream], steps: int) -> list[list[int]]:
    its = [iter(stream) for stream in streams]
    history = []
    for _ in range(steps):
        seen = []
        for stream, it in zip(streams, its, strict=True):
            while True:
                seen += [int(sample) for sample in next(it)]
                if stream.ends_step:
                    break
        history.append(sorted(seen))
    return history


def test_grain_continues_at_other_world_sizes_with_what_its_threads_have_prefetched_not_counted() -> None:
    expected = _train(_grain_streams(1), 9)
    history: list[list[int]] = []
    state: dict[str, Any] | None = None
    for world_size, steps in ((2, 3), (4, 4), (1, 2)):
        streams = _grain_streams(world_size)
        for stream in streams:
            if state is not None:
                stream.load_state_dict(state)
        history += _train(streams, steps)
        states = [stream.state_dict() for stream in streams]
        assert all(one == states[0] for one in states)
        state = states[0]
    assert history == expected and state == {"position": 9 * GLOBAL_BATCH}


class _Numbers(IterableDataset):
    """This rank's part of a stream that cannot be divided again."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size

    def __iter__(self) -> Any:
        return iter(range(self.rank, 1000, self.world_size))


def _loader_streams(world_size: int) -> list[ElasticStream]:
    plan = batch_plan(GLOBAL_BATCH, world_size, max_micro_batch=3, env={})
    loaders = [StatefulDataLoader(_Numbers(rank, world_size), plan.micro_batch) for rank in range(world_size)]
    return [ElasticStream(None, plan, loader=loader) for loader in loaders]


def test_a_loader_with_a_state_of_each_rank_continues_at_the_same_world_size() -> None:
    expected = _train(_loader_streams(2), 5)
    first = _loader_streams(2)
    history = _train(first, 2)
    again = _loader_streams(2)
    for stream, saved in zip(again, first, strict=True):
        stream.load_state_dict(saved.state_dict())
    assert history + _train(again, 3) == expected


def test_a_loader_with_a_state_of_each_rank_is_refused_at_another_world_size() -> None:
    first = _loader_streams(2)
    _train(first, 1)
    with pytest.raises(StateError, match=r"has a StatefulDataLoader of 2 ranks, this job has 4: .* cannot be divided"):
        _loader_streams(4)[0].load_state_dict(first[0].state_dict())


def test_an_iteration_that_a_loaded_state_has_passed_is_refused() -> None:
    (stream,) = _loader_streams(1)
    it = iter(stream)
    next(it)
    stream.load_state_dict(stream.state_dict())
    with pytest.raises(StateError, match="a state was loaded since"):
        next(it)


@pytest.mark.parametrize("position", [-1, None, True, "3"])
def test_a_damaged_position_is_refused(position: object) -> None:
    with pytest.raises(StateError, match="position: got"):
        _loader_streams(1)[0].load_state_dict({"position": position})
