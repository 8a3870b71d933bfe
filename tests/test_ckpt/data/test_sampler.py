"""Every sample counts once an epoch, whatever happens to the ranks."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from data_kit import Attempt, make_loaders, run
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from ckpt.data import BatchPlan, ElasticSampler, batch_plan
from ckpt.errors import ConfigError, StateError

SIZES = (1, 2, 3, 4, 6, 12)  # all divide a global batch of 12

attempts = st.lists(
    st.builds(Attempt, st.sampled_from(SIZES), st.integers(0, 9), st.none() | st.integers(0, 9)), min_size=1, max_size=6
)


def plan_of(world_size: int, global_batch: int) -> BatchPlan:
    return batch_plan(global_batch, world_size, env={})


@settings(max_examples=60)
@given(attempts=attempts, samples=st.integers(1, 100), seed=st.integers(0, 3), shuffle=st.booleans())
@example(attempts=[Attempt(2, 3, 1), Attempt(4, 2), Attempt(3, 9)], samples=50, seed=0, shuffle=True)
def test_each_step_sees_the_samples_that_a_fixed_run_sees(
    attempts: list[Attempt], samples: int, seed: int, shuffle: bool
) -> None:
    """Resizes and losses change neither a step's samples nor, with `carry`, how often an epoch has each: once."""
    steps = 2 * -(-samples // 12)
    history = run([*attempts, Attempt(1, steps)], samples, 12, seed=seed, shuffle=shuffle)
    fixed = run([Attempt(1, len(history))], samples, 12, seed=seed, shuffle=shuffle)
    assert history == fixed
    seen = Counter(sample for step in history for sample in step)
    whole, rest = divmod(len(history) * 12, samples)
    assert set(seen) == set(range(samples))
    assert Counter(seen.values()) == Counter({whole: samples - rest, whole + 1: rest}) - Counter()


@settings(max_examples=40)
@given(attempts=attempts, samples=st.integers(12, 100), tail=st.sampled_from(["drop", "pad"]))
def test_dropped_and_padded_epochs_are_the_same_after_resizes_and_losses(
    attempts: list[Attempt], samples: int, tail: str
) -> None:
    steps = samples // 12 if tail == "drop" else -(-samples // 12)
    history = run([*attempts, Attempt(1, 2 * steps)], samples, 12, tail=tail)
    assert history == run([Attempt(1, len(history))], samples, 12, tail=tail)
    for epoch in range(len(history) // steps):
        seen = Counter(sample for step in history[epoch * steps : (epoch + 1) * steps] for sample in step)
        if tail == "drop":
            assert set(seen.values()) == {1} and samples - len(seen) == samples % 12
        else:
            assert set(seen) == set(range(samples)) and sum(seen.values()) == steps * 12 and max(seen.values()) <= 2


@pytest.mark.parametrize("make", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("persistent", [False, True])
def test_what_workers_have_prefetched_does_not_count(make: Any, persistent: bool) -> None:
    """Two worker processes a rank, each three batches ahead, as ranks come and go."""
    schedule = [Attempt(2, 3), Attempt(4, 4, 2), Attempt(2, 2, 0), Attempt(3, 5)]
    workers = {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": persistent}
    history = run(schedule, 70, 12, make=make, loader_options=workers)
    assert history == run([Attempt(1, len(history))], 70, 12)
    first = Counter(sample for step in history for sample in step)
    assert set(first) == set(range(70)) and sum(first.values()) == len(history) * 12


def stateful(world_size: int, workers: int) -> list[StatefulDataLoader]:
    return [loader.loader for loader in make_loaders(
        world_size, 40, 12, make=StatefulDataLoader, loader_options={"num_workers": workers}
    )]  # fmt: skip


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_of_a_stateful_data_loader_serves_another_world_size(workers: int) -> None:
    """torchdata's loader alone, with advance() after each step: in mid-epoch, and after the end of one."""
    expected = run([Attempt(1, 6)], 40, 12)

    def train(loaders: list[StatefulDataLoader], steps: int) -> list[list[int]]:
        its = [iter(loader) for loader in loaders]
        history = []
        for _ in range(steps):
            seen: list[int] = []
            for number, loader in enumerate(loaders):
                for _ in range(loader.sampler.plan.accumulation):
                    if (batch := next(its[number], None)) is None:
                        its[number] = iter(loader)
                        batch = next(its[number])
                    seen += batch.tolist()
                loader.sampler.advance()
            history.append(sorted(seen))
        return history

    first = stateful(4, workers)
    history = train(first, 2)
    second = stateful(2, workers)
    for rank, loader in enumerate(second):
        loader.load_state_dict(first[rank].state_dict())
    history += train(second, 3)  # across the epoch's end, which the fourth step carries over
    third = stateful(3, workers)
    for rank, loader in enumerate(third):
        loader.load_state_dict(second[rank % 2].state_dict())
    history += train(third, 1)
    assert history == expected


def test_orders_differ_by_epoch_and_seed_and_are_the_same_on_all_machines() -> None:
    sampler = ElasticSampler(10, plan_of(1, 10), seed=1)
    first = list(sampler)
    sampler.advance()
    assert (sampler.epoch, sampler.position) == (1, 0)
    second, other = list(sampler), list(ElasticSampler(10, plan_of(1, 10), seed=2))
    assert sorted(first) == sorted(second) == sorted(other) == list(range(10))
    assert first == [1, 0, 9, 8, 6, 3, 7, 4, 2, 5] and first != second and first != other


def test_with_shards_an_epoch_goes_through_one_shard_after_the_other_at_any_world_size() -> None:
    shards = [3, 5, 0, 4]
    of_shard = [number for number, length in enumerate(shards) for _ in range(length)]
    orders = []
    for seed in range(8):
        order = list(ElasticSampler(12, plan_of(1, 4), seed=seed, shards=shards))
        assert sorted(order) == list(range(12))
        assert len(list(itertools.groupby(order, key=of_shard.__getitem__))) == 3
        ranks = [list(ElasticSampler(12, plan_of(2, 4), rank=rank, seed=seed, shards=shards)) for rank in range(2)]
        assert [sample for step in zip(*ranks, strict=True) for sample in step] == order
        orders.append(order)
    assert len({tuple(order) for order in orders}) == 8 and any(order != sorted(order) for order in orders)


def test_the_state_is_a_few_numbers_however_large_the_dataset() -> None:
    sampler = ElasticSampler(10**12, plan_of(2, 1024), rank=1, shuffle=False)
    sampler.advance(1000)
    assert sampler.state_dict() == {
        "epoch": 0, "position": 1024_000, "samples": 10**12, "seed": 0, "shuffle": False
    }  # fmt: skip
    again = ElasticSampler(10**12, plan_of(4, 1024), rank=3, shuffle=False)
    again.load_state_dict(sampler.state_dict())
    assert next(iter(again)) == 1024_003


def test_a_global_batch_that_changes_in_mid_epoch_leaves_no_sample_out() -> None:
    small = ElasticSampler(20, plan_of(1, 4))
    small.advance(2)
    large = ElasticSampler(20, plan_of(1, 6))
    large.load_state_dict(small.state_dict())
    its = iter(small)
    assert list(large)[:12] == [next(its) for _ in range(12)]
    large.advance(2)
    assert (large.epoch, large.position) == (1, 0)


def test_a_global_batch_may_be_larger_than_the_dataset() -> None:
    sampler = ElasticSampler(5, plan_of(1, 12))
    assert Counter(Counter(sampler).values()) == Counter({2: 3, 3: 2})
    sampler.advance()
    assert (sampler.epoch, sampler.position) == (2, 2)


def test_a_loop_that_never_advances_is_warned(caplog: pytest.LogCaptureFixture) -> None:
    sampler = ElasticSampler(12, plan_of(1, 4))
    assert list(sampler) and not caplog.messages
    assert list(sampler)
    assert "begins again at sample 0: call advance()" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": 13}, "number of samples: the checkpoint has 12, this sampler has 13"),
        ({"seed": 5}, "seed: the checkpoint has 0, this sampler has 5"),
        ({"shuffle": False}, "shuffle: the checkpoint has True"),
        ({"shards": [6, 6]}, "shards: the checkpoint has None"),
    ],
)
def test_another_order_is_refused_when_a_position_is_loaded(changes: dict[str, Any], message: str) -> None:
    saved = ElasticSampler(12, plan_of(1, 4)).state_dict()
    other = ElasticSampler(**{"dataset": 12, "plan": plan_of(1, 4), **changes})
    with pytest.raises(StateError, match=message):
        other.load_state_dict(saved)


@pytest.mark.parametrize("position", [-1, 1.5, "3", None, True])
def test_a_damaged_position_is_refused(position: object) -> None:
    sampler = ElasticSampler(12, plan_of(1, 4))
    with pytest.raises(StateError, match="position: got"):
        sampler.load_state_dict({**sampler.state_dict(), "position": position})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": 0}, "dataset of 0 samples"),
        ({"dataset": []}, "dataset of 0 samples"),
        ({"shards": [6, 5]}, "shards: got 11 samples in 2 shards, expected the dataset's 12"),
        ({"tail": "keep"}, "tail: got 'keep', expected one of"),
        ({"dataset": 3, "tail": "drop"}, "drops all 3 samples"),
        ({"seed": -1}, "seed: got -1"),
        ({"seed": 1.5}, "seed: got 1.5"),
        ({"rank": 2}, "rank: got 2, expected 0 to 1"),
        ({"env": {"RANK": "x"}}, "rank: got x"),
    ],
)
def test_unusable_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ElasticSampler(**{"dataset": 12, "plan": plan_of(2, 4), "env": {}, **options})


def test_ranks_divide_each_step_between_them() -> None:
    ranks = [np.array(list(ElasticSampler(24, plan_of(3, 6), rank=rank, shuffle=False))) for rank in range(3)]
    assert [rank.tolist()[:2] for rank in ranks] == [[0, 3], [1, 4], [2, 5]]
    assert sorted(np.concatenate(ranks).tolist()) == list(range(24))
