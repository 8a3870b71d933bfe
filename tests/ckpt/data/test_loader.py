"""The position is that of the training loop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from data_kit import Numbers, make_loaders
from torch.utils.data import BatchSampler, DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from trainer_kit import Node

from ckpt.data import ElasticLoader, ElasticSampler, batch_plan
from ckpt.errors import ConfigError, StateError


def one_loader(samples: int = 24, global_batch: int = 6, micro_batch: int = 3) -> ElasticLoader:
    return make_loaders(1, samples, global_batch, max_micro_batch=micro_batch)[0]


def test_a_step_counts_with_its_last_micro_batch() -> None:
    loader = one_loader()
    its, seen = iter(loader), []
    for _ in range(3):
        next(its)
        seen.append((loader.ends_step, loader.sampler.position))
    assert seen == [(False, 0), (True, 6), (False, 6)]


def test_a_loop_that_was_left_goes_on_where_it_was() -> None:
    loader = one_loader()
    whole = [batch.tolist() for batch in one_loader()]
    begun = []
    for batch in loader:
        begun.append(batch.tolist())
        if len(begun) == 3:  # in the middle of the second step, which is trained anew
            break
    assert begun[:2] + [batch.tolist() for batch in loader] == whole
    assert loader.epoch == 1


def test_an_iteration_that_another_has_overtaken_is_refused() -> None:
    loader = one_loader()
    old = iter(loader)
    next(old)
    next(iter(loader))
    with pytest.raises(StateError, match="a later iteration has begun"):
        next(old)
    current = iter(loader)
    next(current)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(StateError, match="a state was loaded"):
        next(current)


def test_its_length_is_that_of_a_whole_epoch() -> None:
    loader = one_loader(samples=25)
    assert len(loader) == 10  # five steps, the last of which is carried over, of two micro-batches
    loader.sampler.advance(2)
    assert len(loader) == 10


def test_a_batch_sampler_of_the_scripts_own_is_found() -> None:
    plan = batch_plan(6, 1, max_micro_batch=3, env={})
    batches = BatchSampler(ElasticSampler(24, plan, rank=0), plan.micro_batch, drop_last=False)
    loader = ElasticLoader(DataLoader(Numbers(24), batch_sampler=batches))
    assert sorted(torch.cat(list(loader)).tolist()) == list(range(24))


def test_a_loader_that_does_not_fit_is_refused() -> None:
    plan = batch_plan(6, 1, max_micro_batch=3, env={})
    with pytest.raises(ConfigError, match="whose sampler is a SequentialSampler"):
        ElasticLoader(DataLoader(Numbers(24), batch_size=3))
    with pytest.raises(ConfigError, match=r"batch_size 2, expected the plan's micro_batch, 3"):
        ElasticLoader(DataLoader(Numbers(24), batch_size=2, sampler=ElasticSampler(24, plan, rank=0)))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.stop()


def test_the_position_is_in_the_checkpoint_with_the_step_it_belongs_to(node: Node) -> None:
    """Saved on one rank, loaded at another world size."""
    expected = [batch.tolist() for batch in one_loader(samples=20, micro_batch=6)]
    loader = one_loader(samples=20, micro_batch=6)
    with node.start() as ckpt:
        assert ckpt.load({"data": loader}) is None
        for step, _ in zip((1, 2, 3), loader, strict=False):
            if step < 3:
                ckpt.save(step, {"data": loader})
    ranks = make_loaders(2, 20, 6, max_micro_batch=3)
    with node.start() as ckpt:
        state = {"data": ranks[0]}
        assert ckpt.load(state) == 2
    ranks[1].load_state_dict(ranks[0].state_dict())
    rest = [torch.cat(batches).tolist() for batches in zip(*ranks, strict=True)]
    assert [sorted(step) for step in rest] == [sorted(step) for step in expected[2:]]


def test_a_stateful_data_loader_is_saved_as_a_whole(node: Node) -> None:
    """Into a fresh one whose state has other keys: it has not yet begun."""

    def make() -> Any:
        options = {"make": StatefulDataLoader, "loader_options": {"num_workers": 2}}
        return make_loaders(1, 24, 6, max_micro_batch=6, **options)[0].loader

    expected = [batch.tolist() for batch in make()]
    first = make()
    with node.start() as ckpt:
        assert ckpt.load({"data": first}) is None
        for step, batch in enumerate(first, 1):
            assert batch.tolist() == expected[step - 1]
            first.sampler.advance()
            ckpt.save(step, {"data": first})
            if step == 2:
                break
    again = make()
    with node.start() as ckpt:
        assert ckpt.load({"data": again}) == 2
    assert [batch.tolist() for batch in again] == expected[2:]
    assert again.sampler.position == 12
