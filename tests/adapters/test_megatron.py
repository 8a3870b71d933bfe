"""Megatron-core's sharded state dicts in Holdfast's steps end with what an undisturbed run ends with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from disturbed import KILLED, LOST, broken, ends, samples, undisturbed

SCRIPT = "megatron_script.py"
PRELOAD = ["megatron.core.dist_checkpointing.strategies.torch", "megatron.core.tensor_parallel.mappings"]

pytestmark = pytest.mark.long(seconds=20)


@pytest.fixture
def megatron(frameworks: Callable[..., None]) -> None:
    frameworks("megatron", "nvidia_resiliency_ext")


@pytest.mark.parametrize("mode", ["dist", pytest.param("local", marks=pytest.mark.faults)])
def test_a_killed_worker_and_a_lost_node_change_nothing(tmp_path: Path, megatron: None, mode: str) -> None:
    bare = undisturbed(SCRIPT, tmp_path / "bare", preload=PRELOAD, MODE=mode)
    out = broken(SCRIPT, tmp_path, KILLED, LOST, env={"MODE": mode}, preload=PRELOAD)
    assert samples(out) == samples(bare)
    assert ends(out) == ends(bare)


@pytest.mark.faults
def test_sharded_tensors_load_bit_for_bit_in_a_smaller_world(tmp_path: Path, megatron: None) -> None:
    """A node is lost and there is no spare: the network's one rank has both halves."""
    elastic = {"min_nodes": 1, "scaling_timeout_s": 1}
    lost = "0:1:10:9:wait"
    out = broken(SCRIPT, tmp_path, lost, env={"MODE": "dist"}, spares=0, elastic=elastic, preload=PRELOAD)
    loaded = {path.name.split("-")[1]: path.read_text() for path in out.glob("loaded-*")}
    del loaded["0"]
    assert loaded and all((out / f"saved-{step}").read_text() == whole for step, whole in loaded.items())
    assert ends(out)[0]["step"] == 35
    assert sorted(sample for ids in samples(out).values() for sample in ids) == list(range(8 * 35))
