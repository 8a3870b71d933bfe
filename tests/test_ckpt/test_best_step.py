"""A script gives metrics: which steps they keep, which step is the best, and what ranks do that do not agree."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agent_kit import NAMESPACE, run
from agent_kit import World as Agents
from test_cli_ckpt import facts
from trainer_kit import Node, settle
from waiting import until
from world_kit import World

from ckpt import Checkpointer
from ckpt.config import CheckpointConfig
from ckpt.errors import CheckpointError, ConfigError, StateError
from ckpt.tiers.posix import SharedTier

LOSSES = {1: 0.9, 2: 0.2, 3: 0.8, 4: 0.1, 5: float("nan"), 6: 0.7, 7: 0.6}


def section(path: Path, **more: Any) -> dict[str, Any]:
    return {"shared": {"path": str(path / "shared"), "every_steps": 1, "keep": 2, **more}}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, **section(tmp_path, keep_best={"loss": "min", "n": 2}, keep_every_steps=3))
    yield node
    node.stop()


def state(step: int) -> dict[str, Any]:
    return {"x": np.full(1000, step), "n": step}


def kept(node: Node) -> dict[int, dict[str, float]]:
    tier = SharedTier(node.shared, "ns")
    return {entry.step: dict(entry.metrics) for entry in tier.catalog() if entry.save}


def test_the_best_steps_and_the_milestones_stay_and_the_best_one_is_loaded(node: Node) -> None:
    with node.start() as ckpt:
        for step, loss in LOSSES.items():
            ckpt.save(step, state(step), metrics={"loss": torch.tensor(loss)})
            settle(ckpt)
        until(lambda: 5 not in kept(node), "the removal of step 5")  # after its flush has been confirmed
        assert {step: metrics.get("loss") for step, metrics in kept(node).items()} == {
            7: pytest.approx(0.6), 6: pytest.approx(0.7), 4: pytest.approx(0.1), 3: pytest.approx(0.8),
            2: pytest.approx(0.2),
        }  # fmt: skip
        assert ckpt.read("best").state["n"] == 4
    with node.start() as ckpt:
        live = state(0)
        assert ckpt.load(live, step="best") == 4 and live["n"] == 4 and (live["x"] == 4).all()
        ckpt.save(5, state(5), metrics={"loss": 0.05})
        settle(ckpt)
        assert ckpt.load(live, step="best") == 5, "saves in flight are waited for"
        assert not ckpt.failed_saves


def test_ls_says_which_steps_stay_and_why(node: Node) -> None:
    with node.start() as ckpt:
        for step, loss in LOSSES.items():
            ckpt.save(step, state(step), metrics={"loss": loss})
            settle(ckpt)
    rows = {row["step"]: (row["lasts"], row["metrics"]) for row in facts("ls", node.shared)}
    assert rows[6] == ("milestone", {"loss": 0.7}) and rows[4] == ("best loss", {"loss": 0.1})
    assert rows[2] == ("best loss, no. 2", {"loss": 0.2}) and rows[7] == ("", {"loss": 0.6})


def test_a_metric_that_is_not_finite_is_left_out_and_said_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    with node.start() as ckpt:
        for step in (1, 2, 3):
            ckpt.save(step, state(step), metrics={"loss": float("inf"), "accuracy": 0.5})
            settle(ckpt)
        with pytest.raises(CheckpointError, match="no step that can be restored has the metric loss"):
            ckpt.load(state(0), step="best")
    assert caplog.text.count("metric loss of step 1 is inf: such a step is never among the best") == 1
    assert kept(node)[3] == {"accuracy": 0.5}


@pytest.mark.parametrize("metrics", [{"loss": "0.5"}, {"loss": True}, {"loss": torch.ones(2)}, {"n": 1.0}, {3: 1.0}])
def test_what_is_no_metric_is_an_error_before_anything_is_saved(node: Node, metrics: Any) -> None:
    with node.start() as ckpt:
        with pytest.raises(StateError, match="metrics: "):
            ckpt.save(1, state(1), metrics=metrics)
        ckpt.save(1, state(1))
        assert ckpt.newest_step == 1


def test_without_keep_best_there_is_no_best_step_and_the_error_says_what_to_add(tmp_path: Path) -> None:
    node = Node(tmp_path, **section(tmp_path))
    try:
        with node.start() as ckpt:
            ckpt.save(1, state(1), metrics={"loss": 0.5})
            with pytest.raises(CheckpointError, match="no tier has keep_best"):
                ckpt.load(state(0), step="best")
            with pytest.raises(StateError, match=r"got 'newest', expected a number, 'best' or None"):
                ckpt.load(state(0), step="newest")  # type: ignore[arg-type]
    finally:
        node.stop()


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"keep_best": {"loss": "low"}}, "keep_best"),
        ({"keep_best": {"loss": "min", "n": 0}}, "expected n, the number of steps"),
        ({"keep_best": {"n": 3}}, "expected one metric with min or max"),
        ({"keep_best": {"loss": "min", "accuracy": "max"}}, "expected one metric with min or max"),
        ({"keep_every_steps": 750}, "keep_every_steps: got 750, expected a multiple of every_steps, 500"),
    ],
)
def test_rules_that_keep_nothing_are_refused(more: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        CheckpointConfig.from_mapping({"namespace": "ns", "shared": {"path": "/x", **more}})


def test_all_tiers_name_the_same_metric() -> None:
    tiers = {
        "shared": {"path": "/x", "keep_best": {"loss": "min", "n": 3}},
        "s3": {"url": "s3://bucket/x", "keep_best": {"loss": "max"}},
    }
    with pytest.raises(ConfigError, match=r"s3\.keep_best: got {'loss': 'max'}, expected {'loss': 'min'}"):
        CheckpointConfig.from_mapping({"namespace": "ns", **tiers})


def _save_and_load_best(ckpt: Checkpointer, rank: int) -> tuple[int | None, int]:
    for step in (1, 2):
        metrics = {"loss": step + rank / 10, "last": float(rank)} if rank else {"last": 7.0}
        ckpt.save(step, {"x": np.full(100, step)}, metrics=metrics)
        settle(ckpt)
        torch.distributed.barrier()  # else a rank saves the next step while another one waits for this one
    return ckpt.load({"x": np.zeros(100, int)}, step="best"), ckpt.failed_saves


def test_of_ranks_that_give_other_values_the_lowest_one_counts_for_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, **section(tmp_path, keep_best={"loss": "max"}))
    try:
        with caplog.at_level(logging.WARNING):
            assert world.run(3, _save_and_load_best) == [(2, 0)] * 3
        assert kept(world) == {1: {"last": 7.0, "loss": 1.1}, 2: {"last": 7.0, "loss": 2.1}}
    finally:
        world.stop()


def test_a_step_that_cannot_be_read_is_an_error_and_no_other_one_is_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers = {"namespace": NAMESPACE, **section(tmp_path, keep_best={"loss": "min"})}
    get = SharedTier._get

    def failing(tier: SharedTier, path: str, max_bytes: int) -> bytes:
        if path.startswith("step-0000000010."):
            raise OSError(errno.EIO, "Input/output error")
        return get(tier, path, max_bytes)

    async def scenario() -> None:
        async with Agents(tmp_path, ["a"], 0, CheckpointConfig.from_mapping(tiers)) as world:
            (worker,) = world.workers
            for step, slot in ((10, 0), (20, 1)):
                worker.save(step, slot, metrics={"loss": float(step)})
                await world.monitors[0].event("commit", tier="shared", step=step)
            monkeypatch.setattr(SharedTier, "_get", failing)
            assert "Input/output error" in (await worker.request("best"))["error"]
            monkeypatch.setattr(SharedTier, "_get", get)
            assert (await worker.request("best"))["step"] == 10

    run(scenario)
