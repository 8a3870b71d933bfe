"""The position is that of the training loop."""

from __future__ import annotations

import random
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
from holdfast import RngState


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


class Noisy(torch.utils.data.Dataset[torch.Tensor]):
    """Samples with noise of torch's generator, as a random transform has."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)]) + torch.rand(1)


def train(node: Node, kind: Any, total: int) -> torch.Tensor:
    """The short form of the guide, with dropout. Returns the weights."""
    torch.manual_seed(3)
    random.seed(3)
    plan = batch_plan(6, 1, max_micro_batch=3, env={})
    sampler = ElasticSampler(24, plan, rank=0, seed=1)
    loader = ElasticLoader(kind(Noisy(), plan.micro_batch, sampler=sampler))
    model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    state = {"model": model, "optimizer": optimizer, "data": loader, "rng": RngState()}
    with node.start() as ckpt:
        step = ckpt.load(state) or 0
        for batch in loader.endless():
            (model(batch).square().mean() * random.random() / plan.accumulation).backward()
            if not loader.ends_step:
                continue
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            ckpt.save(step, state)
            if step == total:
                break
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("stop", [3, 4])
def test_a_restart_ends_with_the_weights_of_a_run_without_one(tmp_path: Path, kind: Any, stop: int) -> None:
    """Within an epoch of 4 steps, and at its end. Reading the data in this process draws from its generators too."""
    for name in ("whole", "restarted"):
        (tmp_path / name).mkdir()
    whole, restarted = Node(tmp_path / "whole"), Node(tmp_path / "restarted")
    try:
        expected = train(whole, kind, 6)
        begun = train(restarted, kind, stop)
        assert not torch.equal(begun, expected)
        assert torch.equal(train(restarted, kind, 6), expected)
    finally:
        whole.stop()
        restarted.stop()


def test_an_iteration_draws_nothing_from_the_global_generator() -> None:
    plan = batch_plan(6, 1, max_micro_batch=3, env={})

    def loader(rank: int = 0, **options: Any) -> DataLoader[Any]:
        return DataLoader(Numbers(24), 3, sampler=ElasticSampler(24, plan, rank=rank, seed=1), **options)

    plain = loader()
    before = torch.get_rng_state()
    first = next(iter(ElasticLoader(plain)))
    assert torch.equal(torch.get_rng_state(), before)
    drawn = plain.generator.get_state()
    again = loader()
    assert torch.equal(next(iter(ElasticLoader(again))), first)
    assert torch.equal(again.generator.get_state(), drawn)  # the same seed for the workers at the same position
    given = torch.Generator()
    assert ElasticLoader(loader(generator=given)).loader.generator is given
